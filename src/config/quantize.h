// Configuration of the quantizers (device/quantize/quantize.cuh, operands.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// Which values share a scale.
enum class ScaleGroup : int {
  none,     // there are none to find: 16-bit results, or codes that are only transposed
  row,      // found and used by one warp
  block,    // of rows: found and used by one CTA
  head,     // found by a first pass over the tensor, used by a second
  tensor,   // the same
  channel,  // the same
};

struct QuantizeConfig {
  int arch = 80;                // the chip it is compiled for
  Element from = Element::f16;  // f32, f16 or bf16; e4m3 for codes that are transposed, but int8
                                // for its own; of 8 bits where codes become values
  Element to = Element::int8;   // of 8 bits; f16 or bf16 where group is none; `from` for codes
  ScaleGroup group = ScaleGroup::row;
  bool amax_pass = false;  // the first of two passes: partial maxima, no codes of those groups
  bool hadamard = false;   // rows are rotated first
  int columns = 64;        // of a row, rounded up: a power of two, 8 to 256
  int load_bytes = 16;     // a load: 16 where every row allows that, else one element
  int threads = 128;
  bool transposed = false;  // V as config/v_layout.h has it
  // Q by rows, K by `group`, blocks of kBlockRows or heads, and V by channels (operands.cuh): in
  // one launch, of which clusters hold what shares a scale, or in two passes.
  bool operands = false;
  bool hold = false;
  int mean_pass = 0;    // before a smoothed K (means.cuh): 1 adds up its rows, 2 finds their means
  bool smooth = false;  // those are subtracted first

  bool operator==(const QuantizeConfig&) const = default;
};

namespace quantizer {

inline constexpr int kVector = 8;  // columns of a lane
inline constexpr int kOperandThreads = 256;
inline constexpr int kBlockRows = 64;  // of K that share a scale, in one launch with Q and V
inline constexpr int kMeanRows = 64;   // of K that are added up by themselves, where it is smoothed
// A CTA that transposes: 128 bytes of each column, a warp for each sixteen keys, which has so many
// columns in hand at a time.
inline constexpr int kValueThreads = 256;
inline constexpr int kValueKeys = 128;
inline constexpr int kSlabColumns = 64;
inline constexpr int kMostCluster = 8;  // CTAs that hold a head

// Codes of the caller become values (dequantize.cuh).
OCTAVO_HD constexpr bool dequantizes(const QuantizeConfig& c) {
  return element_bytes(c.from) == 1 && element_bytes(c.to) == 2;
}
OCTAVO_HD constexpr bool two_passes(ScaleGroup g) { return g >= ScaleGroup::head; }
// A launch that may start before the one before it has ended waits for that itself.
OCTAVO_HD constexpr bool overlaps(const QuantizeConfig& c) { return c.arch >= 90; }
// Lanes that share a row, and rows that a CTA has in hand at once.
OCTAVO_HD constexpr int lanes(const QuantizeConfig& c) { return c.columns / kVector; }
OCTAVO_HD constexpr int rows_at_once(const QuantizeConfig& c) { return c.threads / lanes(c); }
// With `operands`: rows of Q or K that a thread holds, and those of its CTA.
OCTAVO_HD constexpr int held_rows(const QuantizeConfig& c) { return c.columns == 256 ? 8 : 4; }
OCTAVO_HD constexpr int operand_rows(const QuantizeConfig& c) {
  return held_rows(c) * rows_at_once(c);
}

// So many fit an SM by their registers: the more, the more loads in flight, but nothing spills.
OCTAVO_HD constexpr int ctas_of_sm(const QuantizeConfig& c) {
  const bool codes_of_v = c.transposed && !c.amax_pass && !c.hold;
  if (codes_of_v && c.from != Element::f32 && c.load_bytes == 16) return c.columns == 256 ? 2 : 4;
  if (!c.operands) return 1;
  if (c.columns == 256) return c.hold ? 1 : 2;
  return (c.columns == 128 && c.hold ? 3 : 4) - (c.hold ? 1 : 0) - (c.to == Element::int8 ? 1 : 0);
}

// Shared memory of a CTA with a tile of V, or of K that is held. A part of the maxima is what one
// warp, or one of the threads that read a column's partial maxima, found.
struct ValueSmem {
  int barrier = 0;   // when the maxima of the cluster have come
  int received = 0;  // maxima of each CTA of the cluster
  int inverse = 0;   // of each column
  int parts = 0;     // of the maxima, and later the transposed tile
  int end = 0;
};
OCTAVO_HD constexpr ValueSmem value_smem(const QuantizeConfig& c) {
  ValueSmem s;
  s.received = 16;
  s.inverse = s.received + (c.hold ? kMostCluster * c.columns * 4 : 0);
  s.parts = s.inverse + c.columns * 4;
  s.end = s.parts + c.columns * (c.amax_pass ? c.threads / 32 * 4 : kValueKeys);
  return s;
}

// Maxima that warps hand each other, and what V needs.
OCTAVO_HD constexpr int smem_bytes(const QuantizeConfig& c) {
  if (c.operands || (c.transposed && !c.amax_pass)) return value_smem(c).end;
  const bool by_column = c.amax_pass && c.group == ScaleGroup::channel;
  return c.threads / 32 * (by_column ? c.columns : 1) * 4;
}

}  // namespace quantizer

}  // namespace octavo
