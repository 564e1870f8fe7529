// SPDX-License-Identifier: Apache-2.0
// P V with 8-bit P and V, promoted to FP32: the product of each block goes to a separate fragment
// t, in slices of O's columns, and is added to O in FP32 registers. FP8 tensor cores keep about 14
// bits of what they accumulate; O accumulated in them would lose more the longer the sequence is.
//
// V is transposed: its rows are columns of O, in chunks of keys (config/v_layout.h), followed by
// rows of ones if the tensor cores sum P.
//
// `Format` describes P: Accumulator, mma(t, a, v, accumulate), promoted(o, t, rows, r), kOneBytes.
#pragma once

#include "config/v_layout.h"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/tma.cuh"
#include "device/sm90/epilogue.cuh"
#include "device/sm90/gemm.cuh"
#include "device/sm90/loads.cuh"
#include "device/sm90/numerics/quantized.cuh"

namespace octavo::sm90 {

template <class G, class Format>
struct PromotedPv {
  using P = typename G::P;
  using RowTile = typename G::RowTile;
  using Accumulator = typename Format::Accumulator;
  static constexpr Sm90ForwardConfig C = G::C;
  static_assert(C.pv_columns > 0 && C.pv_columns % 16 == 0 && C.head_dim % C.pv_columns == 0,
                "an 8-bit P V is computed in whole slices of O's columns");
  // Products of a block: slices of O's columns, for each part of its keys.
  static constexpr int kSlices = C.head_dim / C.pv_columns;
  static constexpr int kKeyParts = C.block_n / promoted_keys(C);
  static constexpr int kProducts = kSlices * kKeyParts;
  static constexpr int kProductSteps = promoted_keys(C) / G::kStepKeys;
  static_assert(
      kKeyParts == 1 ||
          (kKeyParts == 2 && promoted_keys(C) % 64 == 0 && kSlices == 1 && C.pv_buffers == 2),
      "keys are promoted at once, or in two halves that have all columns and a buffer each");
  static_assert(C.pv_buffers == 1 || (C.pv_buffers == 2 && kProducts % 2 == 0),
                "products take turns in two buffers");
  static constexpr bool kPollsBarriers = !is_split_kv(C);  // see mainloop.cuh

  static constexpr u32 kChunkKeys = chunk_keys(C);
  static constexpr u32 kChunkBytes = (C.head_dim + ones_columns(C)) * chunk_keys(C);

  // Registers of a slice, with the row sums that follow the last one, and of the other buffer's.
  static constexpr int kSlice = (C.pv_columns + ones_columns(C)) / 2;
  static constexpr int kOtherSlice = kKeyParts == 2      ? kSlice
                                     : C.pv_buffers == 2 ? C.pv_columns / 2
                                                         : 0;
  struct Slices {
    Registers<Accumulator, kOtherSlice> other;
    Registers<Accumulator, kSlice> main;
  };

  // Calls use(t) with the registers of a product. Each buffer has products of one width: with two
  // widths the compiler would run one after the other (C7511).
  template <class State, class Use>
  static OCTAVO_DEVICE void with_slice(State& state, int product, Use&& use) {
    if constexpr (C.pv_buffers == 2) {
      if (product % 2 == 0) return use(state.slices.other.x);
    }
    use(state.slices.main.x);
  }
  template <class State>
  static OCTAVO_DEVICE void pin_slice(State& state, int product) {
    with_slice(state, product, [](auto& t) { ptx::pin(t); });
  }

  static OCTAVO_DEVICE u64 v_descriptor(u32 stage, int step, int column) {
    constexpr Swizzle kSwizzle = swizzle_of(kChunkKeys);
    const u32 first = static_cast<u32>(k_major(G::v_tile(0), kSwizzle));
    const u32 key = step * G::kStepKeys;
    const u32 bytes = key / kChunkKeys * kChunkBytes + key % kChunkKeys + column * kChunkKeys;
    return descriptor(first + stage * (G::S.v_stage >> 4) + (bytes >> 4), kSwizzle);
  }
  template <class State>
  static OCTAVO_DEVICE void pv_step(State& state, const P& p, u32 stage, int step, int product) {
    const u64 v = v_descriptor(stage, step, product % kSlices * C.pv_columns);
    with_slice(state, product,
               [&](auto& t) { Format::mma(t, p.a[step], v, step % kProductSteps > 0); });
  }
  template <class State>
  static OCTAVO_DEVICE void start_product(State& state, P& p, u32 stage, int product) {
    pin_slice(state, product);
    pin_p(p);
    ptx::wgmma_fence();
    const int first = product / kSlices * kProductSteps;
    OCTAVO_UNROLL
    for (int step = 0; step < kProductSteps; ++step)
      pv_step(state, p, stage, first + step, product);
    ptx::wgmma_commit();
  }
  // O += t. The row sums are the last columns of the last slice.
  template <class State, class Rows>
  static OCTAVO_DEVICE void promote(State& state, const Rows& rows, int product) {
    constexpr int kRegisters = C.pv_columns / 2;
    const int slice = product % kSlices;
    with_slice(state, product, [&](auto& t) {
      OCTAVO_UNROLL
      for (int i = 0; i < (slice + 1 == kSlices ? kSlice : kRegisters); ++i) {
        float& o = state.o[slice * kRegisters + i];
        o = Format::promoted(o, t[i], rows, i % 4 / 2);
      }
    });
  }

