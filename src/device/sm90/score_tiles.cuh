// SPDX-License-Identifier: Apache-2.0
// Tiles of a bias and of a mask tensor in shared memory: the elements for a warpgroup's 64 rows and
// a block of keys. The other warps of the producer's warpgroup load them by TMA, as soon as the
// consumer has read the previous block's: a load has a whole block's time. They also pack the
// mask's bytes into bits, so that a consumer sees at once that a block hides nothing.
//
// clang-format off
//   barrier          arrives                        waits           becomes true
//   mask_loaded[g]   loading warp, and the bytes    loading warp    the mask's bytes are loaded
//   score_full[g]    loading warp, and the bias's   warpgroup g     a block's tiles are loaded
//                    bytes; again with the bits
//   score_empty[g]   4 warps of warpgroup g         loading warp    the tiles may be replaced
// clang-format on
//
// The tensors must be addressable by TMA. In kernels without score_tiles each thread loads the
// elements for its own scores (score_loads.cuh).
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/sm90/geometry.cuh"
#include "device/sm90/scheduler.cuh"
#include "device/sm90/score_registers.cuh"

namespace octavo::sm90 {

// Which of a thread's scores of a block a mask shows: bit 8 i + e of row r is column 8 i + e, with
// 32 columns in a word. Other bits mean nothing.
template <int kColumns>
struct VisibleScores {
  static constexpr int kWords = div_up(kColumns, 32);
  u32 bits[2][kWords];

  OCTAVO_DEVICE bool operator()(u32 r, int column) const {
    return (bits[r][column / 32] >> column % 32 & 1) != 0;
  }
  OCTAVO_DEVICE bool all() const {
    constexpr u32 kOwn = 0x03030303u, kLastOwn = kColumns % 32 == 0 ? kOwn : kOwn & 0xffffu;
    u32 own = ~0u;
    OCTAVO_UNROLL
    for (int i = 0; i + 1 < kWords; ++i) own &= bits[0][i] & bits[1][i];
    const u32 last = bits[0][kWords - 1] & bits[1][kWords - 1];
    return (own & kOwn) == kOwn && (last & kLastOwn) == kLastOwn;
  }
};

template <class G>
struct ScoreTiles {
  static constexpr Sm90ForwardConfig C = G::C;
  static_assert(!C.modifiers.score_tiles || (!is_split_kv(C) && C.block_n <= kMaskBits),
                "a row of bits has all keys");
  using RowTile = typename G::RowTile;
  static constexpr u32 kLoadingWarps = 3;  // of the producer's warpgroup

  static OCTAVO_DEVICE bool has_bias(const ScoreModifierParams& m) {
    return C.modifiers.bias && m.bias.data != nullptr;
  }
  static OCTAVO_DEVICE bool has_mask(const ScoreModifierParams& m) {
    return C.modifiers.mask && m.mask.data != nullptr;
  }
  static OCTAVO_DEVICE bool has_any(const ScoreModifierParams& m) {
    return has_bias(m) || has_mask(m);
  }

  static OCTAVO_DEVICE void init_barriers(u32 group) {
    ptx::mbarrier_init(G::score_full(group), C.modifiers.mask ? 2 : 1);
    ptx::mbarrier_init(G::score_empty(group), 4);
    ptx::mbarrier_init(G::mask_loaded(group), 1);
  }
  // Waits for a block's tiles, if there are any; returns whether there are.
  static OCTAVO_DEVICE bool wait(const Sm90ForwardParams& p, u32 group, u32 phase) {
    if (!has_any(G::modifiers(p).scores)) return false;
    ptx::mbarrier_wait(G::score_full(group), phase);
    return true;
  }

  // The address of byte `byte` of a row of a tile. A tensor with one row for all queries has it
  // first.
  static OCTAVO_DEVICE u32 address(u32 tile, Panels panels, const ScoreTensorParams& tensor,
                                   u32 row, u32 byte) {
    const u32 panel = byte / panels.row_bytes;
    const u32 offset = (tensor.row != 0 ? row * panels.row_bytes : 0) + byte % panels.row_bytes;
    return tile + panel * kRows * panels.row_bytes + swizzled(swizzle_of(panels.row_bytes), offset);
  }

