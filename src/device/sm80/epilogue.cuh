// SPDX-License-Identifier: Apache-2.0
// The epilogue: combines partial results of warps, adds the sink, normalises and stores O, writes
// LSE, and clears padding rows.
#pragma once

#include "device/core/output.cuh"
#include "device/core/score_modifiers.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct Epilogue {
  using State = typename G::State;
  using RowTile = typename G::RowTile;
  using Operands = typename G::Operands;
  using OutTile = typename G::OutTile;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesD = G::kTilesD;
  static constexpr int kOutBytes = element_bytes(C.output.element);

  // Split-KV within the CTA: the warps with warp_n > 0 write their partial results to shared
  // memory, and warp_n = 0 adds them up in order, so the bits do not depend on which finishes
  // first. The threads of one lane hold the same rows and columns in every warp, so floats are
  // addressed by their index alone.
  static OCTAVO_DEVICE void combine(State& state, const RowTile& tile) {
    constexpr int kFloats = kTilesM * (kTilesD * 4 + 4);
    const auto slot = [&tile](u32 warp_n, u32 i) {
      const u32 warp = (warp_n - 1) * C.warps_m + tile.warp_m;
      return ptx::shared_base() + ((warp * kFloats + i) * 32 + tile.lane) * 4;
    };
    G::math_sync();  // K and V are no longer read
    if (tile.warp_n > 0) {
      u32 i = 0;
      for_each_float(state, [&](float& x) { ptx::store_shared_f32(slot(tile.warp_n, i++), x); });
    }
    G::math_sync();
    if (tile.warp_n > 0) return;
    OCTAVO_UNROLL
    for (u32 other = 1; other < C.warps_n; ++other) {
      State theirs;
      u32 i = 0;
      for_each_float(theirs, [&](float& x) { x = ptx::load_shared_f32(slot(other, i++)); });
      merge(state, theirs);
    }
  }

  template <class Visit>
  static OCTAVO_DEVICE void for_each_float(State& state, const Visit& visit) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        visit(state.ref_max[m][r]);
        visit(state.sum[m][r]);
      }
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) visit(state.o[m][n][e]);
      }
    }
  }

  static OCTAVO_DEVICE void merge(State& state, const State& theirs) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float ref_max = ptx::max_f32(state.ref_max[m][r], theirs.ref_max[m][r]);
        const float our_factor = ptx::exp2_approx(state.ref_max[m][r] - ref_max);
        const float their_factor = ptx::exp2_approx(theirs.ref_max[m][r] - ref_max);
        state.ref_max[m][r] = ref_max;
        state.sum[m][r] = state.sum[m][r] * our_factor + theirs.sum[m][r] * their_factor;
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          OCTAVO_UNROLL
          for (int e = r * 2; e < r * 2 + 2; ++e)
            state.o[m][n][e] = state.o[m][n][e] * our_factor + theirs.o[m][n][e] * their_factor;
        }
      }
    }
  }

  // Divides O by the sum and writes LSE. A row without keys gets 0 and -infinity.
  static OCTAVO_DEVICE void finish(State& state, const ForwardParams& p, const RowTile& tile) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        float sum = quad_sum(state.sum[m][r]);
        float factor = Operands::kOutputFactor;
        if constexpr (C.modifiers.sinks) factor *= add_sink(state.ref_max[m][r], sum, p, tile);
        const float inverse = sum == 0.0f ? 0.0f : factor / sum;
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          OCTAVO_UNROLL
          for (int e = r * 2; e < r * 2 + 2; ++e) state.o[m][n][e] *= inverse;
        }
        const i32 row = tile.first_row + static_cast<i32>(tile.row(m, r));
        if (p.lse == nullptr || tile.lane % 4 != 0 || row >= tile.span.seqlen_q) continue;
        if constexpr (column_tiles(C) > 1)
          if (tile.first_column > 0) continue;
        constexpr float kSumLog2 = Operands::kProbabilityLog2;
        const float lse = C.modifiers.bias ? lse_with_bias(state.ref_max[m][r], sum, kSumLog2)
                                           : lse_of(state.ref_max[m][r], sum, kSumLog2);
        ptx::store_global_f32(p.lse + tile.batch * p.lse_strides.batch +
                                  tile.head * p.lse_strides.head +
                                  (tile.span.q_begin + row) * p.lse_strides.row,
                              lse);
      }
    }
    if constexpr (G::kRowScales) scale_values(state, p, tile);
    if constexpr (C.output.amax) store_amax(state, p, tile);
  }

  // Adds the head's sink to a row's sum and returns the factor of O that goes with the new
  // reference maximum.
  static OCTAVO_DEVICE float add_sink(float& ref_max, float& sum, const ForwardParams& p,
                                      const RowTile& tile) {
    const float* const sinks = G::modifiers(p).scores.sinks;
    if (sinks == nullptr) return 1;
    const float sink_log2 = add_bias<Element::f32>(0, ptx::load_global_f32(sinks + tile.head));
    float keep;
    const float term = sink_term(sink_log2, ref_max, keep);
    constexpr float kUnit = 1 << Operands::kProbabilityLog2;  // of the sum
    sum = ptx::fused_multiply_add(sum, keep, term * kUnit);
    return keep;
  }

  // The CTA of rows [first_row, first_row + block_m) of a sequence also owns these rows of the
  // tensor, and writes those that are padding: 0, and -infinity in LSE.
  static OCTAVO_DEVICE void clear_padding(const ForwardParams& p, const RowTile& tile) {
    if (p.cu_seqlens_q != nullptr) return;
    const i32 rows = min_of(p.seqlen_q - tile.first_row, C.block_m);
    i64 first = tile.batch * p.o_strides.batch + tile.head * p.o_strides.head;
    u32 valid_bytes = static_cast<u32>(G::head_dim_v(p) * kOutBytes);
    if constexpr (column_tiles(C) > 1) {
      first += tile.first_column;
      valid_bytes = static_cast<u32>(tile.columns_left * kOutBytes);
    }
    constexpr u32 kZeros[4] = {};
    OCTAVO_ROLLED
    for (u32 i = tile.thread; i < static_cast<u32>(rows) * OutTile::kChunks; i += G::kThreads) {
      const i32 row = tile.first_row + static_cast<i32>(i / OutTile::kChunks);
      const u32 byte = i % OutTile::kChunks * 16;
      if (!is_padding(tile, row) || byte >= valid_bytes) continue;
      u8* const to = static_cast<u8*>(p.o) + (first + row * p.o_strides.row) * kOutBytes + byte;
      store_chunk(to, kZeros, min_of(valid_bytes - byte, 16u));
    }
    if (p.lse == nullptr) return;
    if constexpr (column_tiles(C) > 1)
      if (tile.first_column > 0) return;
    float* const lse = p.lse + tile.batch * p.lse_strides.batch + tile.head * p.lse_strides.head;
    OCTAVO_ROLLED
    for (i32 i = static_cast<i32>(tile.thread); i < rows; i += G::kThreads)
      if (is_padding(tile, tile.first_row + i))
        ptx::store_global_f32(lse + (tile.first_row + i) * p.lse_strides.row, -kInfinity);
  }
  // `row` is a row of the tensor.
  static OCTAVO_DEVICE bool is_padding(const RowTile& tile, i32 row) {
    return ptx::mask_term(row < tile.span.q_begin, false) ||
           ptx::mask_term(row >= tile.span.q_begin + tile.span.seqlen_q, false);
  }

  // The largest magnitude over the warp's valid rows and columns.
  static OCTAVO_DEVICE void store_amax(const State& state, const ForwardParams& p,
                                       const RowTile& tile) {
    float amax = 0;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          const i32 row = tile.first_row + static_cast<i32>(tile.row(m, e / 2));
          const i32 column = static_cast<i32>(Operands::column(n, e % 2, tile.lane));
          i32 columns = G::head_dim_v(p);
          if constexpr (column_tiles(C) > 1) columns = tile.columns_left;
          if (row < tile.span.seqlen_q && column < columns)
            amax = larger_magnitude(amax, state.o[m][n][e]);
        }
      }
    }
    amax = largest_of_lanes<5>(amax);
    if (tile.lane == 0) update_amax(p.output, tile.sequence, tile.head, amax);
  }

  // Multiplies O by the scales of V: one per head, or one per column.
  static OCTAVO_DEVICE void scale_values(State& state, const ForwardParams& p,
                                         const RowTile& tile) {
    const ScaleParams& v = p.v_scales;
    const float* const scales =
        v.data + tile.sequence * v.batch + tile.head / p.heads_per_kv * v.head;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesD; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const i32 column =
            min_of(static_cast<i32>(Operands::column(n, e, tile.lane)), G::head_dim_v(p) - 1);
        const float scale = ptx::load_global_f32(scales + column * v.stride) * p.v_unit;
        OCTAVO_UNROLL
        for (int m = 0; m < kTilesM; ++m) {
          state.o[m][n][e] *= scale;
          state.o[m][n][2 + e] *= scale;
        }
      }
    }
  }

  static OCTAVO_DEVICE u32 narrow(float low, float high) {
    return C.output.element == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                            : ptx::bf16x2_from_f32(low, high);
  }

  // The columns of a pair of tiles alternate, so a lane holds two adjacent words. The swizzle
  // exchanges the chunks of rows r and r + 1; if both rows wrote their first word first, they would
  // hit the same bank.
  static OCTAVO_DEVICE void stage_pair(const float (&even)[4], const float (&odd)[4], int r,
                                       const OutTile& out_tile, u32 row, u32 column) {
    const u32 first = narrow(even[r * 2], odd[r * 2]);
    const u32 second = narrow(even[r * 2 + 1], odd[r * 2 + 1]);
    const u32 address = out_tile.byte_address(row, column * 2);
    const bool swapped = row % 2 != 0;
    ptx::store_shared_b32(address + (swapped ? 4 : 0), swapped ? second : first);
    ptx::store_shared_b32(address + (swapped ? 0 : 4), swapped ? first : second);
  }

  // Stages 8-bit output. A lane holds four adjacent columns of a pair of tiles, or two of a single
  // tile.
  static OCTAVO_DEVICE void stage_quantized(const State& state, const OutTile& out_tile,
                                            const ForwardParams& p, const RowTile& tile) {
    const float inverse = inverse_out_scale(p.output, tile.sequence, tile.head);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; n += Operands::kPairedColumns ? 2 : 1) {
          const float* const x = state.o[m][n] + r * 2;
          const u32 to = out_tile.byte_address(tile.row(m, r), Operands::column(n, 0, tile.lane));
          if constexpr (Operands::kPairedColumns) {
            const float* const y = state.o[m][n + 1] + r * 2;
            ptx::store_shared_b32(to, quantize_pair<C.output.element>(x[0], y[0], inverse) |
                                          quantize_pair<C.output.element>(x[1], y[1], inverse)
                                              << 16);
          } else {
            ptx::store_shared_b16(
                to, static_cast<u16>(quantize_pair<C.output.element>(x[0], x[1], inverse)));
          }
        }
      }
    }
  }

  static OCTAVO_DEVICE void stage_o(const State& state, const OutTile& out_tile,
                                    const RowTile& tile) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          const float low = state.o[m][n][r * 2];
          const float high = state.o[m][n][r * 2 + 1];
          const u32 row = tile.row(m, r);
          const u32 column = Operands::column(n, 0, tile.lane);
          if constexpr (C.output.element == Element::f32) {
            ptx::store_shared_f32(out_tile.byte_address(row, column * 4), low);
            ptx::store_shared_f32(out_tile.byte_address(row, Operands::column(n, 1, tile.lane) * 4),
                                  high);
          } else if constexpr (Operands::kPairedColumns) {
            if (n % 2 == 0) stage_pair(state.o[m][n], state.o[m][n + 1], r, out_tile, row, column);
          } else {
            ptx::store_shared_b32(out_tile.byte_address(row, column * 2), narrow(low, high));
          }
        }
      }
    }
  }

  // Stores O through shared memory, so that global stores are whole 16-byte chunks of rows.
  static OCTAVO_DEVICE void store_o(const State& state, const ForwardParams& p,
                                    const RowTile& tile) {
    const OutTile out_tile{ptx::shared_base()};
    if (C.v_barrier && C.warps_n == 1 && out_bytes(C) <= q_bytes(C))
      ptx::spare("O replaces only Q, which every warp had read before the barrier of V");
    G::math_sync();  // Q, K, V and partial results are no longer read
    if (tile.warp_n == 0) {
      if constexpr (kOutBytes == 1)
        stage_quantized(state, out_tile, p, tile);
      else
        stage_o(state, out_tile, tile);
    }
    G::math_sync();
    constexpr u32 kChunks = OutTile::kChunks;
    u8* out =
        static_cast<u8*>(p.o) + (tile.batch * p.o_strides.batch + tile.head * p.o_strides.head +
                                 (tile.span.q_begin + tile.first_row) * p.o_strides.row) *
                                    kOutBytes;
    const u32 rows = static_cast<u32>(min_of(tile.span.seqlen_q - tile.first_row, C.block_m));
    u32 valid_bytes = static_cast<u32>(G::head_dim_v(p) * kOutBytes);
    if constexpr (column_tiles(C) > 1) {
      out += tile.first_column * kOutBytes;
      valid_bytes = static_cast<u32>(tile.columns_left * kOutBytes);
    }
    OCTAVO_UNROLL
    for (int i = 0; i < static_cast<int>(div_up(C.block_m * kChunks, u32{G::kMathThreads})); ++i) {
      const u32 chunk = i * G::kMathThreads + tile.thread;
      const u32 row = chunk / kChunks;
      const u32 byte = chunk % kChunks * 16;
      if (row >= rows || byte >= valid_bytes) continue;
      u32 x[4];
      ptx::load_shared_b128(out_tile.byte_address(row, byte), x);
      store_chunk(out + row * p.o_strides.row * kOutBytes + byte, x,
                  min_of(valid_bytes - byte, 16u));
    }
  }

  static OCTAVO_DEVICE void store_chunk(u8* to, const u32 (&x)[4], u32 bytes) {
    if (C.load_bytes == 16 && bytes == 16) {
      ptx::store_global_b128(to, x);
      return;
    }
    OCTAVO_UNROLL
    for (u32 at = 0; at < 16; at += kOutBytes) {
      if (at >= bytes) break;
      if constexpr (kOutBytes == 4)
        ptx::store_global_b32(to + at, x[at / 4]);
      else if constexpr (kOutBytes == 2)
        ptx::store_global_b16(to + at, static_cast<u16>(x[at / 4] >> (at % 4 * 8)));
      else
        ptx::store_global_b8(to + at, static_cast<u8>(x[at / 4] >> (at % 4 * 8)));
    }
  }
};

}  // namespace octavo::sm80
