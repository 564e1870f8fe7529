// SPDX-License-Identifier: Apache-2.0
// Parameters of a conformance kernel: input words, output words, a few numbers and a tensor map.
//
// Each kernel of this folder executes one instruction on inputs that the host derives from a seed.
// The outputs are recorded once on a GPU; the emulator runs the same kernels and must produce the
// same words.
#pragma once

#include "config/portable.h"
#include "device/ptx/tma.cuh"

namespace octavo::conformance {

struct Params {
  const u32* in = nullptr;
  u32* out = nullptr;
  i32 count = 0;  // repetitions, where the kernel repeats something
  i32 at[5] = {};
  u32 bytes = 0;
  u64 descriptors[2] = {};  // without the addresses
  ptx::TensorMap map{};
};

}  // namespace octavo::conformance
