// After the last block: partial results are combined, O is normalised and stored, LSE written.
#pragma once

#include "device/core/output.cuh"
#include "device/ptx/thread.cuh"
#include "device/sm80/geometry.cuh"

namespace octavo::sm80 {

template <class G>
struct Epilogue {
  using State = typename G::State;
  using Place = typename G::Place;
  using Operands = typename G::Operands;
  using OutTile = typename G::OutTile;
  static constexpr Sm80ForwardConfig C = G::C;
  static constexpr int kTilesM = G::kTilesM, kTilesD = G::kTilesD;
  static constexpr int kOutBytes = element_bytes(C.out);

  // Hands the partial results of the warps along the keys to the first of them, which adds them up
  // in their order: the same bits whatever finishes first. Each thread meets the one that holds
  // the same rows and columns, so a float needs no address but its number.
  static OCTAVO_DEVICE void combine(State& state, const Place& w) {
    constexpr int kFloats = kTilesM * (kTilesD * 4 + 4);
    const auto slot = [&w](u32 warp_n, u32 i) {
      const u32 warp = (warp_n - 1) * C.warps_m + w.warp_m;
      return ptx::shared_base() + ((warp * kFloats + i) * 32 + w.lane) * 4;
    };
    G::math_sync();  // K and V are no longer read
    if (w.warp_n > 0) {
      u32 i = 0;
      for_each_float(state, [&](float& x) { ptx::store_shared_f32(slot(w.warp_n, i++), x); });
    }
    G::math_sync();
    if (w.warp_n > 0) return;
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
      for (int half = 0; half < 2; ++half) {
        visit(state.origin[m][half]);
        visit(state.sum[m][half]);
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
      for (int half = 0; half < 2; ++half) {
        const float origin = ptx::max_f32(state.origin[m][half], theirs.origin[m][half]);
        const float ours_by = ptx::exp2_approx(state.origin[m][half] - origin);
        const float theirs_by = ptx::exp2_approx(theirs.origin[m][half] - origin);
        state.origin[m][half] = origin;
        state.sum[m][half] = state.sum[m][half] * ours_by + theirs.sum[m][half] * theirs_by;
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          OCTAVO_UNROLL
          for (int e = half * 2; e < half * 2 + 2; ++e)
            state.o[m][n][e] = state.o[m][n][e] * ours_by + theirs.o[m][n][e] * theirs_by;
        }
      }
    }
  }

