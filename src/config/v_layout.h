// V as Hopper's 8-bit products want it: transposed, a column's keys one after the other, and in
// each sixteen of them permuted, so that the fragment in which q k^T leaves its scores is the one
// in which p v takes P. Both the quantizer that writes it and the kernel that reads it ask here.
#pragma once

#include "config/portable.h"

namespace octavo {

inline constexpr int kKeyGroup = 16;  // keys that are permuted together; the last are zeros

// INT8's bytes are its codes with the sign bit flipped: they count from 128. P is unsigned too, so
// that what the tensor cores add up is never negative: the bits of a float (Int8P::promoted).
inline constexpr int kZeroByte = 128;
inline constexpr u32 kSignBits = kZeroByte * 0x01010101u;  // of four

// Four neighbouring bytes hold keys 2w, 2w + 1, 2w + 8 and 2w + 9 of their sixteen, w counting
// them: 0 1 8 9, 2 3 10 11, 4 5 12 13, 6 7 14 15.
OCTAVO_HD constexpr int key_of_byte(int word, int byte) {
  return 2 * word + byte % 2 + byte / 2 * 8;
}

// In a packed batch every sequence begins with a sixteen of its own: here, if its first token is
// `begin`.
OCTAVO_HD constexpr i32 packed_v_begin(i32 begin, i32 sequence) {
  return (begin / kKeyGroup + sequence) * kKeyGroup;
}

// Bytes of a column: of `keys` keys, or of a packed batch of so many tokens.
OCTAVO_HD constexpr i64 v_column_bytes(i64 keys) { return round_up<i64>(keys, kKeyGroup); }
OCTAVO_HD constexpr i64 packed_v_column_bytes(i64 tokens, i64 sequences) {
  return (tokens / kKeyGroup + sequences) * kKeyGroup;
}

}  // namespace octavo
