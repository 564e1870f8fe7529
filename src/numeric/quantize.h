// SPDX-License-Identifier: Apache-2.0
// Quantization of whole tensors, shared by the API, the CPU backend and the oracle.
//
// A value is read as f32, smoothed and rotated if requested, then
//   code = encode_8bit(format, value * inverse),  step = step_of(format, scale)
// where inverse is 1.0f / step for a given scale and inverse_of_found for a computed one. The
// dequantized value is decode_8bit(format, quantized) * step. Each takes two roundings, in this
// order, so that other implementations can give the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// The transforms of a row before it is scaled: subtract the mean, then rotate.
struct RowTransform {
  const float* mean = nullptr;  // of this row's (batch, head), or null
  bool hadamard = false;
  void apply(float* row, std::int64_t columns) const;
};

// In place and orthonormal: H / sqrt(n) for each block of n columns, where n is the largest power
// of two that divides `columns`. Butterflies (a + b, a - b) at distance 1, 2, 4, ..., then one
// product by 1/sqrt(n) rounded to float.
void hadamard_rotate(float* row, std::int64_t columns);

// Column sums in double, in a fixed order: kMeanRows rows one after another, and these partial sums
// likewise. Non-finite values count as zero.
inline constexpr std::int64_t kMeanRows = 64;
class RowSums {
 public:
  // `memory`: 2 * columns.
  RowSums(double* memory, std::int64_t columns);
  void add(const float* row);
  void mean(float* to);  // call after the last row; zeros without rows

 private:
  void add_part();

  double *sums_, *part_;
  std::int64_t columns_, rows_ = 0;
};

// The mean row of each (batch, head), computed with RowSums: `mean` is (B, H, D).
void mean_rows(const ConstTensor& x, float* mean);

// Largest finite magnitude of each group of values that share a scale, after the transforms;
// contiguous in the shape of options.granularity. `mean` (B, H, D) or null.
void compute_amax(const ConstTensor& x, const QuantizeOptions& options, const float* mean,
                  float* amax);

// Scales of x (f32, f16 or bf16) by options.granularity and rule, contiguous in `scales`; amax is
// quantized to `max_quantized`. `mean` (B, H, D) or null.
//
// least_squares tries the scales of amax * (96 - k) / 96, k = 0 to 63, and keeps the one with the
// smallest sum of squared errors (in double, over finite values, row after row). Ties go to the
// larger scale. k = 0 is the scale of amax, so the rule is never worse than that.
void compute_scales(const ConstTensor& x, DType format, const QuantizeOptions& options,
                    const float* mean, float* scales, float max_quantized);
inline constexpr int kLeastSquaresCandidates = 64;
inline float least_squares_ratio(int candidate) {
  return static_cast<float>(96 - candidate) / 96.0f;
}

// The checks of quantize() that read no memory. `scaled`: the shape whose groups have a scale each,
// `means` the number of means of x's heads, and `columns` those of a transposed result.
Status check_quantize(const ConstTensor& x, const QuantizeOptions& options, const Tensor& quantized,
                      const float* scales, const std::array<std::int64_t, 4>& scaled,
                      const float* mean, std::int64_t means, std::int64_t columns);
// The quantized value of a group's largest magnitude.
Result<float> max_quantized_of(const QuantizeOptions& options, DType format);

// What quantize() finds before it writes: the means and scales of x, as far as the options ask for
// them, and memory for a row. find_scales() does everything that may fail, and may throw.
struct RowScratch;
struct FoundScales {
  std::vector<float> mean{}, scales{};
  std::unique_ptr<RowScratch> scratch{};

  FoundScales();
  FoundScales(FoundScales&&) noexcept;
  FoundScales& operator=(FoundScales&&) noexcept;
  ~FoundScales();
};
Result<FoundScales> find_scales(float max_quantized, const ConstTensor& x,
                                const QuantizeOptions& options, const Tensor& quantized,
                                const float* scales, const float* mean);
// Writes the result of quantize().
void quantize_by(const FoundScales& found, const ConstTensor& x, const QuantizeOptions& options,
                 const Tensor& quantized, float* scales, float* mean, RangeStats* stats);

// quantize() of octavo.hpp, with `max_quantized` instead of that of the options.
Status quantize_to(float max_quantized, const ConstTensor& x, const QuantizeOptions& options,
                   const Tensor& quantized, float* scales, float* mean = nullptr,
                   RangeStats* stats = nullptr);

// One row of any dtype as f32, without a scale.
void load_row(const ConstTensor& x, std::int64_t b, std::int64_t h, std::int64_t s, float* row);
// One row rounded to f32, f16 or bf16.
void store_row(const Tensor& x, std::int64_t b, std::int64_t h, std::int64_t s, const float* row);

}  // namespace octavo
