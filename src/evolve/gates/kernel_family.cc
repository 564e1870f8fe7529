#include "evolve/gates/kernel_family.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"

namespace octavo::evolve {

Result<Family> parse_family(std::string_view name) {
  if (name == "sm80_forward") return Family::sm80_forward;
  if (name == "sm90_forward") return Family::sm90_forward;
  if (name == "ladder") return Family::ladder;
  return invalid("kernel", fmt::format("'{}'", name), "sm80_forward, sm90_forward, ladder");
}

Result<LadderConfig> parse_ladder(std::string_view text) {
  for (const LadderConfig& config : kLadder)
    if (text == to_text(config) ||
        (config.head_dim == 64 && text == fmt::format("rung={}", name(config.rung))))
      return config;
  return invalid("config", fmt::format("'{}'", text),
                 "rung=scalar, tiled, tensor_cores, async_copies or specialised_warps, with "
                 ",head_dim=64 or 128");
}

Result<KernelConfig> parse_config(std::string_view family, std::string_view text) {
  const Result<Family> named = parse_family(family);
  if (!named.ok()) return named.status();
  const auto made = [](const auto& config) -> Result<KernelConfig> {
    if (!config.ok()) return config.status();
    return KernelConfig(*config);
  };
  switch (*named) {
    case Family::sm80_forward:
      return made(parse_sm80_forward(text));
    case Family::sm90_forward:
      return made(parse_sm90_forward(text));
    case Family::ladder:
      break;
  }
  return made(parse_ladder(text));
}

KernelSource source_of(const KernelConfig& config) {
  if (const auto* ladder = std::get_if<LadderConfig>(&config))
    return kernel_source(*ladder, ladder->rung == Rung::specialised_warps ? 90 : 80);
  if (const auto* sm80 = std::get_if<Sm80ForwardConfig>(&config)) return kernel_source(*sm80);
  return kernel_source(std::get<Sm90ForwardConfig>(config));
}

std::string text_of(const KernelConfig& config) {
  return std::visit([](const auto& c) { return to_text(c); }, config);
}

}  // namespace octavo::evolve
