// What becomes of Q, K and V on their way to a forward kernel, and where it lies in the workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/operand.h"
#include "config/quantize.h"
#include "config/v_layout.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Maxima of the first of two passes; a tensor has as many as it has CTAs.
inline constexpr std::int64_t kChunks = 512, kTensorBlocks = 256;

// One of Q, K and V.
struct Conversion {
  OperandFormat format;
  std::int64_t sequences, heads, longest;  // rows of the longest sequence
  std::int64_t batches, rows;              // of the tensor
  std::int64_t head_dim, block_rows;
  bool packed;
  bool transposed = false;

  bool needed() const { return format.rounded || transposed; }
  bool smooth() const { return format.smooth && format.scales_of_ours(); }
  // Sums that its means come from, of a head; and their columns.
  std::int64_t mean_groups() const {
    return std::max<std::int64_t>(div_up<std::int64_t>(longest, quantizer::kMeanRows), 1);
  }
  std::int64_t mean_columns() const { return round_up<std::int64_t>(head_dim, quantizer::kVector); }
  std::int64_t mean_floats() const { return smooth() ? sequences * heads * mean_columns() : 0; }
  bool dequantizes() const { return format.rounded && is_8bit(format.stored); }
  DType to() const { return format.rounded.value_or(format.stored); }
  // Rows of the results are multiples of 16 bytes.
  std::int64_t row_elements() const {
    return round_up(head_dim, 16 / static_cast<std::int64_t>(size_bytes(to())));
  }
  std::int64_t column_bytes() const {
    return packed ? packed_v_column_bytes(rows, sequences) : v_column_bytes(rows);
  }
  // Of a head.
  std::int64_t head_elements() const {
    return transposed ? head_dim * column_bytes() : rows * row_elements();
  }
  std::int64_t bytes() const {
    return batches * heads * head_elements() * static_cast<std::int64_t>(size_bytes(to()));
  }
  // The result, as the forward kernel sees it.
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
// As operand_formats() has them, and codes of K and V beside a Q of 16 bits become its type: no
// kernel multiplies the one with the other.
OperandFormats conversion_formats(const Problem& problem);
// Without arguments, of the largest that the problem allows.
Conversions conversions_of(const Problem& problem, const Arguments* arguments, VLayout layout);

ScaleGroup group_of(const OperandFormat& format);
// Few widths, so that there are few kernels: what is short of one leaves lanes idle.
std::int64_t columns_of(std::int64_t head_dim);

// In a packed batch, rows are those of the tensor, everything else counts by sequence: as the API
// has it for scales of the caller.
std::int64_t scale_floats(const Conversion& x, bool packed);
// Room for more maxima than a shorter or smaller batch could have.
std::int64_t partial_floats(const Conversion& x);

// Where one operand's results lie.
struct Room {
  std::int64_t result, scales, partials, mean_sums, means, end;
};

Room room_of(const Conversion& x, bool packed, std::int64_t begin);

}  // namespace octavo
