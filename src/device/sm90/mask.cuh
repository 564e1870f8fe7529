// The mask: scores that a row does not see become -infinity. Few blocks need it, and block_range
// (device/core) tells which.
//
// ptx::mask_term(x, without) is x; tests replace it by `without` (ptx/term.cuh).
#pragma once

#include "device/core/block_range.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// The columns that row r sees in the block at key n, relative to this thread's first column.
struct ColumnRange {
  i32 begin, end;
};
template <class G>
OCTAVO_DEVICE ColumnRange column_range(const Sm90ForwardParams& p, const typename G::RowTile& tile,
                                       i32 n, u32 r) {
  const KeyLimits keys = key_limits(p, tile.at, tile.query(p, r));
  const i32 first_column = n + static_cast<i32>(tile.lane % 4 * 2);
  return {ptx::mask_term(keys.begin - first_column, -G::C.block_n),
          ptx::mask_term(keys.end - first_column, 2 * G::C.block_n)};
}

// Sets to -infinity the FP32 scores of row r in groups [from, to) of eight columns where
// is_seen(column) is false.
template <class Seen>
OCTAVO_DEVICE void hide_unseen(float* s, u32 r, int from, int to, Seen&& is_seen) {
  OCTAVO_UNROLL
  for (int i = from; i < to; ++i) {
    bool seen[2];
    OCTAVO_UNROLL
    for (int e = 0; e < 2; ++e) seen[e] = is_seen(i * 8 + e);
    OCTAVO_UNROLL
    for (int e = 0; e < 2; ++e) {
      float& score = s[i * 4 + r * 2 + e];
      score = seen[e] ? score : -kInfinity;
    }
  }
}

// Whether some row of the tile does not see all of keys [n, n + count): every row sees
// [full_begin, full_end).
OCTAVO_DEVICE bool needs_mask(i32 n, i32 count, i32 full_begin, i32 full_end) {
  return ptx::mask_term(n < full_begin, false) || ptx::mask_term(n + count > full_end, false);
}

template <class G>
OCTAVO_DEVICE void mask_f32(float* s, const Sm90ForwardParams& p, const typename G::RowTile& tile,
                            i32 n) {
  OCTAVO_UNROLL
  for (u32 r = 0; r < 2; ++r) {
    const ColumnRange seen = column_range<G>(p, tile, n, r);
    hide_unseen(s, r, 0, G::kScoreN8,
                [&](int column) { return column >= seen.begin && column < seen.end; });
  }
}

}  // namespace octavo::sm90
