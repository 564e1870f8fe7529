// SPDX-License-Identifier: Apache-2.0
// Computes the mean row of each head of K, which smoothing subtracts from K. Two launches run
// before K is quantized:
//
//   1   adds up every kMeanRows rows of a head, column by column and in order
//   2   adds up those sums in order and divides by the number of rows
//
// Both use double precision and the order of RowSums (numeric/quantize.h), so the means equal the
// CPU's bits. NaN and infinities count as 0.
#pragma once

#include "device/quantize/rows.cuh"

namespace octavo::quantizer {

OCTAVO_DEVICE float finite_or_0(float x) {
  constexpr u32 kInfinityBits = 0x7f800000;
  return (ptx::bits_of(x) & kInfinityBits) == kInfinityBits ? 0.0f : x;
}

// Each thread adds up eight columns of one group of kMeanRows rows; a CTA processes as many groups
// as it has row slots.
template <QuantizeConfig kC>
OCTAVO_DEVICE void add_up_rows(const QuantizeParams& p) {
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, ptx::block_index_x());
  const i32 group = t.number * rows_at_once(kC) + at.slot;
  double sums[kVector] = {};
  constexpr int kAtOnce = 8;  // loads in flight while the previous ones are added up
  for (i32 i = 0; i < kMeanRows; i += kAtOnce) {
    u32 words[kAtOnce][kVector * element_bytes(kC.from) / 4];
    OCTAVO_UNROLL
    for (int row = 0; row < kAtOnce; ++row)
      load_row_words<kC>(p, t, group * kMeanRows + i + row, at.column, words[row]);
    OCTAVO_UNROLL
    for (int row = 0; row < kAtOnce; ++row) {
      float x[kVector];
      widen<kC.from>(words[row], x);
      OCTAVO_UNROLL
      for (int c = 0; c < kVector; ++c) sums[c] += static_cast<double>(finite_or_0(x[c]));
    }
  }
  if (group >= p.mean_groups || at.column >= p.mean_columns) return;
  double* const to = p.mean_sums + mean_row(p, t, group, p.mean_groups) + at.column;
  OCTAVO_UNROLL
  for (int c = 0; c < kVector; ++c) {
    const u64 bits = __builtin_bit_cast(u64, sums[c]);
    ptx::store_global_b64(to + c, static_cast<u32>(bits), static_cast<u32>(bits >> 32));
  }
}

// A CTA processes one head, a thread one or more of its columns.
template <QuantizeConfig kC>
OCTAVO_DEVICE void find_means(const QuantizeParams& p) {
  const Tile t = find_tile(p, ptx::block_index_x());
  const i32 rows = t.end - t.begin;
  for (i32 c = static_cast<i32>(ptx::thread_index()); c < p.mean_columns; c += kC.threads) {
    double sum = 0;
    constexpr i32 kAtOnce = 8;
    for (i32 first = 0; first < p.mean_groups; first += kAtOnce) {
      double of[kAtOnce];
      OCTAVO_UNROLL
      for (i32 i = 0; i < kAtOnce; ++i) {
        // Another launch wrote these sums. They are read as two words each.
        const bool exists = first + i < p.mean_groups;
        const auto* const from = reinterpret_cast<const float*>(
            p.mean_sums + mean_row(p, t, first + i, p.mean_groups) + c);
        const u64 low = ptx::bits_of(ptx::load_written_f32(from, exists));
        const u64 high = ptx::bits_of(ptx::load_written_f32(from + 1, exists));
        of[i] = __builtin_bit_cast(double, high << 32 | low);
      }
      OCTAVO_UNROLL
      for (i32 i = 0; i < kAtOnce; ++i) sum += of[i];
    }
    const double mean = sum / static_cast<double>(max_of(rows, 1));
    ptx::store_global_f32(p.means + mean_row(p, t, 0, 1) + c, static_cast<float>(mean));
  }
}

}  // namespace octavo::quantizer
