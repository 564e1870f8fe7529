// SPDX-License-Identifier: Apache-2.0
// Runs the quantizers of a call on its host tensors, in the emulator or on a GPU.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/quantize/prepare_operands.h"
#include "octavo/octavo.hpp"

namespace octavo::test {

struct QuantizeGiven {
  Arguments arguments;
  Options options;
  std::vector<std::byte> out;  // never written
  DType format = DType::e4m3;  // e5m2, which no mode uses, in place of e4m3
  VLayout layout = VLayout::rows;
};

// The result of a run: the call's arguments point into `memory`, on the host.
struct QuantizeLeft {
  PreparedCall call;
  std::vector<std::byte> memory;
};

// A failure fails the test.
QuantizeLeft quantize_in_emulator(const QuantizeGiven& given);
QuantizeLeft quantize_on_gpu(const QuantizeGiven& given);

// Allocates the poisoned workspace of a call; its first byte is at a multiple of 64.
inline std::byte* aligned_workspace(QuantizeLeft& left, std::size_t bytes) {
  left.memory.assign(bytes + 64, std::byte{0xA5});
  const auto address = reinterpret_cast<std::uintptr_t>(left.memory.data());
  return left.memory.data() + (64 - address % 64) % 64;
}

inline void set_format(const QuantizeGiven& given, QuantizeLeft& left) {
  Arguments& a = left.call.arguments;
  for (ConstTensor* t : {&a.q, &a.k, &a.v})
    if (t->dtype == DType::e4m3) t->dtype = given.format;
}

}  // namespace octavo::test