  // `accumulate` has no meaning here: O is cleared at the start of a tile.
  template <class State>
  static OCTAVO_DEVICE void start_pv(State& state, P& p, u32 stage, bool /*accumulate*/) {
    start_product(state, p, stage, 0);
  }
  // Completes P V, whose first product is running, and issues the next Q K^T: with kQueued right
  // after the last product, without waiting for Q K^T; otherwise once that product is complete.
  template <bool kQueued, class State, class Rows, class IssueQk>
  static OCTAVO_DEVICE void finish_pv_then(State& state, P& p, u32 stage, const Rows& rows,
                                           IssueQk&& issue_next_qk) {
    OCTAVO_UNROLL
    for (int product = 0; product < kProducts; ++product) {
      const bool last = product + 1 == kProducts;
      const auto start_next = [&] {
        if (last)
          issue_next_qk();
        else
          start_product(state, p, stage, product + 1);
      };
      const bool queued = last ? kQueued : C.pv_buffers == 2;
      if (queued) {
        start_next();
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait<0>();
      }
      pin_slice(state, product);
      pin_p(p);
      if (last && !queued) start_next();
      promote(state, rows, product);
      if (!last && !queued) start_next();
    }
  }
  template <class State, class Rows>
  static OCTAVO_DEVICE void finish_pv(State& state, P& p, u32 stage, const Rows& rows) {
    finish_pv_then<false>(state, p, stage, rows, [] {});
  }
  template <class State>
  static OCTAVO_DEVICE void begin_o(State& state) {
    clear_o(state);
  }

  // --- producer ---------------------------------------------------------------------------------

  template <class Keys>
  static OCTAVO_DEVICE void load_v(const Sm90ForwardParams& p, u32 to, u32 bar,
                                   const SequenceSpan& span, i32 sequence, const Keys& n, i32 head,
                                   i32 batch) {
    const i32 begin = p.cu_seqlens_kv == nullptr ? 0 : varlen_v_begin(span.kv_begin, sequence);
    OCTAVO_UNROLL
    for (u32 chunk = 0; chunk < C.block_n / kChunkKeys; ++chunk)
      ptx::tma_load(to + chunk * kChunkBytes, &p.v, bar,
                    {begin + key_at<G>(n, static_cast<i32>(chunk * kChunkKeys)), 0, head, batch});
  }
  // Zeroes keys from `first` on in whole groups of 16: a sequence's last group is padded with
  // zeros.
  template <int kThreads>
  static OCTAVO_DEVICE void clear_v_tail(u32 tile, i32 first, u32 thread) {
    constexpr u32 kWords = C.head_dim * 4;  // of 16 keys
    for (u32 group = static_cast<u32>(div_up(max_of(first, 0), 16)); group < C.block_n / 16;
         ++group) {
      const u32 chunk = tile + group * 16 / kChunkKeys * kChunkBytes;
      for (u32 i = thread; i < kWords; i += kThreads) {
        const u32 offset = i / 4 * kChunkKeys + group * 16 % kChunkKeys + i % 4 * 4;
        ptx::store_shared_b32(chunk + swizzled(swizzle_of(kChunkKeys), offset), 0);
      }
    }
  }
  template <int kThreads>
  static OCTAVO_DEVICE void fill_constants([[maybe_unused]] u32 thread) {
    if constexpr (G::kOnes) {
      OCTAVO_UNROLL
      for (u32 stage = 0; stage < kv_buffers(C); ++stage) {
        OCTAVO_UNROLL
        for (u32 chunk = 0; chunk < C.block_n / kChunkKeys; ++chunk)
          fill_shared<kThreads>(G::v_tile(stage) + chunk * kChunkBytes + C.head_dim * kChunkKeys,
                                8 * kChunkKeys, thread, Format::kOneBytes);
      }
    }
  }
  static constexpr bool kFillsConstants = G::kOnes;