  // --- loading ----------------------------------------------------------------------------------

  // The tiles of a warpgroup for the block at key n.
  struct Block {
    const WorkTile& t;
    u32 group;
    i32 first_row, n;
  };
  static OCTAVO_DEVICE void load(const ptx::TensorMap& map, const ScoreTensorParams& tensor, u32 to,
                                 u32 bar, const Block& b, Panels panels) {
    ptx::mbarrier_arrive_expect_tx(bar, kRows * panels.row_bytes * panels.count);
    OCTAVO_UNROLL
    for (int panel = 0; panel < panels.count; ++panel)
      ptx::tma_load(to + panel * kRows * panels.row_bytes, &map, bar,
                    {b.t.span.kv_begin + b.n + panel * panels.columns,
                     tensor.row != 0 ? b.t.span.q_begin + b.first_row : 0,
                     tensor.head != 0 ? head_of<C>(b.t) : 0, tensor.batch != 0 ? b.t.batch : 0});
  }
  // Whether the warpgroup computes the block.
  static OCTAVO_DEVICE bool is_needed(const Sm90ForwardParams& p, const Block& b) {
    if (b.first_row >= b.t.span.seqlen_q) return false;
    const BlockRange range = block_range(p, b.t.span, b.first_row, kRows, C.block_n);
    return b.n >= range.begin && b.n < range.end;
  }

  // Four bits above `bits`: which of four bytes are not 0.
  static OCTAVO_DEVICE u32 push_visible(u32 bits, u32 bytes) {
    constexpr u32 kLow = 0x7f7f7f7fu, kGather = 0x00204081u;
    const u32 highest = (((bytes & kLow) + kLow) | bytes) & ~kLow;
    return bits << 4 | (highest * kGather) >> 28;
  }
  // Two rows by each lane.
  static OCTAVO_DEVICE void pack_mask(const ScoreTensorParams& mask, u32 group) {
    OCTAVO_ROLLED
    for (u32 row = ptx::lane_index(); row < kRows; row += 32) {
      u32 bits[4] = {0, 0, 0, 0};
      OCTAVO_UNROLL
      for (int chunk = C.block_n / 16 - 1; chunk >= 0; --chunk) {
        u32 x[4];
        ptx::load_shared_b128(address(G::mask_tile(group), mask_panels(C), mask, row, chunk * 16),
                              x);
        OCTAVO_UNROLL
        for (int i = 3; i >= 0; --i) bits[chunk / 2] = push_visible(bits[chunk / 2], x[i]);
      }
      ptx::store_shared_b128(G::mask_bits(group) + row * (kMaskBits / 8), bits);
    }
    ptx::warp_sync();
  }

  static OCTAVO_DEVICE void load_block(const Sm90ForwardModifiedParams& p, const Block& b,
                                       u32 phase, bool leader) {
    const ScoreModifierParams& m = p.modifiers.scores;
    const u32 bar = G::score_full(b.group);
    if (leader && has_mask(m))
      load(p.mask, m.mask, G::mask_tile(b.group), G::mask_loaded(b.group), b, mask_panels(C));
    ptx::mbarrier_wait(G::score_empty(b.group), phase ^ 1);
    if (C.modifiers.mask) ptx::spare("lanes that pack a mask synchronise");
    ptx::warp_sync();
    if (leader && has_bias(m)) load(p.bias, m.bias, G::bias_tile(b.group), bar, b, bias_panels(C));
    if (leader && !has_bias(m)) ptx::mbarrier_arrive(bar);
    if (C.modifiers.mask) {
      if (has_mask(m)) {
        ptx::mbarrier_wait(G::mask_loaded(b.group), phase);
        pack_mask(m.mask, b.group);
      }
      if (leader) ptx::mbarrier_arrive(bar);
    }
  }

