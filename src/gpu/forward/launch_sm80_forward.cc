// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/tile_order.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/load_function.h"
#include "gpu/jit/shipped.h"

namespace octavo {
namespace {

constexpr float kSim8Step = 1.0f / 127.0f;

}  // namespace

int row_alignment(const Arguments& a) {
  std::uint64_t bits = 16;
  for (const ConstTensor& t : {a.q, a.k, a.v, ConstTensor(a.out)}) {
    bits |= reinterpret_cast<std::uintptr_t>(t.data);
    for (int i = 0; i < 3; ++i)
      if (t.shape[i] > 1) bits |= static_cast<std::uint64_t>(t.stride[i]) * size_bytes(t.dtype);
  }
  return static_cast<int>(bits & (~bits + 1));
}

std::int64_t sm80_forward_tiles(const Problem& kernel_problem, const Sm80ForwardConfig& config) {
  return div_up<std::int64_t>(kernel_problem.seqlen_q, config.block_m) * kernel_problem.heads_q *
         kernel_problem.batch * sm80::column_tiles(config);
}

BlockMaskedForwardParams sm80_forward_params(const Problem& kernel_problem, const Arguments& a,
                                             const Sm80ForwardConfig& config) {
  BlockMaskedForwardParams p;
  set_operands(p, kernel_problem, a);
  const bool sim8 = kernel_problem.q == DType::sim8;
  if (sim8) p.v_unit = kSim8Step;
  set_shared_params(p, kernel_problem, a, config.block_m, sim8 ? kSim8Step : 1);
  p.tiles *= sm80::column_tiles(config);
  p.output = output_params(kernel_problem, a);
  p.modifiers = modifier_params(kernel_problem, a, p.scale_log2);
  p.block_mask = block_mask_params(kernel_problem, a);
  return p;
}

Result<LoadedSm80Forward> load_sm80_forward(const Gpu& gpu, const Sm80ForwardConfig& config) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  // The shipped kernels do not spill, which a test asserts. A rarer kernel that spills is slower,
  // but better than an error.
  constexpr CubinPolicy kPolicy{.allow_spills = true};
  const KernelSource source = kernel_source(config, code_for(gpu.info.arch).ptx);
  const Result<cuda::Function> function =
      load_function(gpu, source, sm80::smem_bytes(config), kPolicy);
  if (!function.ok()) return function.status();
  LoadedSm80Forward kernel{config, *function};
  kernel.note = cache_note(gpu, source, kPolicy);
  if (config.persistent) {
    OCTAVO_GPU_TRY(*gpu.driver,
                   gpu.driver->occupancy(&kernel.ctas_per_sm, kernel.function,
                                         sm80::threads(config), sm80::smem_bytes(config)),
                   "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  }
  return kernel;
}

Status launch_sm80_forward(const Gpu& gpu, const LoadedSm80Forward& kernel,
                           const Problem& kernel_problem, const Arguments& arguments,
                           Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  BlockMaskedForwardParams params = sm80_forward_params(kernel_problem, arguments, kernel.config);
  cuda::LaunchConfig launch;
  const std::int64_t resident =
      kernel.ctas_per_sm * sms_of_grid(gpu.info.sms, kernel_problem.options);
  launch.grid[0] = static_cast<unsigned>(
      kernel.config.persistent ? std::min<std::int64_t>(params.tiles, resident) : params.tiles);
  launch.block[0] = static_cast<unsigned>(sm80::threads(kernel.config));
  launch.smem_bytes = static_cast<unsigned>(sm80::smem_bytes(kernel.config));
  launch.stream = static_cast<cuda::StreamHandle>(stream);
  if (gpu.is_emulated()) gpu.kernels->announce(kernel_problem, arguments);
  OCTAVO_RETURN_IF_ERROR(
      clear_amax(*gpu.driver, arguments.out_amax, amax_floats(kernel_problem, arguments), stream));
  void* arguments_of_kernel[] = {&params};
  OCTAVO_GPU_TRY(*gpu.driver,
                 gpu.driver->launch_kernel(&launch, kernel.function, arguments_of_kernel, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

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
