// SPDX-License-Identifier: Apache-2.0
// Normalises rows of O and stores them with their LSE, at the end of a work tile. The decode kernel
// and the combine kernel share this code.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/core/score_rows.cuh"
#include "device/decode/geometry.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"

namespace octavo::decode {

// A row whose keys are all summed up.
struct FinishedRow {
  float factor = 0;  // from accumulated O to O; 0: the row has no keys, or is padding
  float lse = 0;

  // A row without keys is 0, whatever K and V hold.
  OCTAVO_DEVICE float value(float accumulated) const {
    return factor == 0.0f ? 0.0f : accumulated * factor;
  }
};

// `sum` is relative to 2^ref_max. The sink of the row's head is one more term of the sum. A row
// without keys gets O = 0 and LSE = -infinity.
OCTAVO_DEVICE FinishedRow finish_row(const Params& p, i32 head, bool padding, float ref_max,
                                     float sum) {
  if (padding) return {0, -kInfinity};
  float keep = 1;
  const float* const sinks = p.modifiers.scores.sinks;
  if (sinks != nullptr) {
    const float sink_log2 = add_bias<Element::f32>(0, load_modifier<true>(sinks + head));
    const float term = sink_term(sink_log2, ref_max, keep);
    sum = ptx::fused_multiply_add(sum, keep, term);
  }
  if (sum == 0.0f) return {0, -kInfinity};
  return {keep / sum, lse_of(ref_max, sum)};
}

OCTAVO_DEVICE void store_lse(const Params& p, const WorkTile& work, i32 row, float lse) {
  if (p.lse == nullptr) return;
  ptx::store_global_f32(p.lse + work.sequence * p.lse_strides.batch +
                            work.head(p, row) * p.lse_strides.head +
                            work.token(p, row) * p.lse_strides.row,
                        lse);
}

template <Element kOut>
OCTAVO_DEVICE u8* out_row(const Params& p, const WorkTile& work, i32 row) {
  return static_cast<u8*>(p.o) +
         (work.sequence * p.o_strides.batch + work.head(p, row) * p.o_strides.head +
          work.token(p, row) * p.o_strides.row) *
             element_bytes(kOut);
}

// Two neighbouring columns of a row; the first is even.
template <Element kOut>
OCTAVO_DEVICE void store_pair(u8* row, u32 column, float low, float high) {
  u8* const to = row + column * element_bytes(kOut);
  if constexpr (kOut == Element::f32)
    ptx::store_global_b64(to, ptx::bits_of(low), ptx::bits_of(high));
  else if constexpr (kOut == Element::f16)
    ptx::store_global_b32(to, ptx::f16x2_from_f32(low, high));
  else
    ptx::store_global_b32(to, ptx::bf16x2_from_f32(low, high));
}

// Two neighbouring columns of a row of the output; the first is even. With the first two columns
// goes the row's LSE.
template <Element kOut>
struct OutPair {
  const WorkTile& work;
  i32 row;
  u32 column;
  i32 head;
  bool padding;
  u8* to;

  OCTAVO_DEVICE OutPair(const Params& p, const WorkTile& work_tile, const SequenceSpan& span,
                        i32 row_of_tile, u32 first_column)
      : work(work_tile),
        row(row_of_tile),
        column(first_column),
        head(work.head(p, row)),
        padding(is_padding(span, work.token(p, row))),
        to(out_row<kOut>(p, work, row)) {}

  // Normalises the pair and stores it.
  OCTAVO_DEVICE void store(const Params& p, float ref_max, float sum, float low, float high) const {
    const FinishedRow finished = finish_row(p, head, padding, ref_max, sum);
    if (column == 0) store_lse(p, work, row, finished.lse);
    if (static_cast<i32>(column) < p.head_dim)
      store_pair<kOut>(to, column, finished.value(low), finished.value(high));
  }
};

// A partial result, with its number from parts.cuh: O, then the reference maximum and the sum of
// each row.
template <class G>
struct Partial {
  static constexpr DecodeConfig C = G::C;
  float* data;

  OCTAVO_DEVICE Partial(const Params& p, i32 number)
      : data(p.partials + static_cast<i64>(number) * partial_floats(C)) {}

  OCTAVO_DEVICE float* o(i32 row, u32 column) const { return data + row * C.head_dim + column; }
  OCTAVO_DEVICE float* ref_max(i32 row) const { return data + C.block_m * C.head_dim + row; }
  OCTAVO_DEVICE float* sum(i32 row) const { return ref_max(row) + C.block_m; }
};

}  // namespace octavo::decode