  // By one warp, number `warp` of kLoadingWarps.
  static OCTAVO_DEVICE void run_loads(const Sm90ForwardParams& p, u32 warp) {
    const auto& modified = static_cast<const Sm90ForwardModifiedParams&>(p);
    if (!has_any(modified.modifiers.scores)) return;
    ptx::wait_for_earlier_grids();
    const bool leader = ptx::elect_one();
    u32 phases = 0;  // of the next tiles; a bit for each warpgroup
    for (TileScheduler tiles; tiles.has_tile(p); tiles.advance(p)) {
      const WorkTile t = work_tile<G>(p, tiles.index);
      for (i32 i = 0; i < t.n_blocks; ++i) {
        OCTAVO_ROLLED
        for (u32 group = warp; group < C.warpgroups; group += kLoadingWarps) {
          const Block block{t, group, t.first_row + static_cast<i32>(group) * kRows,
                            first_key<G>(t, i)};
          if (!is_needed(p, block)) continue;
          load_block(modified, block, phases >> group & 1, leader);
          phases ^= 1u << group;
        }
      }
    }
  }

  // --- reading, in the layout of the scores -----------------------------------------------------

  // Adds a bias to scores that `scale` converts to natural units.
  static OCTAVO_DEVICE void add_bias(float* s, float scale, const ScoreTensorParams& bias,
                                     const Sm90ForwardParams&, const RowTile& t, i32 /*n*/) {
    constexpr Panels kPanels = bias_panels(C);
    const u32 tile = G::bias_tile(t.group);
    const auto add = [&](u32 r, int i, float first, float second) {
      float* const pair = s + i * 4 + r * 2;
      pair[0] = ptx::fused_multiply_add(pair[0], scale, first);
      pair[1] = ptx::fused_multiply_add(pair[1], scale, second);
    };
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScoreN8; i += 2) {
      u32 x[4];
      if (C.modifiers.bias_element == Element::f32) {
        OCTAVO_UNROLL
        for (u32 e = 0; e < 4; ++e) {
          const u32 row = t.warp * 16 + e % 2 * 8 + t.lane / 4;
          const u32 byte = (i + e / 2) * 32 + t.lane % 4 * 8;
          ptx::load_shared_b64(address(tile, kPanels, bias, row, byte), x[0], x[1]);
          add(e % 2, i + static_cast<int>(e / 2), ptx::float_of_bits(x[0]),
              ptx::float_of_bits(x[1]));
        }
      } else {
        const u32 row = t.warp * 16 + t.lane % 16;
        ptx::ldmatrix_x4(x, address(tile, kPanels, bias, row, i * 16 + t.lane / 16 * 16));
        OCTAVO_UNROLL
        for (u32 e = 0; e < 4; ++e) {
          float first, second;
          bias_pair<C.modifiers.bias_element>(x[e], first, second);
          add(e % 2, i + static_cast<int>(e / 2), first, second);
        }
      }
    }
  }

  static OCTAVO_DEVICE void hide_masked(float* s, const ScoreTensorParams&,
                                        const Sm90ForwardParams&, const RowTile& t, i32 /*n*/) {
    const VisibleScores<C.block_n> seen = visible(t);
    if (!ptx::warp_any(!seen.all())) return;
    ScoreRegisters<G>::for_each_score(s, [&](u32 r, int column, float& score) {
      ScoreRegisters<G>::hide(score, !seen(r, column));
    });
  }
  static OCTAVO_DEVICE VisibleScores<C.block_n> visible(const RowTile& t) {
    VisibleScores<C.block_n> seen;
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const u32 row = t.warp * 16 + r * 8 + t.lane / 4;
      u32 x[4];
      ptx::load_shared_b128(G::mask_bits(t.group) + row * (kMaskBits / 8), x);
      OCTAVO_UNROLL
      for (int i = 0; i < seen.kWords; ++i) seen.bits[r][i] = x[i] >> t.lane % 4 * 2;
    }
    return seen;
  }
};

}  // namespace octavo::sm90
