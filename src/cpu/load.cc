// SPDX-License-Identifier: Apache-2.0
// RowLoader: loads, transforms and rounds rows of Q, K and V.
#include "cpu/load.h"

#include <cstddef>

#include "attention/int4_rows.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo::cpu {

RowLoader::RowLoader(const Kernels& kernels, const Operand& operand, const HeadOfSequence& rows,
                     float* factors)
    : kernels_(kernels),
      operand_(operand),
      rows_(rows),
      places_(operand.tensor, operand.layout, operand.varlen, rows),
      head_dim_(row_channels(operand.tensor)) {
  const OperandFormat& format = operand.format;
  const bool scaled = format.scales_of_caller() || format.scales_of_ours();
  if (!scaled || format.granularity != Granularity::channel) return;
  const std::int64_t padded = padded_row(head_dim_);
  for (std::int64_t c = 0; c < padded; ++c) {
    const bool inside = c < head_dim_;
    factors[c] = inside ? operand.scales.step(rows, 0, c) : 1.0f;
    if (format.rounded) factors[padded + c] = inverse_of_found(*format.rounded, factors[c]);
  }
  channel_steps_ = factors;
  channel_inverses_ = factors + padded;
}

void RowLoader::convert(std::int64_t row, std::int64_t rows, float* target,
                        std::int64_t pitch) const {
  const ConstTensor& t = operand_.tensor;
  const auto* bytes = static_cast<const std::byte*>(t.data) +
                      places_.at(row, 0) * static_cast<std::int64_t>(size_bytes(t.dtype));
  kernels_.to_f32(t.dtype, bytes, t.stride[2], rows, head_dim_, target, pitch);
}

void RowLoader::gather(std::int64_t row, float* target) const {
  const auto* quantized =
      static_cast<const std::uint8_t*>(operand_.tensor.data) + places_.at(row, 0);
  const std::array<float, 256>& values = decode_table(operand_.tensor.dtype);
  const std::uint8_t flipped = flipped_bits(operand_.tensor.dtype);
  for (std::int64_t c = 0; c < head_dim_; ++c)
    target[c] = values[quantized[c * places_.column_stride()] ^ flipped];
}

void RowLoader::decode(std::int64_t row, float* target) const {
  const ConstTensor& t = operand_.tensor;
  load_int4(t, groups_of(t, operand_.groups), places_, rows_, row, target);
}

bool RowLoader::is_plain() const {
  const OperandFormat& format = operand_.format;
  return operand_.tensor.dtype != DType::int4 && !format.scales_of_caller() && !format.rounded &&
         !format.hadamard && operand_.means == nullptr;
}

void RowLoader::load_block(std::int64_t begin, std::int64_t end, float* target,
                           std::int64_t pitch) const {
  if (is_plain()) {
    for (std::int64_t row = begin, count = 0; row < end; row += count) {
      count = places_.rows_together(row, end - row);
      convert(row, count, target + (row - begin) * pitch, pitch);
    }
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) load(row, target + (row - begin) * pitch);
}

void RowLoader::load_values(std::int64_t row, float* target) const {
  if (operand_.tensor.dtype == DType::int4) return decode(row, target);
  operand_.layout == VLayout::rows ? convert(row, 1, target, 0) : gather(row, target);
  if (!operand_.format.scales_of_caller()) return;
  if (channel_steps_ != nullptr)
    kernels_.multiply_row(target, channel_steps_, head_dim_);
  else
    kernels_.scale_row(target, step(row), head_dim_);
}

void RowLoader::transform(float* row) const {
  const float* mean = operand_.mean(rows_.number, rows_.head);
  if (mean == nullptr && !operand_.format.hadamard) return;
  RowTransform{mean, operand_.format.hadamard}.apply(row, head_dim_);
}

void RowLoader::round(std::int64_t row, float* values) const {
  const OperandFormat& format = operand_.format;
  if (!format.rounded) return;
  if (!format.scales_of_ours()) {
    kernels_.round_to(*format.rounded, values, head_dim_);
  } else if (channel_steps_ != nullptr) {
    kernels_.multiply_row(values, channel_inverses_, head_dim_);
    kernels_.round_to(*format.rounded, values, head_dim_);
    kernels_.multiply_row(values, channel_steps_, head_dim_);
  } else {
    const float row_step = step(row);
    kernels_.scale_row(values, inverse_of_found(*format.rounded, row_step), head_dim_);
    kernels_.round_to(*format.rounded, values, head_dim_);
    kernels_.scale_row(values, row_step, head_dim_);
  }
}

}  // namespace octavo::cpu
