// SPDX-License-Identifier: Apache-2.0
#include "emulator/kernels/ladder.h"

#include "device/ladder/async_copies.cuh"
#include "device/ladder/scalar.cuh"
#include "device/ladder/specialised_warps.cuh"
#include "device/ladder/tensor_cores.cuh"
#include "device/ladder/tiled.cuh"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

// The kernel takes its parameters by value, as a launch copies them.
template <void (*kKernel)(const ladder::Params)>
void run(const ladder::Params& p) {
  kKernel(p);
}

}  // namespace

const std::vector<EmulatedLadder>& ladder_kernels() {
  static constinit MadeOnce<std::vector<EmulatedLadder>> kernels;
  return kernels.get([] {
    return std::vector<EmulatedLadder>{
        {{Rung::scalar, 64}, &run<ladder::scalar<64>>},
        {{Rung::scalar, 128}, &run<ladder::scalar<128>>},
        {{Rung::tiled, 64}, &run<ladder::tiled<64>>},
        {{Rung::tiled, 128}, &run<ladder::tiled<128>>},
        {{Rung::tensor_cores, 64}, &run<ladder::tensor_cores<64>>},
        {{Rung::tensor_cores, 128}, &run<ladder::tensor_cores<128>>},
        {{Rung::async_copies, 64}, &run<ladder::async_copies<64>>},
        {{Rung::async_copies, 128}, &run<ladder::async_copies<128>>},
        {{Rung::specialised_warps, 64}, &run<ladder::specialised_warps<64>>},
        {{Rung::specialised_warps, 128}, &run<ladder::specialised_warps<128>>},
    };
  });
}

}  // namespace octavo::emulator