  // --- scales of V ------------------------------------------------------------------------------

  static OCTAVO_DEVICE const float* v_scale(const Sm90ForwardParams& p, const RowTile& tile,
                                            i32 column) {
    const ScaleParams& v = G::params_8bit(p).v_scales;
    return v.data + tile.sequence * v.batch + p.by_heads_per_kv.quotient(tile.head) * v.head +
           i64{column} * v.stride;
  }
  // One scale for each column of O, or one for a head. Each thread of the warpgroup loads some when
  // a tile begins, into shared memory. A lane's registers could not hold O and all scales that it
  // needs, and loads at the end took a seventh of the time at (8,16,2048,128).
  static constexpr int kVScales = div_up(C.head_dim, kWarpgroup);
  struct VScales {
    float x[kVScales];
  };
  template <class TileOf>
  static OCTAVO_DEVICE VScales load_v_scales(const Sm90ForwardParams& p, TileOf&& tile_of) {
    const RowTile tile = tile_of();
    VScales scales;
    OCTAVO_UNROLL
    for (int i = 0; i < kVScales; ++i) {
      const i32 column = i * kWarpgroup + static_cast<i32>(tile.warp * 32 + tile.lane);
      scales.x[i] = ptx::load_written_f32(v_scale(p, tile, column),
                                          ptx::mask_term(column < p.head_dim_v, true));
    }
    return scales;
  }
  // Call after the previous tile is stored.
  static OCTAVO_DEVICE void publish_v_scales(const VScales& scales, typename G::ThreadCoord t) {
    ptx::pin(t.lane);
    warpgroup_sync(t);  // no thread still reads the previous tile's scales
    OCTAVO_UNROLL
    for (u32 i = 0; i < kVScales; ++i) {
      const u32 column = i * kWarpgroup + t.warp * 32 + t.lane;
      if (column < C.head_dim)
        ptx::store_shared_f32(G::v_scales(t.group) + column * 4, scales.x[i]);
    }
  }
  template <class State>
  static OCTAVO_DEVICE void scale_o(State& state, const RowTile& tile) {
    ptx::spare("those who stored them took part in every product of the tile since");
    warpgroup_sync(tile);
    OCTAVO_UNROLL
    for (int i = 0; i < G::kORegisters / 4; ++i) {
      u32 scales[2];
      ptx::load_shared_b64(
          G::v_scales(tile.group) + (static_cast<u32>(i) * 8 + tile.lane % 4 * 2) * 4, scales[0],
          scales[1]);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) state.o[i * 4 + e] *= ptx::float_of_bits(scales[e % 2]);
    }
  }
  // Split-KV: scales of a thread's columns from `first` on, for kCount registers of O. A load at
  // the end is hidden only if an SM holds several CTAs; if so, it is done there, to save registers.
  template <int kCount>
  struct ColumnScales {
    static constexpr bool kFirst = C.min_ctas == 1;
    float x[kCount / 2];

    OCTAVO_DEVICE void load(const Sm90ForwardParams& p, const RowTile& tile, i32 first) {
      const i32 stride = G::params_8bit(p).v_scales.stride;
      const i32 mine = first + static_cast<i32>(tile.lane % 4 * 2);
      const float* const scale = v_scale(p, tile, mine);
      OCTAVO_UNROLL
      for (int i = 0; i < kCount / 2; ++i) {
        const bool exists = mine + i / 2 * 8 < p.head_dim_v;
        x[i] = ptx::load_written_f32(scale + (i / 2 * 8 + i % 2) * stride, exists);
      }
    }
    OCTAVO_DEVICE void load_first(const Sm90ForwardParams& p, const RowTile& tile, i32 first) {
      if (kFirst) load(p, tile, first);
    }
    OCTAVO_DEVICE void load_last(const Sm90ForwardParams& p, const RowTile& tile, i32 first) {
      if (!kFirst) load(p, tile, first);
    }
    OCTAVO_DEVICE void multiply(float* o) const {
      OCTAVO_UNROLL
      for (int i = 0; i < kCount; ++i) o[i] *= x[i / 4 * 2 + i % 2];
    }
  };
};

}  // namespace octavo::sm90
