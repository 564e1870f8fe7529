// SPDX-License-Identifier: Apache-2.0
// Computes two statistics of each query row, which every backward kernel reads:
//
//   delta    = sum over columns of dO * O, in FP32
//   lse_log2 = LSE * log2(e), so that P = exp2(S * scale_log2 - lse_log2)
//
// Three kinds of rows get lse_log2 = +infinity and delta = 0: rows without keys (their LSE is
// -infinity), rows with a huge LSE, and rows beyond the end of their sequence. For these P and dS
// are then 0 for every finite score.
//
// Eight lanes share a row, so that a warp reads 128 neighbouring bytes of each of four rows. The
// order of the additions is fixed.
//
// It also sets the counters of the kernel that follows to 0, which saves a launch.
#pragma once

#include "config/row_stats.h"
#include "device/core/block_range.cuh"
#include "device/core/params.cuh"
#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/vector_memory.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo {

struct RowStatsParams {
  const void* o = nullptr;
  const void* dout = nullptr;
  const float* lse = nullptr;
  Strides o_strides, dout_strides, lse_strides;

  // The results, contiguous [sequence][head_q][rows]. Every entry is written.
  float* lse_log2 = nullptr;
  float* delta = nullptr;
  i32 rows = 0;  // seqlen_q, rounded up to whole blocks of row_stats::kPaddedRows

  const i32* cu_seqlens_q = nullptr;  // null: not a varlen batch
  i32 tokens_q = 0;
  i32 heads_q = 0;
  i32 seqlen_q = 0;  // the maximum in a varlen batch
  i32 head_dim = 0;

  u32* counters = nullptr;  // set to 0
  i64 counter_count = 0;
};

struct PaddedRowStatsParams : RowStatsParams {
  PaddingParams padding;
};

namespace row_stats {

// From this magnitude on the last bit of an LSE is worth 16 or more, so P cannot be recomputed from
// S and LSE. A row whose keys all have a bias of -1e9, or of the lowest float, has such an LSE.
inline constexpr float kHugeLse = 0x1p27f;

// The parameters that the kernel of a configuration takes: only those that it reads.
template <bool kPadded>
struct SelectParams {
  using Type = RowStatsParams;
};
template <>
struct SelectParams<true> {
  using Type = PaddedRowStatsParams;
};
template <class Config>
using ParamsOf = typename SelectParams<Config::value.padded>::Type;

template <RowStatsConfig kConfig>
struct ConfigOf {
  static constexpr RowStatsConfig value = kConfig;
};

template <class Config>
struct Kernel {
  static constexpr RowStatsConfig C = Config::value;
  static_assert(C.element == Element::f16 || C.element == Element::bf16,
                "O and dO are 16-bit tensors");

  // One 16-byte chunk of a row: eight elements.
  struct Chunk {
    u32 pair[4];
  };

  static OCTAVO_DEVICE Chunk load_chunk(const u8* from) {
    Chunk x;
    if constexpr (C.load_bytes == 16) {
      ptx::load_global_b128(from, x.pair);
    } else if constexpr (C.load_bytes == 8) {
      ptx::load_global_b64(from, x.pair[0], x.pair[1]);
      ptx::load_global_b64(from + 8, x.pair[2], x.pair[3]);
    } else {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        if constexpr (C.load_bytes == 4)
          x.pair[i] = ptx::load_global_b32(from + i * 4);
        else
          x.pair[i] = static_cast<u32>(ptx::load_global_b16(from + i * 4)) |
                      static_cast<u32>(ptx::load_global_b16(from + i * 4 + 2)) << 16;
      }
    }
    return x;
  }

  static OCTAVO_DEVICE void widen(float& low, float& high, u32 pair) {
    if constexpr (C.element == Element::f16) {
      ptx::f32_from_f16x2(low, high, pair);
    } else {
      low = ptx::float_of_bits(pair << 16);
      high = ptx::float_of_bits(pair & 0xffff0000u);
    }
  }

