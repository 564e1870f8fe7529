// SPDX-License-Identifier: Apache-2.0
// The teaching kernels of the ladder (device/ladder/, docs/ladder/).
#pragma once

#include "config/portable.h"

namespace octavo {

// Each has one idea more than the one before.
enum class Rung : int { scalar, tiled, tensor_cores, async_copies, specialised_warps };
inline constexpr int kRungs = 5;

// Names one kernel. FP16, contiguous tensors, head dimensions 64 and 128.
struct LadderConfig {
  Rung rung = Rung::scalar;
  int head_dim = 64;
  bool operator==(const LadderConfig&) const = default;
};

// What a launch of the kernel needs; device/ladder/ has the values.
struct LadderShape {
  int rows = 0;     // of Q in a CTA
  int keys = 0;     // of a block
  int threads = 0;  // of a CTA
  int smem_bytes = 0;
};

}  // namespace octavo
