// SPDX-License-Identifier: Apache-2.0
// A consumer thread's scores of a block, for code that changes them one by one: two neighbouring
// columns of every eight, of two rows.
#pragma once

#include "device/ptx/term.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/params.cuh"

namespace octavo::sm90 {

template <class G>
struct ScoreRegisters {
  using RowTile = typename G::RowTile;
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr bool kOverlaps = true;  // the grid may start before an earlier one has ended

  // Calls use(r, i, first, second) with the thread's scores of columns 8 i and 8 i + 1 of row r.
  // Where `use` loads, every kAtOnce calls are completed before the next begin: the compiler would
  // otherwise start more loads than there are registers for.
  template <int kAtOnce = G::kScoreN8, class Use>
  static OCTAVO_DEVICE void for_each_pair(float* s, Use&& use) {
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        float* const pair = s + i * 4 + r * 2;
        use(r, i, pair[0], pair[1]);
        if (kAtOnce < G::kScoreN8 && i % kAtOnce == kAtOnce - 1) pin_pairs<kAtOnce>(pair);
      }
    }
  }
  // The pairs of kCount groups of columns, the last of which is given.
  template <int kCount>
  static OCTAVO_DEVICE void pin_pairs(float* last) {
    OCTAVO_UNROLL
    for (int i = 0; i < kCount; ++i) {
      ptx::pin(*(last - i * 4));
      ptx::pin(*(last - i * 4 + 1));
    }
  }
  // Calls use(r, column, score).
  template <class Use>
  static OCTAVO_DEVICE void for_each_score(float* s, Use&& use) {
    for_each_pair(s, [&](u32 r, int i, float& first, float& second) {
      use(r, i * 8, first);
      use(r, i * 8 + 1, second);
    });
  }

  // The query and the head of row r. A row that does not exist gets those of one that does, so that
  // its reads are inside the tensors; its results are not stored.
  static OCTAVO_DEVICE i32 query_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    const i32 query = tile.query(p, r);
    return ptx::mask_term(query >= tile.span.seqlen_q, false) ? tile.span.seqlen_q - 1 : query;
  }
  static OCTAVO_DEVICE i32 head_of(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    if (!C.pack_gqa) return tile.head;
    const i32 head = G::head_of(p, tile.row(r));
    return tile.head + (ptx::mask_term(head >= p.heads_per_kv, false) ? p.heads_per_kv - 1 : head);
  }

  static OCTAVO_DEVICE void hide(float& score, bool is_hidden) {
    score = ptx::mask_term(is_hidden, false) ? -kInfinity : score;
  }
};

}  // namespace octavo::sm90