  // This lane's part of the sum over a row: every kLanesPerRow-th chunk.
  static OCTAVO_DEVICE float partial_delta(const u8* o, const u8* dout, i32 row_bytes, u32 lane) {
    float sum = 0;
    for (i32 byte = static_cast<i32>(lane) * 16; byte < row_bytes; byte += kLanesPerRow * 16) {
      const Chunk x = load_chunk(o + byte);
      const Chunk y = load_chunk(dout + byte);
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        float x_low, x_high, y_low, y_high;
        widen(x_low, x_high, x.pair[i]);
        widen(y_low, y_high, y.pair[i]);
        sum = ptx::fused_multiply_add(x_low, y_low, sum);
        sum = ptx::fused_multiply_add(x_high, y_high, sum);
      }
    }
    return sum;
  }

  static OCTAVO_DEVICE float add_lanes(float sum) {
    OCTAVO_UNROLL
    for (int mask = 1; mask < kLanesPerRow; mask *= 2) sum += ptx::shuffle_xor(sum, mask);
    return sum;
  }

  static OCTAVO_DEVICE const u8* row_of(const void* tensor, const Strides& s, i32 batch, i32 head,
                                        i32 token) {
    return static_cast<const u8*>(tensor) +
           (batch * s.batch + head * s.head + token * s.row) * element_bytes(C.element);
  }

  static OCTAVO_DEVICE void clear_counters(const RowStatsParams& p) {
    const i64 threads = static_cast<i64>(ptx::grid_size_x()) * kThreads;
    for (i64 i = static_cast<i64>(ptx::block_index_x()) * kThreads + ptx::thread_index();
         i < p.counter_count; i += threads)
      ptx::store_global_b32(p.counters + i, 0);
  }

  static OCTAVO_DEVICE void entry(const RowStatsParams& p) {
    if constexpr (C.arch >= 90) ptx::launch_dependent_grids();
    clear_counters(p);
    const i32 blocks = p.rows / kRowsPerCta;
    const i32 index = ptx::block_index_x();
    const i32 head = index / blocks % p.heads_q;
    const i32 sequence = index / blocks / p.heads_q;
    const i32 row =
        index % blocks * kRowsPerCta + static_cast<i32>(ptx::thread_index() / kLanesPerRow);
    const u32 lane = ptx::thread_index() % kLanesPerRow;
    i32 begin = 0, length = p.seqlen_q, batch = sequence;
    if (p.cu_seqlens_q != nullptr) {
      clamp_span(p.cu_seqlens_q, sequence, p.tokens_q, p.seqlen_q, begin, length);
      batch = 0;
    } else if constexpr (C.padded) {
      const PaddingParams& padding = static_cast<const PaddedRowStatsParams&>(p).padding;
      clamp_used_rows</*kOverlaps=*/false>(padding.leftpad_q, padding.seqlens_q, sequence,
                                           p.seqlen_q, begin, length);
    }
    float lse = -kInfinity, sum = 0;
    if (ptx::mask_term(row < length, true)) {
      const i32 token = begin + row;
      lse = ptx::load_global_f32(p.lse + batch * p.lse_strides.batch + head * p.lse_strides.head +
                                 token * p.lse_strides.row);
      sum = partial_delta(row_of(p.o, p.o_strides, batch, head, token),
                          row_of(p.dout, p.dout_strides, batch, head, token),
                          p.head_dim * element_bytes(C.element), lane);
    }
    sum = add_lanes(sum);
    if (lane != 0) return;
    const bool has_keys = !(ptx::abs_f32(lse) >= kHugeLse);  // of a NaN too
    const i64 to = (static_cast<i64>(sequence) * p.heads_q + head) * p.rows + row;
    ptx::store_global_f32(p.lse_log2 + to, has_keys ? lse * kLog2E : kInfinity);
    ptx::store_global_f32(p.delta + to, has_keys ? sum : 0.0f);
  }
};

template <class Config>
OCTAVO_KERNEL(kThreads, 1)
row_stats(const OCTAVO_GRID_CONSTANT ParamsOf<Config> p) {
  Kernel<Config>::entry(p);
}

}  // namespace row_stats
}  // namespace octavo
