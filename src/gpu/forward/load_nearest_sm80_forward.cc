#include <fmt/format.h>

#include "gpu/forward/launch_sm80_forward.h"
#include "gpu/forward/nearest_shipped.h"
#include "gpu/jit/config_text.h"

namespace octavo {

Result<LoadedSm80Forward> load_nearest_sm80_forward(const Gpu& gpu,
                                                    const Sm80ForwardConfig& config) {
  Result<LoadedSm80Forward> loaded = load_sm80_forward(gpu, config);
  // A failing compiler or driver is reported, not worked around.
  if (loaded.ok() || loaded.status().code() != ErrorCode::unsupported) return loaded;
  const std::string why = loaded.status().message();
  const auto nearest = nearest_shipped(config, gpu.info.arch, gpu.info.smem_per_block_optin);
  if (nearest) loaded = load_sm80_forward(gpu, *nearest);
  if (!nearest || !loaded.ok())
    return Status(ErrorCode::unsupported,
                  fmt::format("{} No shipped kernel can replace {}.", why, brief_text(config)));
  loaded->note =
      fmt::format("the nearest shipped kernel instead of {}: {}", brief_text(config), why);
  return loaded;
}

}  // namespace octavo
