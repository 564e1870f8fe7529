// SPDX-License-Identifier: Apache-2.0
// Computes the mean keys and the scales of the library's quantization before the first tile. It
// does nothing for precision modes that need neither.
#pragma once

#include <cstdint>

#include "cpu/load.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

struct Operands {
  Operand q, k, v;
};

// The number of floats that `prepare` stores for the duration of a call.
std::int64_t prepared_floats(const Problem& problem);

// Scratch per worker, in floats.
std::int64_t prepare_scratch_floats(std::int64_t head_dim);

// The scratch of worker w starts at scratch + w * scratch_stride.
Operands prepare(const Kernels& kernels, const Problem& problem, const Arguments& arguments,
                 float* storage, float* scratch, std::int64_t scratch_stride, int workers);

}  // namespace octavo::cpu
