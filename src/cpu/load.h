// Rows of Q, K and V on their way into the products: any format to f32, dequantized, smoothed,
// rotated, and rounded where the precision asks for it.
#pragma once

#include <cstdint>

#include "attention/element_places.h"
#include "attention/operand.h"
#include "attention/operand_scales.h"
#include "cpu/kernels.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

// Room of one row of `head_dim` floats that kernels may write in whole vectors.
constexpr std::int64_t padded_row(std::int64_t head_dim) {
  return (head_dim + kRowPadding - 1) / kRowPadding * kRowPadding;
}

// One of Q, K and V of a call.
struct Operand {
  ConstTensor tensor{};
  OperandFormat format{};
  OperandScales scales{};        // the caller's, or ours
  const float* means = nullptr;  // (sequence, head, column), where smoothed
  VLayout layout = VLayout::rows;
  bool packed = false;

  const float* mean(std::int64_t number, std::int64_t head) const {
    return means == nullptr ? nullptr : means + (number * tensor.shape[1] + head) * tensor.shape[3];
  }
};

class RowLoader {
 public:
  // `factors`: room for two padded rows, kept as long as the loader.
  RowLoader(const Kernels& kernels, const Operand& operand, const HeadOfSequence& rows,
            float* factors);

  // What the products use: the three stages below.
  void load(std::int64_t row, float* target) const {
    load_values(row, target);
    transform(target);
    round(row, target);
  }

  // Rows [begin, end), `pitch` floats apart.
  void load_block(std::int64_t begin, std::int64_t end, float* target, std::int64_t pitch) const;

  void load_values(std::int64_t row, float* target) const;  // as the caller means them
  void transform(float* row) const;                         // smoothed and rotated
  void round(std::int64_t row, float* values) const;        // to 16 or 8 bits, where asked

 private:
  void convert(std::int64_t row, std::int64_t rows, float* target, std::int64_t pitch) const;
  void gather(std::int64_t row, float* target) const;  // of a transposed V
  bool is_plain() const;                               // conversion is all there is to do
  float step(std::int64_t row) const {
    return operand_.scales.step(rows_.number, rows_.head, rows_.begin, row, 0);
  }

  const Kernels& kernels_;
  const Operand& operand_;
  const HeadOfSequence rows_;
  const ElementPlaces places_;
  const std::int64_t head_dim_;
  const float* channel_steps_ = nullptr;  // where each column has a scale of its own
  const float* channel_inverses_ = nullptr;
};

}  // namespace octavo::cpu
