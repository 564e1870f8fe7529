// SPDX-License-Identifier: Apache-2.0
// Configuration of the mma.sync forward kernel (device/sm80/forward.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/shared_parts.h"

namespace octavo {

// How the probabilities' exponentials are computed.
enum class ExpForm : int {
  f32,         // ex2.approx.ftz.f32, on the special-function units
  f16x2,       // ex2.approx.f16x2, two at once, of exponents rounded to fp16; f16 and sim8 only
  polynomial,  // degree 4, on the FMA pipe, to 4e-5 of the value
};

struct Sm80ForwardConfig {
  int arch = 80;                   // 80, 89 (native FP8) or 90, the chip it is compiled for
  Element element = Element::f16;  // of Q, K and V in memory
  int head_dim = 64;               // columns of Q and K: the problem's, rounded up
  int head_dim_v = 0;              // the same for V and O, if the problem's V differs; else 0
  int block_m = 64;                // query rows of a CTA
  int block_n = 64;                // keys of one warp's step
  int warps_m = 4;                 // warps along the rows; each has block_m / warps_m rows
  int warps_n = 1;                 // warps along the keys; each has its own block_n keys of a step
  int stages = 2;                  // K/V buffers in flight
  bool v_barrier = false;          // waits for K first, and for V at a second barrier of the step
  int load_bytes = 16;             // widest load that every row's address allows
  bool q_in_registers = true;      // else Q is read from shared memory at every step
  int k_tiles = 8;                 // most 8-key tiles of K whose fragments are read together
  int v_tiles = 8;                 // most 8-column tiles of V whose fragments are read together
  int rescale_log2 = 8;            // O is rescaled only when a maximum grows by 2^this
  bool k_row_scales = false;       // 8-bit K has a scale per row or block, not per head
  int p_terms = 1;                 // FP8: E4M3 terms whose sum is P, 1 or 2
  int producer_warps = 0;          // warps that only copy K and V; 0: all warps share the copying
  bool persistent = false;         // as many CTAs as the chip holds, each loops over tiles
  int unroll = 1;                  // unrolled steps of the loop over keys
  bool f16_scores = false;         // QK accumulates in fp16; f16 and sim8 only
  ExpForm exp = ExpForm::f32;
  bool keep_kv = false;  // loads K and V with the L2 evict-last policy
  OutputConfig output = {};
  ModifierConfig modifiers = {};

  bool operator==(const Sm80ForwardConfig&) const = default;
};

namespace sm80 {

OCTAVO_HD constexpr int math_threads(const Sm80ForwardConfig& c) {
  return 32 * c.warps_m * c.warps_n;
}
OCTAVO_HD constexpr int threads(const Sm80ForwardConfig& c) {
  return math_threads(c) + 32 * c.producer_warps;
}
OCTAVO_HD constexpr int step_keys(const Sm80ForwardConfig& c) { return c.block_n * c.warps_n; }
// More columns of V and O than 256, whose accumulators fill the registers, are divided between two
// work tiles of the same rows, each of which computes all scores.
inline constexpr int kMaxTileColumns = 256;
// Columns of V and O of all tiles.
OCTAVO_HD constexpr int all_v_columns(const Sm80ForwardConfig& c) {
  return c.head_dim_v > 0 ? c.head_dim_v : c.head_dim;
}
OCTAVO_HD constexpr int column_tiles(const Sm80ForwardConfig& c) {
  return all_v_columns(c) > kMaxTileColumns ? 2 : 1;
}
// Columns of the tiles of V and O.
OCTAVO_HD constexpr int v_columns(const Sm80ForwardConfig& c) {
  return all_v_columns(c) / column_tiles(c);
}
OCTAVO_HD constexpr int row_bytes(const Sm80ForwardConfig& c) {
  return c.head_dim * element_bytes(c.element);
}
OCTAVO_HD constexpr int v_row_bytes(const Sm80ForwardConfig& c) {
  return v_columns(c) * element_bytes(c.element);
}
OCTAVO_HD constexpr int q_bytes(const Sm80ForwardConfig& c) { return c.block_m * row_bytes(c); }
OCTAVO_HD constexpr int k_bytes(const Sm80ForwardConfig& c) { return step_keys(c) * row_bytes(c); }
OCTAVO_HD constexpr int kv_stage_bytes(const Sm80ForwardConfig& c) {
  return step_keys(c) * (row_bytes(c) + v_row_bytes(c));
}
// Partial results that the warps along the keys send, except for the first: O, and eight floats per
// row for maxima and sums.
OCTAVO_HD constexpr int combine_bytes(const Sm80ForwardConfig& c) {
  return (c.warps_n - 1) * c.block_m * (v_columns(c) + 8) * 4;
}
OCTAVO_HD constexpr int out_bytes(const Sm80ForwardConfig& c) {
  return c.block_m * v_columns(c) * element_bytes(c.output.element);
}
OCTAVO_HD constexpr int smem_bytes(const Sm80ForwardConfig& c) {
  return max_of(q_bytes(c) + c.stages * kv_stage_bytes(c), max_of(combine_bytes(c), out_bytes(c)));
}

}  // namespace sm80

}  // namespace octavo
