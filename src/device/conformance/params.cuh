// What a conformance kernel is told: words in, words out, a few numbers, a tensor map.
//
// The kernels of this folder do one instruction each, on inputs that the host makes from a seed.
// Their outputs are recorded on a GPU once; the emulator, which runs the same kernels, must give
// the same words.
#pragma once

#include "config/portable.h"
#include "device/ptx/tma.cuh"

namespace octavo::conformance {

struct Params {
  const u32* in = nullptr;
  u32* out = nullptr;
  i32 count = 0;  // of whatever the kernel does several times
  i32 at[5] = {};
  u32 bytes = 0;
  u64 descriptors[2] = {};  // without their addresses
  ptx::TensorMap map{};
};

}  // namespace octavo::conformance
