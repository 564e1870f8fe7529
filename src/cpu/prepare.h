// What must be known of Q, K and V before the first tile: the mean keys and the scales of our own
// quantization. Precisions that need neither pass through here for free.
#pragma once

#include <cstdint>

#include "cpu/load.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

struct Operands {
  Operand q, k, v;
};

// Floats that `prepare` keeps until the call is done.
std::int64_t prepared_floats(const Problem& problem);

// Scratch that it needs of each worker, in floats.
std::int64_t prepare_scratch_floats(std::int64_t head_dim);

// `scratch`: of worker w at w * scratch_stride.
Operands prepare(const Kernels& kernels, const Problem& problem, const Arguments& arguments,
                 float* storage, float* scratch, std::int64_t scratch_stride, int workers);

}  // namespace octavo::cpu
