// Configuration of the quantizers (device/quantize/quantize.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// Which values share a scale.
enum class ScaleGroup : int {
  none,     // there are no scales: 16-bit results, or codes that are only transposed
  row,      // found and used by one warp
  block,    // of rows: found and used by one CTA
  head,     // found by a first pass over the tensor, used by a second
  tensor,   // the same
  channel,  // the same
};

struct Quantize {
  int arch = 80;                // the chip it is compiled for
  Element from = Element::f16;  // f32, f16 or bf16; e4m3 for codes of any format, transposed
  Element to = Element::int8;   // of 8 bits; f16 or bf16 where group is none; `from` for codes
  ScaleGroup group = ScaleGroup::row;
  bool amax_pass = false;  // the first of two passes: partial maxima, no codes
  bool hadamard = false;   // rows are rotated first
  int columns = 64;        // of a row, rounded up: a power of two, 8 to 256
  int load_bytes = 16;     // a load: 16 where every row allows that, else one element
  int threads = 128;
  bool transposed = false;  // V as config/v_layout.h has it

  bool operator==(const Quantize&) const = default;
};

namespace quantizer {

inline constexpr int kVector = 8;       // columns of a lane
inline constexpr int kSlotBytes = 128;  // of maxima, before a transposed tile

OCTAVO_HD constexpr bool two_passes(ScaleGroup g) { return g >= ScaleGroup::head; }
// Lanes that share a row, and rows that a CTA has in hand at once.
OCTAVO_HD constexpr int lanes(const Quantize& c) { return c.columns / kVector; }
OCTAVO_HD constexpr int rows_at_once(const Quantize& c) { return c.threads / lanes(c); }
// Keys of a CTA that transposes: 128 bytes of each column.
OCTAVO_HD constexpr int value_keys(const Quantize&) { return 128; }
// Maxima that warps hand each other, and a transposed tile.
OCTAVO_HD constexpr int smem_bytes(const Quantize& c) {
  if (c.transposed && !c.amax_pass) return kSlotBytes + c.columns * value_keys(c);
  const bool by_column = c.amax_pass && c.group == ScaleGroup::channel;
  return c.threads / 32 * (by_column ? c.columns : 1) * 4;
}

}  // namespace quantizer

}  // namespace octavo
