// Quantization of whole tensors, in the pieces that the API, the CPU backend and the oracle share.
#pragma once

#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo {

// What happens to a row before it is scaled: minus the mean, then rotated.
struct RowTransform {
  const float* mean = nullptr;  // of this row's (batch, head), or null
  bool hadamard = false;
  void apply(float* row, std::int64_t columns) const;
};

// In place, orthonormal: H / sqrt(n) over the largest power of two that divides `columns`, block
// by block.
void hadamard_rotate(float* row, std::int64_t columns);

// Mean row of each (batch, head): `mean` is (B, H, D). Summed in double, row after row, so that
// the order is fixed. Not-finite values count as zero.
void mean_rows(const ConstTensor& x, float* mean);

// Scales of x (f32, f16 or bf16) by options.granularity and rule, contiguous in `scales`.
// `mean` (B, H, D) or null.
void compute_scales(const ConstTensor& x, DType format, const QuantizeOptions& options,
                    const float* mean, float* scales);

// One row as f32, whatever its dtype, without a scale.
void load_row(const ConstTensor& x, std::int64_t b, std::int64_t h, std::int64_t s, float* row);

}  // namespace octavo
