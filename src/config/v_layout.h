// SPDX-License-Identifier: Apache-2.0
// The layout of V for Hopper's 8-bit products, shared by the quantizer that writes it and the
// kernel that reads it. V is transposed: the keys of a channel are contiguous, and each group of 16
// is permuted so that the accumulator fragment of Q K^T is the operand fragment of P V.
#pragma once

#include "config/portable.h"

namespace octavo {

inline constexpr int kKeyGroup = 16;  // keys permuted together; the last group is zero-padded

// INT8 is stored with the sign bit flipped, so that 0 is stored as 128. P is unsigned too, so the
// tensor cores' sums are never negative and can be used as the bits of a float (Int8P::promoted).
inline constexpr int kZeroByte = 128;
inline constexpr u32 kSignBits = kZeroByte * 0x01010101u;  // the sign bits of four bytes

// The 4-byte word w of a group holds keys 2w, 2w + 1, 2w + 8 and 2w + 9: 0 1 8 9, 2 3 10 11,
// 4 5 12 13, 6 7 14 15.
OCTAVO_HD constexpr int key_of_byte(int word, int byte) {
  return 2 * word + byte % 2 + byte / 2 * 8;
}

// In a varlen batch every sequence starts a new group. This is its offset in a channel if its first
// token is `begin`.
OCTAVO_HD constexpr i32 varlen_v_begin(i32 begin, i32 sequence) {
  return (begin / kKeyGroup + sequence) * kKeyGroup;
}

// Bytes of a channel, for `keys` keys or for a varlen batch.
OCTAVO_HD constexpr i64 v_column_bytes(i64 keys) { return round_up<i64>(keys, kKeyGroup); }
OCTAVO_HD constexpr i64 varlen_v_column_bytes(i64 tokens, i64 sequences) {
  return (tokens / kKeyGroup + sequences) * kKeyGroup;
}

}  // namespace octavo