  // Divides O by the sum and writes LSE. A row without keys gets 0 and -infinity.
  static OCTAVO_DEVICE void finish(State& state, const ForwardParams& p, const Place& w) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = state.sum[m][half];
        sum += ptx::shuffle_xor(sum, 1);
        sum += ptx::shuffle_xor(sum, 2);
        const float inverse = sum == 0.0f ? 0.0f : Operands::kOutputFactor / sum;
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          OCTAVO_UNROLL
          for (int e = half * 2; e < half * 2 + 2; ++e) state.o[m][n][e] *= inverse;
        }
        const i32 row = w.first_row + static_cast<i32>(w.row(m, half));
        if (p.lse == nullptr || w.lane % 4 != 0 || row >= w.at.len_q) continue;
        const float lse_log2 =
            state.origin[m][half] + ptx::log2_approx(sum) - Operands::kProbabilityLog2;
        ptx::store_global_f32(p.lse + w.batch * p.lse_strides.batch + w.head * p.lse_strides.head +
                                  (w.at.q_begin + row) * p.lse_strides.row,
                              sum == 0.0f ? -kInfinity : lse_log2 * kLn2);
      }
    }
    if constexpr (G::kRowScales) scale_values(state, p, w);
    if constexpr (C.amax) find_amax(state, p, w);
  }

  // The largest of the warp's rows and columns that exist.
  static OCTAVO_DEVICE void find_amax(const State& state, const ForwardParams& p, const Place& w) {
    float amax = 0;
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) {
          const i32 row = w.first_row + static_cast<i32>(w.row(m, e / 2));
          const i32 column = static_cast<i32>(Operands::column(n, e % 2, w.lane));
          if (row < w.at.len_q && column < p.head_dim)
            amax = larger_magnitude(amax, state.o[m][n][e]);
        }
      }
    }
    amax = largest_of_lanes<5>(amax);
    if (w.lane == 0) gather_amax(p.output, w.sequence, w.head, amax);
  }

  // O times the scales of V: one per head, or one per column.
  static OCTAVO_DEVICE void scale_values(State& state, const ForwardParams& p, const Place& w) {
    const ScaleParams& v = p.v_scales;
    const float* const scales = v.data + w.sequence * v.batch + w.head / p.heads_per_kv * v.head;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesD; ++n) {
      OCTAVO_UNROLL
      for (int e = 0; e < 2; ++e) {
        const i32 column = min_of(static_cast<i32>(Operands::column(n, e, w.lane)), p.head_dim - 1);
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
    return C.out == Element::f16 ? ptx::f16x2_from_f32(low, high) : ptx::bf16x2_from_f32(low, high);
  }

  // Of a pair of tiles, whose columns alternate, a lane has two words side by side. Swizzled rows r
  // and r + 1 exchange the chunks that these lie in: if both wrote their first word first, they
  // would meet in its bank.
  static OCTAVO_DEVICE void stage_pair(const float (&even)[4], const float (&odd)[4], int half,
                                       const OutTile& tile, u32 row, u32 column) {
    const u32 first = narrow(even[half * 2], odd[half * 2]);
    const u32 second = narrow(even[half * 2 + 1], odd[half * 2 + 1]);
    const u32 address = tile.byte_address(row, column * 2);
    const bool swapped = row % 2 != 0;
    ptx::store_shared_b32(address + (swapped ? 4 : 0), swapped ? second : first);
    ptx::store_shared_b32(address + (swapped ? 0 : 4), swapped ? first : second);
  }

  // As codes. Of a pair of tiles a lane has four columns side by side, of a single one two.
  static OCTAVO_DEVICE void stage_codes(const State& state, const OutTile& tile,
                                        const ForwardParams& p, const Place& w) {
    const float inverse = inverse_out_scale(p.output, w.sequence, w.head);
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; n += Operands::kPairedColumns ? 2 : 1) {
          const float* const x = state.o[m][n] + half * 2;
          const u32 to = tile.byte_address(w.row(m, half), Operands::column(n, 0, w.lane));
          if constexpr (Operands::kPairedColumns) {
            const float* const y = state.o[m][n + 1] + half * 2;
            ptx::store_shared_b32(to, out_codes<C.out>(x[0], y[0], inverse) |
                                          out_codes<C.out>(x[1], y[1], inverse) << 16);
          } else {
            ptx::store_shared_b16(to, static_cast<u16>(out_codes<C.out>(x[0], x[1], inverse)));
          }
        }
      }
    }
  }

  static OCTAVO_DEVICE void stage_o(const State& state, const OutTile& tile, const Place& w) {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int half = 0; half < 2; ++half) {
        OCTAVO_UNROLL
        for (int n = 0; n < kTilesD; ++n) {
          const float low = state.o[m][n][half * 2];
          const float high = state.o[m][n][half * 2 + 1];
          const u32 row = w.row(m, half);
          const u32 column = Operands::column(n, 0, w.lane);
          if constexpr (C.out == Element::f32) {
            ptx::store_shared_f32(tile.byte_address(row, column * 4), low);
            ptx::store_shared_f32(tile.byte_address(row, Operands::column(n, 1, w.lane) * 4), high);
          } else if constexpr (Operands::kPairedColumns) {
            if (n % 2 == 0) stage_pair(state.o[m][n], state.o[m][n + 1], half, tile, row, column);
          } else {
            ptx::store_shared_b32(tile.byte_address(row, column * 2), narrow(low, high));
          }
        }
      }
    }
  }

  // O through shared memory, so that global memory sees whole 16-byte pieces of rows.
  static OCTAVO_DEVICE void store_o(const State& state, const ForwardParams& p, const Place& w) {
    const OutTile tile{ptx::shared_base()};
    G::math_sync();  // Q, K, V and partial results are no longer read
    if (w.warp_n == 0) {
      if constexpr (kOutBytes == 1)
        stage_codes(state, tile, p, w);
      else
        stage_o(state, tile, w);
    }
    G::math_sync();
    constexpr u32 kChunks = OutTile::kChunks;
    u8* const out =
        static_cast<u8*>(p.o) + (w.batch * p.o_strides.batch + w.head * p.o_strides.head +
                                 (w.at.q_begin + w.first_row) * p.o_strides.row) *
                                    kOutBytes;
    const u32 rows = static_cast<u32>(min_of(w.at.len_q - w.first_row, C.block_m));
    const u32 valid_bytes = static_cast<u32>(p.head_dim * kOutBytes);
    OCTAVO_UNROLL
    for (int i = 0; i < static_cast<int>(div_up(C.block_m * kChunks, u32{G::kMathThreads})); ++i) {
      const u32 piece = i * G::kMathThreads + w.thread;
      const u32 row = piece / kChunks;
      const u32 byte = piece % kChunks * 16;
      if (row >= rows || byte >= valid_bytes) continue;
      u32 x[4];
      ptx::load_shared_b128(tile.byte_address(row, byte), x);
      store_piece(out + row * p.o_strides.row * kOutBytes + byte, x,
                  min_of(valid_bytes - byte, 16u));
    }
  }

  static OCTAVO_DEVICE void store_piece(u8* to, const u32 (&x)[4], u32 bytes) {
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
