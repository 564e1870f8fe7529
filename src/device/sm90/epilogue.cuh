// After the last block: O is normalised and stored, LSE written.
#pragma once

#include "config/v_layout.h"
#include "device/core/output.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/tma.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Epilogue {
  using State = typename G::State;
  using Rows = typename G::Rows;
  using Lane = typename G::Lane;
  using Place = typename G::Place;
  static constexpr Sm90Forward C = G::C;
  static constexpr bool kStages = stages_o(C);

  // Named barriers of the warpgroups; 0 is the CTA's.
  static OCTAVO_DEVICE void group_sync(const Lane& w) {
    ptx::named_barrier_sync(static_cast<int>(1 + w.group), kWarpgroup);
  }

  static OCTAVO_DEVICE float over_row(float own) {
    const float of_two = own + ptx::shuffle_xor(own, 1);
    return of_two + ptx::shuffle_xor(of_two, 2);
  }
  static OCTAVO_DEVICE float sum_of(const State& state, const Rows& rows, u32 half) {
    if constexpr (G::kOnes) return state.o[G::kColumns + half * 2];
    return over_row(rows.sum[half]);
  }

  // How O is divided by a sum; without keys it is 0.
  struct Division {
    float inverse, from;
  };
  // Bytes of V count from kZeroByte (config/v_layout.h), and so does what O is divided to. O and
  // the sum of P's bytes are rounded each in its own way, by some 1e-5 of a step of V, or 1e-4 with
  // 1e5 keys, and a V of zeros is to give zeros: what is left is rounded to 2^-11 or 2^-10 of one.
  static constexpr float kCoarse = 8192;
  static OCTAVO_DEVICE Division division_by(float sum) {
    const bool none = sum == 0.0f;
    return {none ? 0.0f : ptx::reciprocal_approx(sum), none ? kCoarse : kCoarse - kZeroByte};
  }
  // One row's registers of kCount.
  template <bool kBytes, int kCount>
  static OCTAVO_DEVICE void divide(float* registers, u32 half, const Division& by) {
    OCTAVO_UNROLL
    for (u32 i = 0; i < kCount / 2; ++i) {
      float& o = registers[i / 2 * 4 + half * 2 + i % 2];
      o = kBytes ? ptx::fused_multiply_add(o, by.inverse, by.from) - kCoarse : o * by.inverse;
    }
  }
  // Where sums are of exact weights, O is still one of bytes.
  static constexpr bool kSumsApart = G::kIntegers && !C.ones;
  static OCTAVO_DEVICE Division division_of(const Rows& rows, u32 half, float sum) {
    return division_by(kSumsApart ? over_row(rows.bytes[half]) : sum);
  }

  // Divides O by the sum and writes LSE. A row without keys gets 0 and -infinity.
  static OCTAVO_DEVICE void finish(State& state, const Rows& rows, const Sm90ForwardParams& p,
                                   const Place& w) {
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const float sum = sum_of(state, rows, half);
      divide<G::kIntegers, G::kColumns>(state.o, half, division_of(rows, half, sum));
      const i32 row = w.row(half);
      if (row < w.at.len_q) store_lse(rows.origin[half], sum, p, w, row);
    }
    if constexpr (G::kFolds) scale_values(state, w);
  }

  // Where the scale of a column of V is, which one lane has with the next.
  static OCTAVO_DEVICE const float* v_scale(const Sm90ForwardParams& p, const Place& w,
                                            i32 column) {
    const ScaleParams& v = G::in_8_bits(p).v_scales;
    return v.data + w.sequence * v.batch + p.by_heads_per_kv.quotient(w.head) * v.head +
           i64{column} * v.stride;
  }
  // All columns of O times the scales of V: by column, or one for all of a head. They come by way
  // of shared memory, a thread of the warpgroup for each: all that a lane needs would not fit
  // beside O, and one after the other they took a seventh of the time at (8,16,2048,128). They are
  // loaded when a tile begins, and wait there for its end.
  struct ValueScales {
    float by[div_up(C.head_dim, kWarpgroup)];
  };
  static OCTAVO_DEVICE ValueScales load_value_scales(const Sm90ForwardParams& p, const Place& w) {
    ValueScales scales;
    OCTAVO_UNROLL
    for (int i = 0; i < div_up(C.head_dim, kWarpgroup); ++i) {
      const i32 column = i * kWarpgroup + static_cast<i32>(w.warp * 32 + w.lane);
      scales.by[i] =
          ptx::load_written_f32(v_scale(p, w, column), ptx::mask_term(column < p.head_dim, true));
    }
    return scales;
  }
  static OCTAVO_DEVICE void put_value_scales(const ValueScales& scales, const Lane& w) {
    group_sync(w);  // nobody reads those of the last tile
    OCTAVO_UNROLL
    for (u32 i = 0; i < div_up(C.head_dim, kWarpgroup); ++i) {
      const u32 column = i * kWarpgroup + w.warp * 32 + w.lane;
      if (column < C.head_dim)
        ptx::store_shared_f32(G::v_scales(w.group) + column * 4, scales.by[i]);
    }
  }
  static OCTAVO_DEVICE void scale_values(State& state, const Place& w) {
    ptx::spare("those who put them took part in every product of the tile since");
    group_sync(w);
    OCTAVO_UNROLL
    for (int i = 0; i < G::kColumns / 4; ++i) {
      u32 by[2];
      ptx::load_shared_b64(G::v_scales(w.group) + (static_cast<u32>(i) * 8 + w.lane % 4 * 2) * 4,
                           by[0], by[1]);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) state.o[i * 4 + e] *= ptx::float_of_bits(by[e % 2]);
    }
  }
  // The same of columns from `first` on, in two steps.
  template <int kScales>
  static OCTAVO_DEVICE void load_v_scales(float (&by)[kScales], const Sm90ForwardParams& p,
                                          const Place& w, i32 first) {
    const i32 stride = G::in_8_bits(p).v_scales.stride;
    const i32 mine = first + static_cast<i32>(w.lane % 4 * 2);
    const float* const scale = v_scale(p, w, mine);
    OCTAVO_UNROLL
    for (int i = 0; i < kScales; ++i) {
      const bool exists = mine + i / 2 * 8 < p.head_dim;
      by[i] = ptx::load_written_f32(scale + (i / 2 * 8 + i % 2) * stride, exists);
    }
  }
  template <int kScales>
  static OCTAVO_DEVICE void scale_values(float (&o)[kScales * 2], const float (&by)[kScales]) {
    OCTAVO_UNROLL
    for (int i = 0; i < kScales * 2; ++i) o[i] *= by[i / 4 * 2 + i % 2];
  }

  // `sum` is over the row, in every lane that holds it.
  static OCTAVO_DEVICE void store_lse(float origin, float sum, const Sm90ForwardParams& p,
                                      const Place& w, i32 row) {
    if (p.lse == nullptr || w.lane % 4 != 0) return;
    const float lse_log2 = origin + ptx::log2_approx(sum) - (G::kProbabilityLog2 + G::kSumLog2);
    ptx::store_global_f32(p.lse + w.batch * p.lse_strides.batch + w.head * p.lse_strides.head +
                              (w.at.q_begin + row) * p.lse_strides.row,
                          sum == 0.0f ? -kInfinity : lse_log2 * kLn2);
  }

  static OCTAVO_DEVICE const OutputParams& output_of(const Sm90ForwardParams& p) {
    return static_cast<const Sm90ForwardOutputParams&>(p).output;
  }
  // What values are multiplied by before they are packed; only 8 bits look at it.
  static OCTAVO_DEVICE float inverse_of(const Sm90ForwardParams& p, const Place& w) {
    if constexpr (codes_out(C)) return inverse_out_scale(output_of(p), w.sequence, w.head);
    return 1.0f;
  }

  // Two neighbours, as they are stored; 8 bits fill half a word.
  static OCTAVO_DEVICE u32 pack(float low, float high, float inverse = 1.0f) {
    if constexpr (codes_out(C)) return out_codes<C.out>(low, high, inverse);
    return C.out == Element::f16 ? ptx::f16x2_from_f32(low, high) : ptx::bf16x2_from_f32(low, high);
  }

  // The largest of the warp's rows that exist. Columns that do not are 0, or not finite.
  static OCTAVO_DEVICE void find_amax(const State& state, const Sm90ForwardParams& p,
                                      const Place& w) {
    float amax = 0;
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      if (w.row(half) >= w.at.len_q) continue;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kColumns / 4; ++i) {
        amax = larger_magnitude(amax, state.o[i * 4 + half * 2]);
        amax = larger_magnitude(amax, state.o[i * 4 + half * 2 + 1]);
      }
    }
    amax = largest_of_lanes<5>(amax);
    if (w.lane == 0) gather_amax(output_of(p), w.sequence, w.head, amax);
  }

  // The warpgroup's 64 rows into its tile of shared memory, swizzled as the tensor map says.
  static OCTAVO_DEVICE void stage_o(const State& state, const Place& w) {
    const u32 row = w.warp * 16 + w.lane % 16;
    OCTAVO_UNROLL
    for (int i = 0; i < C.head_dim / 16; ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) x[e] = pack(state.o[i * 8 + e * 2], state.o[i * 8 + e * 2 + 1]);
      const u32 column = i * 16 + w.lane / 16 * 8;
      const u32 block = i * 16 / G::kQkBlocks.columns;
      const u32 offset = row * G::kRowBytes + column % G::kQkBlocks.columns * 2;
      ptx::stmatrix_x4(
          G::o_tile(w.group) + block * kRows * G::kRowBytes + swizzled(G::kSwizzle, offset), x);
    }
  }

  static OCTAVO_DEVICE u8* row_of(const Sm90ForwardParams& p, const Place& w, i32 row) {
    return static_cast<u8*>(p.out) + (w.batch * p.o_strides.batch + w.head * p.o_strides.head +
                                      (w.at.q_begin + row) * p.o_strides.row) *
                                         element_bytes(C.out);
  }
  static OCTAVO_DEVICE void store_pair(u8* to, float low, float high, float inverse = 1.0f) {
    if constexpr (C.out == Element::f32)
      ptx::store_global_b64(to, ptx::bits_of(low), ptx::bits_of(high));
    else if constexpr (codes_out(C))
      ptx::store_global_b16(to, static_cast<u16>(pack(low, high, inverse)));
    else
      ptx::store_global_b32(to, pack(low, high));
  }
  // Two pairs that are neighbours, packed before.
  static OCTAVO_DEVICE void store_four(u8* to, u32 first, u32 second) {
    if constexpr (codes_out(C))
      ptx::store_global_b32(to, first | second << 16);
    else
      ptx::store_global_b64(to, first, second);
  }

  static OCTAVO_DEVICE u32 exchanged(u32 x, int mask) {
    return ptx::bits_of(ptx::shuffle_xor(ptx::float_of_bits(x), mask));
  }
  // Lane i of each four has word i of what it needs from all of them, x[0] to x[3]: after this, the
  // words x[i] of lanes 0 to 3.
  static OCTAVO_DEVICE void transpose(u32 (&x)[4], u32 lane) {
    OCTAVO_UNROLL
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (lane & bit) != 0;
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const u32 received = exchanged(upper ? x[i] : x[i + bit], bit);
        if (upper)
          x[i] = received;
        else
          x[i + bit] = received;
      }
    }
  }

  // How many columns from the lane's first on it stores, of a row that may not exist.
  static OCTAVO_DEVICE i32 columns_left(const Sm90ForwardParams& p, const Place& w, i32 row,
                                        i32 first) {
    return row < w.at.len_q ? p.head_dim - first : 0;
  }

  // Straight from registers: where O has no room of its own, and where a tile's last rows belong to
  // the next sequence of a packed batch. Four lanes share a row: each stores eight columns of 32.
  static OCTAVO_DEVICE void store_direct(const State& state, const Sm90ForwardParams& p,
                                         const Place& w) {
    const i32 first = static_cast<i32>(w.lane % 4 * 8);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = w.row(half);
      const i32 columns = columns_left(p, w, row, first);
      u8* const out = row_of(p, w, row) + first * element_bytes(C.out);
      OCTAVO_UNROLL
      for (int i = 0; i < G::kColumns / 4; i += 4) {
        u32 x[4];
        OCTAVO_UNROLL
        for (int b = 0; b < 4; ++b)
          x[b] = pack(state.o[(i + b) * 4 + half * 2], state.o[(i + b) * 4 + half * 2 + 1]);
        transpose(x, w.lane);
        if (i * 8 < columns) ptx::store_global_b128(out + i * 8 * element_bytes(C.out), x);
      }
    }
  }
  // Lane i of each four has pairs of codes of blocks 0 and 1 in x[0], of 2 and 3 in x[1]: after
  // this, those of block i from lanes 0 to 3.
  static OCTAVO_DEVICE void transpose_codes(u32 (&x)[2], u32 lane) {
    constexpr u32 kLowHalves = 0x5410, kHighHalves = 0x7632;
    const bool upper = (lane & 2) != 0, odd = (lane & 1) != 0;
    const u32 received = exchanged(upper ? x[0] : x[1], 2);
    const u32 low = upper ? received : x[0];   // of lane 0 or 1,
    const u32 high = upper ? x[1] : received;  // and of lane 2 or 3
    const u32 kept = ptx::permute_bytes(low, high, odd ? kHighHalves : kLowHalves);
    const u32 theirs = exchanged(ptx::permute_bytes(low, high, odd ? kLowHalves : kHighHalves), 1);
    const u32 first = odd ? theirs : kept, second = odd ? kept : theirs;
    x[0] = ptx::permute_bytes(first, second, kLowHalves);
    x[1] = ptx::permute_bytes(first, second, kHighHalves);
  }
  // As store_direct, in 8 bits.
  static OCTAVO_DEVICE void store_codes(const State& state, const Sm90ForwardParams& p,
                                        const Place& w) {
    const float inverse = inverse_of(p, w);
    const i32 first = static_cast<i32>(w.lane % 4 * 8);
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = w.row(half);
      const i32 columns = columns_left(p, w, row, first);
      u8* const out = row_of(p, w, row) + first;
      OCTAVO_UNROLL
      for (int i = 0; i < G::kColumns / 4; i += 4) {
        u32 pairs[4];
        OCTAVO_UNROLL
        for (int b = 0; b < 4; ++b)
          pairs[b] =
              pack(state.o[(i + b) * 4 + half * 2], state.o[(i + b) * 4 + half * 2 + 1], inverse);
        u32 x[2] = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
        transpose_codes(x, w.lane);
        if (i * 8 < columns) ptx::store_global_b64(out + i * 8, x[0], x[1]);
      }
    }
  }
  // Two lanes share four columns of each eight, in two rows: the even one stores those of the
  // first, the odd one those of the second.
  static OCTAVO_DEVICE void store_f32(const State& state, const Sm90ForwardParams& p,
                                      const Place& w) {
    const bool odd = w.lane % 2 != 0;
    const i32 first = static_cast<i32>(w.lane % 4 / 2 * 4);
    const i32 row = w.row(w.lane % 2);
    const i32 columns = columns_left(p, w, row, first);
    u8* const out = row_of(p, w, row) + first * 4;
    OCTAVO_UNROLL
    for (int i = 0; i < G::kColumns / 4; ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const u32 upper = ptx::bits_of(state.o[i * 4 + e]);
        const u32 lower = ptx::bits_of(state.o[i * 4 + 2 + e]);
        const u32 received = exchanged(odd ? upper : lower, 1);
        x[e] = odd ? received : upper;
        x[2 + e] = odd ? lower : received;
      }
      if (i * 8 < columns) ptx::store_global_b128(out + i * 8 * 4, x);
    }
  }

  // Rows that see no key: 0, and -infinity.
  static OCTAVO_DEVICE void store_nothing(const Sm90ForwardParams& p, const Place& w) {
    OCTAVO_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const i32 row = w.row(half);
      if (row >= w.at.len_q) continue;
      u8* const out = row_of(p, w, row);
      for (i32 column = static_cast<i32>(w.lane % 4 * 2); column < p.head_dim; column += 8)
        store_pair(out + column * element_bytes(C.out), 0, 0);
      store_lse(0, 0, p, w, row);
    }
  }

  // O through shared memory and TMA, which ends at the tensor's last row. Returns at once; the
  // tile's bytes are free when `wait_for_store` says so.
  static OCTAVO_DEVICE void store_o(const State& state, const Sm90ForwardParams& p,
                                    const Place& w) {
    const bool cuts_sequence = p.cu_seqlens_q != nullptr && w.first_row + kRows > w.at.len_q;
    if constexpr (C.out == Element::f32)
      store_f32(state, p, w);
    else if constexpr (codes_out(C))
      store_codes(state, p, w);
    else if (!kStages || cuts_sequence)
      store_direct(state, p, w);
    else
      store_tile(state, p, w);
  }
  static OCTAVO_DEVICE void store_tile(const State& state, const Sm90ForwardParams& p,
                                       const Place& w) {
    wait_for_store(w);
    stage_o(state, w);
    ptx::fence_proxy_async();
    group_sync(w);
    if (w.warp == 0 && w.lane == 0) {
      OCTAVO_UNROLL
      for (int block = 0; block < G::kQkBlocks.count; ++block)
        ptx::tma_store(&p.o, G::o_tile(w.group) + block * kRows * G::kRowBytes,
                       {block * G::kQkBlocks.columns, w.at.q_begin + w.first_row, w.head, w.batch});
      ptx::bulk_commit();
    }
  }
  // By the whole warpgroup.
  static OCTAVO_DEVICE void wait_for_store(const Lane& w) {
    if (w.warp == 0 && w.lane == 0) ptx::bulk_wait_read<0>();
    group_sync(w);
  }
};

}  // namespace octavo::sm90
