// Quantization of whole tensors, in the pieces that the API, the CPU backend and the oracle share.
//
// A value is read as f32, minus the mean and rotated where asked, then
//   code = encode_8bit(format, value * inverse),  step = step_of(format, scale)
// where inverse is 1.0f / step of a scale that was given, inverse_of_found of others; and a code
// stands for decode_8bit(format, code) * step: two roundings each, in this order, so that other
// implementations can give the same bits.
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
// by block. Butterflies (a + b, a - b) at distance 1, 2, 4, ..., then one product by 1/sqrt(n)
// rounded to float.
void hadamard_rotate(float* row, std::int64_t columns);

// Rows added up column by column, in double and in an order that is fixed: kMeanRows rows one after
// the other, and such sums likewise. Not-finite values count as zero.
inline constexpr std::int64_t kMeanRows = 64;
class RowSums {
 public:
  // `memory`: 2 * columns.
  RowSums(double* memory, std::int64_t columns);
  void add(const float* row);
  void mean(float* to);  // zeros of no rows; after the last one

 private:
  void add_part();

  double *sums_, *part_;
  std::int64_t columns_, rows_ = 0;
};

// Mean row of each (batch, head), by RowSums: `mean` is (B, H, D).
void mean_rows(const ConstTensor& x, float* mean);

// Largest finite magnitude of each group of values that share a scale, after the transforms;
// contiguous in the shape of options.granularity. `mean` (B, H, D) or null.
void compute_amax(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  float* amax);

// Scales of x (f32, f16 or bf16) by options.granularity and rule, contiguous in `scales`, with amax
// at `largest_code`. `mean` (B, H, D) or null.
//
// least_squares tries the scales of amax * (96 - k) / 96, k = 0 to 63, and keeps the one with the
// smallest sum of squared errors (in double, over finite values, row after row). Scales equally
// good: the larger. k = 0 is the scale of amax, so the rule is never worse than that.
void compute_scales(const ConstTensor& x, DType format, const QuantizeOptions& options,
                    const float* mean, float* scales, float largest_code);
inline constexpr int kLeastSquaresCandidates = 64;
inline float least_squares_ratio(int candidate) {
  return static_cast<float>(96 - candidate) / 96.0f;
}

// quantize() of octavo.hpp, with amax at `largest_code` and not at that of the options.
Status quantize_to(float largest_code, const ConstTensor& x, const QuantizeOptions& options,
                   const Tensor& codes, float* scales, float* mean = nullptr,
                   RangeStats* stats = nullptr);

// One row as f32, whatever its dtype, without a scale.
void load_row(const ConstTensor& x, std::int64_t b, std::int64_t h, std::int64_t s, float* row);
// One row rounded to f32, f16 or bf16.
void store_row(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t s, const float* row);

}  // namespace octavo
