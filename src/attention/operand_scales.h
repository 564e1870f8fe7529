// SPDX-License-Identifier: Apache-2.0
// The caller's scales of one 8-bit operand: of a dense batch, a varlen batch or a paged cache.
#pragma once

#include <cstdint>

#include "attention/element_offsets.h"
#include "attention/sequence.h"
#include "numeric/scale.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct OperandScales {
  const float* data = nullptr;
  DType format = DType::e4m3;
  ScaleIndex index{};
  bool by_token = false;  // row scales of a varlen batch: indexed by token, not by sequence

  // The factor of a quantized element. `row` counts from the sequence's first row.
  float step(const HeadOfSequence& of, std::int64_t row, std::int64_t column) const {
    return step_of(format, data[place(of, row, column)]);
  }
  std::int64_t place(const HeadOfSequence& of, std::int64_t row, std::int64_t column) const {
    if (by_token) return index.at(0, of.head, of.begin + row, column);
    if (!of.pages.present()) return index.at(of.number, of.head, row, column);
    const PageTable::Row found = of.pages.find(of.number, row);
    return index.at(found.page, of.head, found.row, column);
  }
};

// V as a tensor with K's batch, heads and rows and V's own columns. Its scales are indexed by these
// in either layout (element_offsets.h).
inline ConstTensor v_by_rows(const Arguments& a) {
  ConstTensor v = a.v;
  v.shape = a.k.shape;
  v.shape[3] = a.v.shape[a.v_layout == VLayout::rows ? 3 : 2];
  return v;
}

// The tensor shape from which the shape of the scale array follows. In a call with a paged cache
// only K and V have scales.
inline std::array<std::int64_t, 4> scale_shape(const Arguments& a, const ConstTensor& tensor,
                                               const Scales& scales, std::int64_t max_len) {
  if (is_paged(a) && scales.granularity == Granularity::head)
    return {1, tensor.shape[1], tensor.shape[2], tensor.shape[3]};
  if (!is_varlen(a) || scales.granularity == Granularity::row) return tensor.shape;
  return {a.sequences, tensor.shape[1], max_len, tensor.shape[3]};
}

inline OperandScales operand_scales(const Arguments& a, const ConstTensor& tensor,
                                    const Scales& scales, std::int64_t max_len) {
  ScaleIndex index = scale_index(scales, scale_shape(a, tensor, scales, max_len));
  // All pages, and so all sequences, share the scale of a head.
  if (is_paged(a) && scales.granularity == Granularity::head) index.stride[0] = 0;
  return {scales.data, tensor.dtype, index, is_varlen(a) && scales.granularity == Granularity::row};
}

// The number of floats from the first scale of an operand to its last, inclusive.
inline std::int64_t scales_extent(const Arguments& a, const ConstTensor& tensor,
                                  const Scales& scales, std::int64_t max_len) {
  if (scales.granularity == Granularity::tensor) return 1;
  const auto shape = scale_shape(a, tensor, scales, max_len);
  const ScaleIndex index = scale_index(scales, shape);
  const std::int64_t per_head = scales_per_head(shape, scales.granularity, scales.block_rows);
  if (shape[0] == 0 || shape[1] == 0 || per_head == 0) return 0;
  return (shape[0] - 1) * index.stride[0] + (shape[1] - 1) * index.stride[1] +
         (per_head - 1) * index.stride[2] + 1;
}

// `out_amax` as a tensor: one float, or one float for each sequence and head.
inline Tensor amax_view(const Problem& run_problem, const Arguments& a) {
  const bool of_heads = run_problem.out_scales == Granularity::head;
  return Tensor::bhsd(a.out_amax, DType::f32, of_heads ? run_problem.batch : 1,
                      of_heads ? run_problem.heads_q : 1, 1, 1);
}
inline std::int64_t amax_floats(const Problem& run_problem, const Arguments& a) {
  if (a.out_amax == nullptr) return 0;
  const Tensor view = amax_view(run_problem, a);
  return view.shape[0] * view.shape[1];
}

}  // namespace octavo
