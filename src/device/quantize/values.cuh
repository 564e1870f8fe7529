// V transposed and its keys permuted (config/v_layout.h), for Hopper's 8-bit kernels: codes made of
// wider values, or codes that somebody else made.
//
// A CTA owns value_keys(config) keys of one head. Of sixteen keys and 64 columns a warp makes words
// of four keys, eight columns a lane; shared memory has a line of 128 bytes for every column, whose
// 16-byte pieces are swizzled by the column: what a warp writes meets every bank once, as does what
// eight lanes then read of a column to store 128 bytes of it.
#pragma once

#include "config/v_layout.h"
#include "device/quantize/encode.cuh"
#include "device/quantize/rows.cuh"

namespace octavo::quantizer {

// Words of four keys: columns of four rows of codes become rows.
OCTAVO_DEVICE void transpose_codes(const u32 (&rows)[4][2], u32 (&words)[kVector]) {
  OCTAVO_UNROLL
  for (int half = 0; half < 2; ++half) {
    const u32 low01 = ptx::permute_bytes(rows[0][half], rows[1][half], 0x5140);
    const u32 low23 = ptx::permute_bytes(rows[2][half], rows[3][half], 0x5140);
    const u32 high01 = ptx::permute_bytes(rows[0][half], rows[1][half], 0x7362);
    const u32 high23 = ptx::permute_bytes(rows[2][half], rows[3][half], 0x7362);
    words[half * 4] = ptx::permute_bytes(low01, low23, 0x5410);
    words[half * 4 + 1] = ptx::permute_bytes(low01, low23, 0x7632);
    words[half * 4 + 2] = ptx::permute_bytes(high01, high23, 0x5410);
    words[half * 4 + 3] = ptx::permute_bytes(high01, high23, 0x7632);
  }
}

// Four keys of a sixteen whose first is `row`, of eight columns; zeros where there is no such key.
template <Quantize kC>
OCTAVO_DEVICE void load_four_keys(const QuantizeParams& p, const Tile& t, i32 row, int word,
                                  int column, const float (&inverse)[kVector],
                                  u32 (&words)[kVector]) {
  if constexpr (element_bytes(kC.from) == 1) {
    u32 codes[4][2];
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i)
      load_row_words<kC>(p, t, row + key_of_byte(word, i), column, codes[i]);
    transpose_codes(codes, words);
  } else {
    float x[4][kVector];
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) load_row<kC>(p, t, row + key_of_byte(word, i), column, x[i]);
    OCTAVO_UNROLL
    for (int i = 0; i < kVector; ++i)
      words[i] = encode_pair<kC.to>(x[0][i], x[1][i], inverse[i], inverse[i]) |
                 encode_pair<kC.to>(x[2][i], x[3][i], inverse[i], inverse[i]) << 16;
  }
}

// Where the tile's sixteen `group` of a column lies in shared memory.
template <Quantize kC>
OCTAVO_DEVICE u32 staged_group(int column, int group) {
  const int piece = group ^ column / kVector % 8;
  return ptx::shared_base() +
         static_cast<u32>(kSlotBytes + column * value_keys(kC) + piece * kKeyGroup);
}

template <Quantize kC>
OCTAVO_DEVICE void store_columns(const QuantizeParams& p, const Tile& t) {
  constexpr int kGroups = value_keys(kC) / kKeyGroup;
  const i32 first =
      t.begin + (p.cu_seqlens == nullptr ? 0 : packed_v_begin(t.first_row, t.sequence));
  u8* const to =
      static_cast<u8*>(p.out) + t.batch * p.out_strides.batch + t.head * p.out_strides.head + first;
  for (int i = static_cast<int>(ptx::thread_index()); i < kC.columns * kGroups; i += kC.threads) {
    const int column = i / kGroups, group = i % kGroups;
    if (ptx::mask_term(column >= p.head_dim, false) ||
        ptx::mask_term(t.begin + group * kKeyGroup >= t.end, false))
      continue;
    u32 words[4];
    ptx::load_shared_b128(staged_group<kC>(column, group), words);
    ptx::store_global_b128(to + column * p.out_strides.row + group * kKeyGroup, words);
  }
}

}  // namespace octavo::quantizer
