// SPDX-License-Identifier: Apache-2.0
// Loads rows of Q, K and V for the products: converts any format to f32, dequantizes, smooths,
// rotates, and rounds as the precision requires.
#pragma once

#include <cstdint>

#include "attention/element_offsets.h"
#include "attention/operand.h"
#include "attention/operand_scales.h"
#include "cpu/kernels.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The padded size of a row of `head_dim` floats. Kernels may write rows in whole vectors.
constexpr std::int64_t padded_row(std::int64_t head_dim) {
  return (head_dim + kRowPadding - 1) / kRowPadding * kRowPadding;
}

// One of Q, K and V of a call.
struct Operand {
  ConstTensor tensor{};
  OperandFormat format{};
  OperandScales scales{};        // the caller's or the library's
  const float* means = nullptr;  // (sequence, head, column), if smoothed
  VLayout layout = VLayout::rows;
  bool varlen = false;
  GroupScales groups{};  // of int4

  const float* mean(std::int64_t number, std::int64_t head) const {
    return means == nullptr ? nullptr : means + (number * tensor.shape[1] + head) * tensor.shape[3];
  }
};

class RowLoader {
 public:
  // `factors`: scratch for two padded rows. It must outlive the loader.
  RowLoader(const Kernels& kernels, const Operand& operand, const HeadOfSequence& rows,
            float* factors);

  // Loads a row for the products, in the three stages below.
  void load(std::int64_t row, float* target) const {
    load_values(row, target);
    transform(target);
    round(row, target);
  }

  // Rows [begin, end), `pitch` floats apart.
  void load_block(std::int64_t begin, std::int64_t end, float* target, std::int64_t pitch) const;

  void load_values(std::int64_t row, float* target) const;  // the caller's values, dequantized
  void transform(float* row) const;                         // smooths and rotates
  void round(std::int64_t row, float* values) const;        // to 16 or 8 bits, if required

 private:
  void convert(std::int64_t row, std::int64_t rows, float* target, std::int64_t pitch) const;
  void gather(std::int64_t row, float* target) const;  // from a transposed V
  void decode(std::int64_t row, float* target) const;  // from int4
  bool is_plain() const;                               // only a conversion is needed
  float step(std::int64_t row) const { return operand_.scales.step(rows_, row, 0); }

  const Kernels& kernels_;
  const Operand& operand_;
  const HeadOfSequence rows_;
  const ElementOffsets places_;
  const std::int64_t head_dim_;
  const float* channel_steps_ = nullptr;  // if each channel has its own scale
  const float* channel_inverses_ = nullptr;
};

}  // namespace octavo::cpu
