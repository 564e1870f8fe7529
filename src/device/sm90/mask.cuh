// What happens to the scores of a block before the softmax: the sign of a negative softmax scale,
// the modifiers (modifiers.cuh), and the mask. Few blocks need a mask, and block_range
// (device/core) tells which.
//
// ptx::mask_term(x, without) is x; tests replace it by `without` (ptx/term.cuh).
#pragma once

#include "device/core/block_range.cuh"
#include "device/core/score_rows.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// The columns that row r sees in the block at key n, counted from this thread's first column.
template <class G>
OCTAVO_DEVICE ColumnRange seen_columns(const Sm90ForwardParams& p, const typename G::RowTile& tile,
                                       i32 n, u32 r) {
  return column_range<G::C.block_n>(key_limits(p, tile.span, tile.query(p, r)),
                                    first_column(n, tile.lane));
}

template <class G>
OCTAVO_DEVICE void mask_f32(float* s, const Sm90ForwardParams& p, const typename G::RowTile& tile,
                            i32 n) {
  OCTAVO_UNROLL
  for (u32 r = 0; r < 2; ++r) mask_row<G::kScoreN8>(s, r, seen_columns<G>(p, tile, n, r));
}

}  // namespace octavo::sm90
