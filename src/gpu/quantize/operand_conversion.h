// SPDX-License-Identifier: Apache-2.0
// How Q, K and V are converted for a forward kernel, and the workspace layout of the results.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/operand.h"
#include "config/quantize.h"
#include "config/v_layout.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The largest number of partial maxima of the first pass; a per-tensor scale has one per CTA.
inline constexpr std::int64_t kChunks = 512, kTensorBlocks = 256;
// The columns of the widest quantizer.
inline constexpr std::int64_t kMostColumns = 256;

// The conversion of Q, K or V.
struct Conversion {
  OperandFormat format;
  std::int64_t sequences = 0, heads = 0, longest = 0;  // longest: rows of the longest sequence
  std::int64_t batches = 0, rows = 0;                  // of the tensor
  std::int64_t head_dim = 0, block_rows = 0;
  bool varlen = false;
  bool transposed = false;
  bool any_columns = false;  // a quantizer of more columns may replace the chosen one

  bool needed() const { return format.rounded || transposed; }
  bool smooth() const { return format.smooth && format.scales_of_ours(); }
  // The number of partial sums per head for the means, and the channels of each.
  std::int64_t mean_groups() const {
    return std::max<std::int64_t>(div_up<std::int64_t>(longest, quantizer::kMeanRows), 1);
  }
  std::int64_t mean_columns() const { return round_up<std::int64_t>(head_dim, quantizer::kVector); }
  std::int64_t mean_floats() const { return smooth() ? sequences * heads * mean_columns() : 0; }
  bool dequantizes() const { return format.rounded && is_8bit(format.stored); }
  DType to() const { return format.rounded.value_or(format.stored); }
  // Result rows are padded to multiples of 16 bytes.
  std::int64_t row_elements() const {
    return round_up(head_dim, 16 / static_cast<std::int64_t>(size_bytes(to())));
  }
  std::int64_t column_bytes() const {
    return varlen ? varlen_v_column_bytes(rows, sequences) : v_column_bytes(rows);
  }
  // Elements per head.
  std::int64_t head_elements() const {
    return transposed ? head_dim * column_bytes() : rows * row_elements();
  }
  std::int64_t bytes() const {
    return batches * heads * head_elements() * static_cast<std::int64_t>(size_bytes(to()));
  }
  // The result tensor, which the forward kernel reads.
  ConstTensor tensor(const void* data) const {
    const std::int64_t row = transposed ? column_bytes() : row_elements();
    return {data,
            to(),
            {batches, heads, transposed ? head_dim : rows, transposed ? column_bytes() : head_dim},
            {heads * head_elements(), head_elements(), row, 1}};
  }
};

struct Conversions {
  Conversion q, k, v;
};
// operand_formats(), but 8-bit K and V with a 16-bit Q are dequantized to its type, because no
// kernel multiplies 16-bit by 8-bit operands.
OperandFormats conversion_formats(const Problem& problem);
// `layout`: of the V that the forward kernel reads. Without arguments, the sizes are the largest
// that the problem allows.
Conversions conversions_of(const Problem& problem, const OperandFormats& formats,
                           const Arguments* arguments, VLayout layout, bool any_columns);

ScaleGroup group_of(const OperandFormat& format);
// Rounds head_dim up to one of a few widths, so that there are few kernels; lanes beyond head_dim
// are idle.
std::int64_t columns_of(std::int64_t head_dim);

// In a varlen batch row scales are indexed by token and all others by sequence, like the caller's
// scales in the API.
std::int64_t scale_floats(const Conversion& x, bool varlen);
// Enough partial maxima for every batch that is not larger.
std::int64_t partial_floats(const Conversion& x);

// Byte offsets of one operand's results in the workspace.
struct OperandOffsets {
  std::int64_t result, scales, partials, mean_sums, means, end;
};

OperandOffsets operand_offsets(const Conversion& x, bool varlen, std::int64_t begin);

}  // namespace octavo
