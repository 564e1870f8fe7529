// SPDX-License-Identifier: Apache-2.0
// Names, shapes and sources of the ladder's kernels: what compiling and describing one needs.
#include "gpu/ladder/ladder.h"

#include <fmt/format.h>

#include "base/error.h"
#include "device/ladder/async_copies.cuh"
#include "device/ladder/scalar.cuh"
#include "device/ladder/specialised_warps.cuh"
#include "device/ladder/tensor_cores.cuh"
#include "device/ladder/tiled.cuh"

namespace octavo {
namespace {

template <class Kernel>
LadderShape shape() {
  return {.rows = Kernel::kRows,
          .keys = Kernel::kKeys,
          .threads = Kernel::kThreads,
          .smem_bytes = static_cast<int>(Kernel::kSmemBytes)};
}

template <int kHeadDim>
LadderShape shape_of_rung(Rung rung) {
  switch (rung) {
    case Rung::scalar:
      return shape<ladder::Scalar<kHeadDim>>();
    case Rung::tiled:
      return shape<ladder::Tiled<kHeadDim>>();
    case Rung::tensor_cores:
      return shape<ladder::TensorCores<kHeadDim>>();
    case Rung::async_copies:
      return shape<ladder::AsyncCopies<kHeadDim>>();
    case Rung::specialised_warps:
      return shape<ladder::SpecialisedWarps<kHeadDim>>();
  }
  return {};
}

}  // namespace

std::string_view name(Rung rung) {
  constexpr std::array<std::string_view, kRungs> kNames = {"scalar", "tiled", "tensor_cores",
                                                           "async_copies", "specialised_warps"};
  return kNames[static_cast<std::size_t>(rung)];
}

std::string to_text(const LadderConfig& config) {
  return fmt::format("rung={},head_dim={}", name(config.rung), config.head_dim);
}
std::string brief_text(const LadderConfig& config) { return to_text(config); }

LadderShape shape_of(const LadderConfig& config) {
  return config.head_dim == 64 ? shape_of_rung<64>(config.rung) : shape_of_rung<128>(config.rung);
}

KernelSource kernel_source(const LadderConfig& config, int gpu_arch) {
  const CodeFor code = code_for(gpu_arch);
  return {.include = fmt::format("device/ladder/{}.cuh", name(config.rung)),
          .name_expression = fmt::format("ladder::{}<{}>", name(config.rung), config.head_dim),
          .arch = code.arch,
          .ptx = code.ptx};
}

Status ladder_runs_on(Rung rung, int gpu_arch) {
  if (rung == Rung::specialised_warps && gpu_arch != 90)
    return unsupported("the GPU", fmt::format("sm_{}", gpu_arch),
                       "sm_90 for the rung specialised_warps");
  return {};
}

}  // namespace octavo
