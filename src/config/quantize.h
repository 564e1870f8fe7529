// SPDX-License-Identifier: Apache-2.0
// Configuration of the quantizers (device/quantize/quantize.cuh, operands.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// Which values share a scale.
enum class ScaleGroup : int {
  none,     // no scale is computed: 16-bit results, or 8-bit values that are only transposed
  row,      // computed and used by one warp
  block,    // a block of rows: computed and used by one CTA
  head,     // computed by a first pass over the tensor, used by a second
  tensor,   // the same
  channel,  // the same
};

struct QuantizeConfig {
  int arch = 80;                // the chip it is compiled for
  Element from = Element::f16;  // f32, f16 or bf16; 8-bit when dequantizing; when only transposing
                                // int8 for int8 and e4m3 for every other 8-bit type
  Element to = Element::int8;   // 8-bit; f16 or bf16 if group is none; `from` when transposing
  ScaleGroup group = ScaleGroup::row;
  bool amax_pass = false;  // the first of two passes: writes partial maxima instead of values
  bool hadamard = false;   // rows are rotated first
  int columns = 64;        // head_dim rounded up to a power of two, 8 to 256
  int load_bytes = 16;     // bytes per load: 16 if the row alignment allows it, else one element
  int threads = 128;
  bool transposed = false;  // writes V in the layout of config/v_layout.h
  // Quantizes Q per row, K per `group` (blocks of kBlockRows, or heads) and V per channel
  // (operands.cuh): in one launch whose clusters hold the values that share a scale (`one_pass`),
  // or in two passes.
  bool operands = false;
  bool one_pass = false;
  int mean_pass = 0;    // for a smoothed K (means.cuh): 1 sums its rows, 2 computes the means
  bool smooth = false;  // the means are subtracted first

  bool operator==(const QuantizeConfig&) const = default;
};

namespace quantizer {

inline constexpr int kVector = 8;  // columns per lane
inline constexpr int kOperandThreads = 256;
inline constexpr int kBlockRows = 64;  // rows of K per scale, in one launch with Q and V
inline constexpr int kMeanRows = 64;   // rows of K per partial sum, if K is smoothed
// A CTA that transposes handles 128 keys. Each warp handles 16 of them, kSlabColumns columns at a
// time.
inline constexpr int kValueThreads = 256;
inline constexpr int kValueKeys = 128;
inline constexpr int kSlabColumns = 64;
inline constexpr int kMostCluster = 8;  // CTAs that hold a head

// The caller's 8-bit values are dequantized (dequantize.cuh).
OCTAVO_HD constexpr bool dequantizes(const QuantizeConfig& c) {
  return element_bytes(c.from) == 1 && element_bytes(c.to) == 2;
}
OCTAVO_HD constexpr bool two_passes(ScaleGroup g) { return g >= ScaleGroup::head; }
// Whether a launch may start before the previous one ends; the kernel then waits for it.
OCTAVO_HD constexpr bool overlaps(const QuantizeConfig& c) { return c.arch >= 90; }
// Lanes per row, and rows that a CTA processes at once.
OCTAVO_HD constexpr int lanes(const QuantizeConfig& c) { return c.columns / kVector; }
OCTAVO_HD constexpr int rows_at_once(const QuantizeConfig& c) { return c.threads / lanes(c); }
// With `operands`: rows of Q or K per thread, and per CTA.
OCTAVO_HD constexpr int held_rows(const QuantizeConfig& c) { return c.columns == 256 ? 8 : 4; }
OCTAVO_HD constexpr int operand_rows(const QuantizeConfig& c) {
  return held_rows(c) * rows_at_once(c);
}

// CTAs per SM, which limits the registers: more CTAs have more loads in flight, but must not spill.
OCTAVO_HD constexpr int ctas_of_sm(const QuantizeConfig& c) {
  const bool writes_v = c.transposed && !c.amax_pass && !c.one_pass;
  if (writes_v && c.from != Element::f32 && c.load_bytes == 16) return c.columns == 256 ? 2 : 4;
  if (!c.operands) return 1;
  if (c.columns == 256) return c.one_pass ? 1 : 2;
  return (c.columns == 128 && c.one_pass ? 3 : 4) - (c.one_pass ? 1 : 0) -
         (c.to == Element::int8 ? 1 : 0);
}

// Shared memory of a CTA with a tile of V, or of a held K. Each warp, or each thread that reads a
// column's partial maxima, writes one part of the maxima.
struct ValueSmem {
  int barrier = 0;   // completes when the maxima of the cluster have arrived
  int received = 0;  // maxima of each CTA of the cluster
  int inverse = 0;   // inverse scale of each column
  int parts = 0;     // parts of the maxima, and later the transposed tile
  int end = 0;
};
OCTAVO_HD constexpr ValueSmem value_smem(const QuantizeConfig& c) {
  ValueSmem s;
  s.received = 16;
  s.inverse = s.received + (c.one_pass ? kMostCluster * c.columns * 4 : 0);
  s.parts = s.inverse + c.columns * 4;
  s.end = s.parts + c.columns * (c.amax_pass ? c.threads / 32 * 4 : kValueKeys);
  return s;
}

// Maxima that warps exchange, and the memory of a tile of V.
OCTAVO_HD constexpr int smem_bytes(const QuantizeConfig& c) {
  if (c.operands || (c.transposed && !c.amax_pass)) return value_smem(c).end;
  const bool by_column = c.amax_pass && c.group == ScaleGroup::channel;
  return c.threads / 32 * (by_column ? c.columns : 1) * 4;
}

}  // namespace quantizer

}  // namespace octavo
