// SPDX-License-Identifier: Apache-2.0
// The output of the split-KV kernel: the threads that reduced columns of O store them from
// registers, and LSE.
#pragma once

#include "device/core/output.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/output_element.cuh"
#include "device/sm90/split_exchange.cuh"

namespace octavo::sm90 {

// kInCta: registers of O that a thread has after the exchange in its CTA; kMine: after that in the
// cluster.
template <class G, class N, int kInCta, int kMine>
struct SplitOutput {
  using ThreadCoord = typename G::ThreadCoord;
  using RowTile = typename G::RowTile;
  using Out = OutputElement<G>;
  static constexpr Sm90ForwardConfig C = G::C;

  // Two lanes share four columns of each eight. Of 16 columns the even lane stores those of the
  // first eight, the odd lane those of the second, so that four lanes fill whole sectors of a row.
  // Pairs of columns would fill half a sector, and take 1.4 us at (2,8,512,128), where all CTAs
  // store at once.
  static constexpr bool kByFour = C.output.element != Element::f32 && kMine % 8 == 0;

  // Where a thread stores its part of O, in two rows. It is computed while the keys are loaded: at
  // the end its reads would add 0.1 to 0.2 us. If an SM holds several CTAs, the others hide those
  // reads, and the registers would cost one of the CTAs.
  static constexpr bool kDestinationFirst = C.cluster > 1 || 2 * G::S.total > kSmemBytes;
  struct Destination {
    u8* row[2];
    i32 columns[2];             // left in the row from there on; 0 if the row is not stored
    float inverse[2] = {1, 1};  // of the scales of 8-bit outputs
  };
  // The first of a thread's columns.
  static OCTAVO_DEVICE i32 first_column(const ThreadCoord& t, u32 rank) {
    return static_cast<i32>(G::kv_group(t) * kInCta + rank * kMine) * 2;
  }
  static OCTAVO_DEVICE bool exists(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    return is_below(p, tile, r, tile.span.seqlen_q);
  }
  // In a padded batch padding is stored too.
  static OCTAVO_DEVICE bool is_stored(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    return is_below(p, tile, r, G::stored_rows(p, tile.span));
  }
  static OCTAVO_DEVICE bool is_below(const Sm90ForwardParams& p, const RowTile& tile, u32 r,
                                     i32 rows) {
    const bool shares_keys = !C.pack_gqa || G::head_of(p, tile.row(r)) < p.heads_per_kv;
    return tile.query(p, r) < rows && shares_keys;
  }
  // The head that a row belongs to.
  static OCTAVO_DEVICE RowTile in_head(const Sm90ForwardParams& p, const RowTile& tile, u32 r) {
    RowTile of_head = tile;
    of_head.head += G::head_of(p, tile.row(r));
    return of_head;
  }
  static OCTAVO_DEVICE Destination destination(const Sm90ForwardParams& p, const RowTile& tile,
                                               u32 rank) {
    const u32 i = tile.lane % 4;
    const i32 column =
        first_column(tile, rank) + static_cast<i32>(kByFour ? i % 2 * 8 + i / 2 * 4 : i * 2);
    Destination to;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      to.row[r] = Out::row_address(p, in_head(p, tile, r), tile.query(p, r)) +
                  column * element_bytes(C.output.element);
      to.columns[r] = is_stored(p, tile, r) ? p.head_dim_v - column : 0;
      ptx::pin(to.row[r]);
      ptx::pin(to.columns[r]);
      if constexpr (is_8bit_out(C))
        to.inverse[r] = exists(p, tile, r) ? Out::inverse_scale(p, in_head(p, tile, r)) : 1.0f;
    }
    return to;
  }

  // Divides row r by its sum, which includes its sink. Padding becomes 0, and its sum 0.
  static OCTAVO_DEVICE void normalize(Partial<kMine>& mine, const Sm90ForwardParams& p,
                                      const RowTile& tile, u32 r) {
    float divisor = mine.sum[r];
    if constexpr (C.modifiers.sinks) {
      if (exists(p, tile, r))
        divisor =
            ScoreModifier<G>::add_sink(p, in_head(p, tile, r).head, mine.ref_max[r], mine.sum[r]);
    }
    N::template normalize_partial<kMine>(mine.o, r, divisor);
    if constexpr (C.modifiers.padded) {
      if (ptx::mask_term(tile.query(p, r) >= tile.span.seqlen_q, false)) {
        clear_row<kMine>(mine.o, r);
        mine.sum[r] = 0;
      }
    }
  }

  // `pairs`: of neighbouring columns of a row, from one eighth column to the next.
  static OCTAVO_DEVICE void store_row(const float (&pairs)[kMine / 4][2], u8* to, i32 columns,
                                      float inverse, bool odd) {
    if constexpr (kByFour) {
      OCTAVO_UNROLL
      for (int i = 0; i < kMine / 4; i += 2) {
        const u32 first = Out::pack(pairs[i][0], pairs[i][1], inverse);
        const u32 second = Out::pack(pairs[i + 1][0], pairs[i + 1][1], inverse);
        const u32 received = exchange_word(odd ? first : second, 1);
        if (i * 8 < columns)
          Out::store_two_pairs(to + i * 8 * element_bytes(C.output.element), odd ? received : first,
                               odd ? second : received);
      }
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < kMine / 4; ++i)
        if (i * 8 < columns)
          Out::store_pair(to + i * 8 * element_bytes(C.output.element), pairs[i][0], pairs[i][1],
                          inverse);
    }
  }

  // The rows of a warp belong to one head, or with pack_gqa perhaps each to another.
  static OCTAVO_DEVICE void store_amax(const float (&amax)[2], const Sm90ForwardParams& p,
                                       const RowTile& tile) {
    const OutputParams& output = Out::params(p);
    if constexpr (C.pack_gqa) {
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r) {
        const float of_row = largest_of_lanes<2>(amax[r]);
        if (tile.lane % 4 == 0 && exists(p, tile, r))
          update_amax(output, tile.sequence, in_head(p, tile, r).head, of_row);
      }
    } else {
      const float of_warp = largest_of_lanes<5>(ptx::max_f32(amax[0], amax[1]));
      if (tile.lane == 0) update_amax(output, tile.sequence, tile.head, of_warp);
    }
  }

  // The reduced columns of O, and from the first split LSE.
  static OCTAVO_DEVICE void store(const Partial<kMine>& mine, const Destination& to,
                                  const Sm90ForwardParams& p, const RowTile& tile, bool first) {
    float amax[2] = {0, 0};
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float pairs[kMine / 4][2];
      OCTAVO_UNROLL
      for (int i = 0; i < kMine / 4; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          pairs[i][e] = mine.o[i * 4 + r * 2 + e];
          if (C.output.amax && exists(p, tile, r)) amax[r] = larger_magnitude(amax[r], pairs[i][e]);
        }
      }
      store_row(pairs, to.row[r], to.columns[r], to.inverse[r], tile.lane % 2 != 0);
      if (first && is_stored(p, tile, r))
        Epilogue<G, N>::store_lse(mine.ref_max[r], mine.sum[r], p, in_head(p, tile, r),
                                  tile.query(p, r));
    }
    if (C.output.amax) store_amax(amax, p, tile);
  }
};

}  // namespace octavo::sm90
