// Tiles of a bias and of a mask tensor in shared memory: what belongs to the scores of a
// warpgroup's 64 rows and a block of keys. Warps that the producer does not need load them by TMA,
// as soon as the warpgroup has read those of the block before: a load has a whole block's time.
//
//   barrier           arrives                     waits           becomes true
//   score_full[g]     the loading warp, and the   warpgroup g     the tiles of a block are there
//                     tiles' bytes
//   score_empty[g]    4 warps of warpgroup g      loading warp    the tiles may be replaced
//
// A tensor that TMA cannot address has no tile: threads then load their own elements
// (modifiers.cuh).
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/scheduler.cuh"

namespace octavo::sm90 {

template <class G>
struct ScoreTiles {
  static constexpr Sm90ForwardConfig C = G::C;
  static constexpr u32 kLoadingWarps = 3;  // of the producer's warpgroup

  // The bytes of a warpgroup's tiles, 0 if no tensor has any.
  static OCTAVO_DEVICE u32 bytes(const ScoreModifierParams& m) {
    u32 sum = 0;
    if (C.bias && m.bias.tiled) sum += bias_tile_bytes(C);
    if (C.mask && m.mask.tiled) sum += mask_tile_bytes(C);
    return sum;
  }

  // --- loading ----------------------------------------------------------------------------------

  static OCTAVO_DEVICE void load(const ptx::TensorMap& map, const ScoreTensorParams& tensor, u32 to,
                                 u32 bar, const WorkTile& t, i32 first_row, i32 n, Panels panels) {
    OCTAVO_UNROLL
    for (int panel = 0; panel < panels.count; ++panel)
      ptx::tma_load(to + panel * kRows * panels.row_bytes, &map, bar,
                    {t.at.kv_begin + n + panel * panels.columns,
                     tensor.row != 0 ? t.at.q_begin + first_row : 0, tensor.head != 0 ? t.head : 0,
                     tensor.batch != 0 ? t.batch : 0});
  }
  // Whether a warpgroup computes the block at key n.
  static OCTAVO_DEVICE bool needs_block(const Sm90ForwardParams& p, const WorkTile& t,
                                        i32 first_row, i32 n) {
    if (first_row >= t.at.seqlen_q) return false;
    const BlockRange range = block_range(p, t.at, first_row, kRows, C.block_n);
    return n >= range.begin && n < range.end;
  }

  // By one warp, number `warp` of kLoadingWarps.
  static OCTAVO_DEVICE void run_loads(const Sm90ForwardParams& p, u32 warp) {
    const auto& modified = static_cast<const Sm90ForwardModifiedParams&>(p);
    const ScoreModifierParams& m = modified.modifiers.scores;
    const u32 tile_bytes = bytes(m);
    if (tile_bytes == 0) return;
    ptx::wait_for_earlier_grids();
    const bool leader = ptx::elect_one();
    u32 phases = 0;  // of the next tiles; a bit for each warpgroup
    for (TileScheduler tiles; tiles.has_tile(p); tiles.advance(p)) {
      const WorkTile t = work_tile<G>(p, tiles.index);
      for (i32 i = 0; i < t.n_blocks; ++i) {
        const i32 n = t.n_begin + visited_block<G>(t, i) * C.block_n;
        OCTAVO_ROLLED
        for (u32 group = warp; group < C.warpgroups; group += kLoadingWarps) {
          const i32 first_row = t.first_row + static_cast<i32>(group) * kRows;
          if (!needs_block(p, t, first_row, n)) continue;
          ptx::mbarrier_wait(G::score_empty(group), ~(phases >> group) & 1);
          ptx::warp_sync();
          phases ^= 1u << group;
          if (!leader) continue;
          const u32 bar = G::score_full(group);
          ptx::mbarrier_arrive_expect_tx(bar, tile_bytes);
          if (C.bias && m.bias.tiled)
            load(modified.bias, m.bias, G::bias_tile(group), bar, t, first_row, n, bias_panels(C));
          if (C.mask && m.mask.tiled)
            load(modified.mask, m.mask, G::mask_tile(group), bar, t, first_row, n, mask_panels(C));
        }
      }
    }
  }

  // --- reading, in the layout of the scores -----------------------------------------------------

  // The address of byte `byte` of a row of a tile. A tensor with one row for all queries has it
  // first.
  static OCTAVO_DEVICE u32 address(u32 tile, Panels panels, const ScoreTensorParams& tensor,
                                   u32 row, u32 byte) {
    const u32 panel = byte / panels.row_bytes;
    const u32 offset = (tensor.row != 0 ? row * panels.row_bytes : 0) + byte % panels.row_bytes;
    return tile + panel * kRows * panels.row_bytes + swizzled(swizzle_of(panels.row_bytes), offset);
  }

  // Calls use(r, i, first, second) with the bias of the thread's columns 8 i and 8 i + 1 of row r.
  template <class Use>
  static OCTAVO_DEVICE void for_each_bias(const ScoreTensorParams& bias,
                                          const typename G::RowTile& t, Use&& use) {
    constexpr Panels kPanels = bias_panels(C);
    const u32 tile = G::bias_tile(t.group);
    if constexpr (C.bias_element == Element::f32) {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; ++i) {
        OCTAVO_UNROLL
        for (u32 r = 0; r < 2; ++r) {
          u32 x, y;
          ptx::load_shared_b64(address(tile, kPanels, bias, t.warp * 16 + r * 8 + t.lane / 4,
                                       i * 32 + t.lane % 4 * 8),
                               x, y);
          use(r, i, ptx::float_of_bits(x), ptx::float_of_bits(y));
        }
      }
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < G::kScoreN8; i += 2) {
        u32 x[4];
        ptx::ldmatrix_x4(
            x, address(tile, kPanels, bias, t.warp * 16 + t.lane % 16, i * 16 + t.lane / 16 * 16));
        OCTAVO_UNROLL
        for (u32 e = 0; e < 4; ++e) {
          float first, second;
          bias_pair<C.bias_element>(x[e], first, second);
          use(e % 2, i + static_cast<int>(e / 2), first, second);
        }
      }
    }
  }
  // Calls use(r, i, first, second) with whether the thread's columns 8 i and 8 i + 1 of row r are
  // hidden. Four threads read the same 16 bytes, and each takes the pair of every eight that is its
  // own.
  template <class Use>
  static OCTAVO_DEVICE void for_each_hidden(const ScoreTensorParams& mask,
                                            const typename G::RowTile& t, Use&& use) {
    constexpr Panels kPanels = mask_panels(C);
    const u32 low = t.lane % 2 == 0 ? 0xffu : 0xff0000u, high = low << 8;
    const bool in_second_word = t.lane % 4 >= 2;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScoreN8; i += 2) {
      OCTAVO_UNROLL
      for (u32 r = 0; r < 2; ++r) {
        u32 x[4];
        ptx::load_shared_b128(
            address(G::mask_tile(t.group), kPanels, mask, t.warp * 16 + r * 8 + t.lane / 4, i * 8),
            x);
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const u32 word = in_second_word ? x[e * 2 + 1] : x[e * 2];
          use(r, i + e, (word & low) == 0, (word & high) == 0);
        }
      }
    }
  }
};

}  // namespace octavo::sm90
