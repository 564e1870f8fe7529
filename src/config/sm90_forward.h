// SPDX-License-Identifier: Apache-2.0
// Configuration of the Hopper forward kernel (device/sm90/forward.cuh) as a value, and the sizes
// that follow from it. Host and device read the same functions.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/shared_parts.h"

namespace octavo {

// The type of the scores S = Q K^T in an FP8 kernel, and how P is computed from them.
enum class ScoreType : int {
  f32,      // FP32; the only one for other kernels
  f16,      // FP16 accumulators and softmax: |q k| must stay below 65504
  f16_fast  // the same, and P's E4M3 bits by arithmetic, without the exp unit
};

// How many keys share a scale of 8-bit K.
enum class KScales : int {
  head,   // all keys of a head
  block,  // a block whose size is a multiple of sm90::kScaledKeys
  row     // one key, or a block of any size
};

// The order of the two products of the main loop (device/sm90/mainloop.cuh).
enum class Schedule : int {
  qk_first,         // the next block's Q K^T before this one's P V, which runs under the softmax
  pv_first,         // Q K^T once P V is complete: fewer registers
  pv_first_queued,  // Q K^T queued right after P V, while that still reads P
  in_turn           // split-KV: a block's Q K^T, softmax and P V, then the next block
};

struct Sm90ForwardConfig {
  // Operands
  Element element = Element::f16;    // Q and K: f16, bf16, e4m3, e5m2 or int8
  Element v_element = Element::f16;  // V: as Q and K; if those are 8-bit also 16-bit or other FP8
  KScales k_scales = KScales::head;  // 8-bit Q and K only

  // Tile
  int head_dim = 64;   // columns of Q and K: 64, 96, 128, 192, 256, 384 or 512
  int head_dim_v = 0;  // the same for V and O, if it differs from that of Q and K; else 0
  int warpgroups = 3;  // consumer warpgroups
  int block_n = 128;   // keys of a block

  // Pipeline
  int stages = 2;  // K and V buffers each; with split-KV, of each kv_group of the CTA
  Schedule schedule = Schedule::qk_first;
  int min_ctas = 1;  // CTAs that must fit an SM: limits the registers of each to its share

  // Split-KV
  int row_groups = 0;     // warpgroups along the rows, 64 rows each; the others divide the keys of
                          // these rows. 0: no split-KV, every warpgroup has rows of its own
  int cluster = 1;        // CTAs that divide the keys too
  bool pack_gqa = false;  // a tile's rows are queries of several heads that share keys

  // Numerics
  ScoreType scores = ScoreType::f32;
  bool sum_rounded_p = true;  // row sums add up the rounded P; else P in FP32, as LSE needs
  int pv_columns = 0;         // 8-bit P V: columns of O that one product computes before promotion
  int pv_buffers = 1;         // 2: one such product runs while the other is promoted

  OutputConfig output = {};
  ModifierConfig modifiers = {};  // 8-bit Q and K allow only block_mask

  bool operator==(const Sm90ForwardConfig&) const = default;
};

namespace sm90 {

inline constexpr int kWarpgroup = 128;         // threads
inline constexpr int kRows = 64;               // rows of a warpgroup's tile
inline constexpr int kSmemBytes = 227 * 1024;  // the most that one CTA may use; two CTAs fit on an
                                               // SM if each uses about half
inline constexpr int kScaledKeys = 64;         // keys that share a scale with KScales::block

using Config = Sm90ForwardConfig;

// The split-KV kernel: no producer warp, one tile per CTA. kv_splits may be 1.
OCTAVO_HD constexpr bool is_split_kv(const Config& c) { return c.row_groups > 0; }
OCTAVO_HD constexpr bool is_8bit_qk(const Config& c) { return element_bytes(c.element) == 1; }
// P and V are 8-bit as well: V is transposed and has a scale per column, and P V is promoted to
// FP32 block by block.
OCTAVO_HD constexpr bool is_8bit_pv(const Config& c) { return element_bytes(c.v_element) == 1; }
// P is unsigned 8-bit, and products accumulate in integers.
OCTAVO_HD constexpr bool is_int8_pv(const Config& c) {
  return is_8bit_pv(c) && c.element == Element::int8;
}
// 8-bit Q and K with 16-bit P and V.
OCTAVO_HD constexpr bool is_mixed(const Config& c) { return is_8bit_qk(c) && !is_8bit_pv(c); }
OCTAVO_HD constexpr bool is_8bit_out(const Config& c) {
  return element_bytes(c.output.element) == 1;
}
OCTAVO_HD constexpr bool has_f16_scores(const Config& c) { return c.scores != ScoreType::f32; }
// More columns of V and O than 256, the most that a wgmma has, are divided between two work tiles
// of the same rows, each of which computes all scores.
inline constexpr int kMaxTileColumns = 256;
// Columns of V and O of all tiles.
OCTAVO_HD constexpr int all_v_columns(const Config& c) {
  return c.head_dim_v > 0 ? c.head_dim_v : c.head_dim;
}
OCTAVO_HD constexpr int column_tiles(const Config& c) {
  return all_v_columns(c) > kMaxTileColumns ? 2 : 1;
}
// Columns of the tiles of V and O.
OCTAVO_HD constexpr int v_columns(const Config& c) { return all_v_columns(c) / column_tiles(c); }
// K of more than 256 columns is loaded and released in slices of 128, each with its own barriers:
// shared memory has no room for another block, which can then arrive slice by slice.
inline constexpr int kSliceColumns = 128;
OCTAVO_HD constexpr int k_slices(const Config& c) {
  return c.head_dim > kMaxTileColumns ? c.head_dim / kSliceColumns : 1;
}

// Columns of ones after V's, by which the tensor cores sum the rounded P. INT8 sums bytes instead.
OCTAVO_HD constexpr int ones_columns(const Config& c) {
  return c.sum_rounded_p && !is_int8_pv(c) ? 8 : 0;
}
// The number of groups of 16 keys, of every four, that compute P by a polynomial instead of the exp
// unit (only where the row sum adds up the rounded P). Measured on an H200: FP8 with FP16
// scores gains 5 to 15% from three groups at head_dim 64 and 128, and nothing above, where power is
// the limit. INT8 gains 1 to 9% from one group, and up to 3% more from two with split-KV or two
// warpgroups.
OCTAVO_HD constexpr int polynomial_groups(const Config& c) {
  if (!c.sum_rounded_p || c.scores == ScoreType::f16_fast) return 0;
  if (is_int8_pv(c)) return is_split_kv(c) || c.warpgroups <= 2 ? 2 : 1;
  return has_f16_scores(c) && (c.head_dim <= 128 || is_split_kv(c)) ? 3 : 0;
}
// INT8 scores start from a bias that makes them floats without a conversion, unless each is
// multiplied by its own scale or row sums are exact.
OCTAVO_HD constexpr bool has_biased_scores(const Config& c) {
  return is_int8_pv(c) && c.sum_rounded_p && c.k_scales != KScales::row && !is_split_kv(c) &&
         c.head_dim <= 128;
}
inline constexpr int kBiasBytes = 128;  // each of the two operands whose product is the bias

// FP8 tensor cores keep about 14 bits: a product over 128 keys loses 4e-4 of a mean of V, over 160
// 8e-4 and over 192 1.1e-3. Larger blocks are promoted in two halves.
inline constexpr int kMaxPromotedKeys = 160;
OCTAVO_HD constexpr int promoted_keys(const Config& c) {
  const bool in_halves = is_8bit_pv(c) && !is_int8_pv(c) && c.block_n > kMaxPromotedKeys;
  return in_halves ? c.block_n / 2 : c.block_n;
}

// The consumer warpgroups, and without split-KV one more for the producer warp.
OCTAVO_HD constexpr int threads(const Config& c) {
  return (c.warpgroups + (is_split_kv(c) ? 0 : 1)) * kWarpgroup;
}
OCTAVO_HD constexpr int q_tiles(const Config& c) {
  return is_split_kv(c) ? c.row_groups : c.warpgroups;
}
// kv_groups: warpgroups of a CTA that divide the keys of the same rows. kv_splits: the same over
// all CTAs of the cluster.
OCTAVO_HD constexpr int kv_groups(const Config& c) { return c.warpgroups / q_tiles(c); }
OCTAVO_HD constexpr int kv_splits(const Config& c) { return kv_groups(c) * c.cluster; }
OCTAVO_HD constexpr int block_m(const Config& c) { return q_tiles(c) * kRows; }
OCTAVO_HD constexpr int kv_buffers(const Config& c) { return kv_groups(c) * c.stages; }

// Under a mask of known lengths a head's tiles begin earlier by row_shift rows, so that they end
// with its last row: that sees the most keys under a causal mask, and the short tile is the first
// one, whose warpgroups without rows skip it. With two warpgroups a short tile costs little.
OCTAVO_HD constexpr bool may_shift_rows(const Config& c) {
  return !is_split_kv(c) && c.warpgroups > 2 && !any(c.modifiers);
}
OCTAVO_HD constexpr int row_shift(const Config& c, int seqlen_q) {
  const int rows = round_up(seqlen_q, kRows);
  return round_up(rows, block_m(c)) - rows;
}

// A tile's rows are one block of the mask's queries: one consumer warpgroup for blocks of 64, two
// for blocks of 128.
OCTAVO_HD constexpr bool has_block_mask(const Config& c) { return c.modifiers.block_mask != 0; }
OCTAVO_HD constexpr bool has_other_modifiers(const Config& c) {
  return count(c.modifiers) > (has_block_mask(c) ? 1 : 0);
}
// A block of keys may consist of two blocks of the mask, which need not be neighbours. Each is
// loaded by itself, and has `loaded_keys` keys.
OCTAVO_HD constexpr int listed_blocks(const Config& c) {
  return has_block_mask(c) ? max_of(c.block_n / c.modifiers.block_mask, 1) : 1;
}
OCTAVO_HD constexpr int loaded_keys(const Config& c) { return c.block_n / listed_blocks(c); }
// Blocks of keys for `count` blocks of the mask, each of which may be several.
OCTAVO_HD constexpr int blocks_of_keys(const Config& c, int count) {
  return div_up(count, listed_blocks(c)) * max_of(c.modifiers.block_mask / c.block_n, 1);
}

// setmaxnreg moves registers from the producer to the consumers. The launch has 168, 128 or 96
// registers a thread with 2, 3 or 4 consumer warpgroups. A single one shares the SM with other
// CTAs: the launch has its CTA's share of the register file, in units of 8 a thread. The producer
// of a block mask reads lists.
OCTAVO_HD constexpr int producer_registers(const Config& c) {
  return has_block_mask(c) ? 40 : c.warpgroups <= 2 ? 24 : 32;
}
// A thread's registers at the launch of such a CTA, whose kernel is compiled for min_ctas.
OCTAVO_HD constexpr int launch_registers(const Config& c) {
  constexpr int kFile = 65536, kMost = 240;
  return min_of(kFile / (threads(c) * c.min_ctas) / 8 * 8, kMost);
}
OCTAVO_HD constexpr int consumer_registers(const Config& c) {
  if (c.warpgroups == 1)
    return min_of(2 * launch_registers(c) - producer_registers(c), c.min_ctas == 1 ? 240 : 232);
  if (has_block_mask(c)) return 232;
  return c.warpgroups <= 2 ? 240 : c.warpgroups == 3 ? 160 : 112;
}
OCTAVO_HD constexpr int register_budget(const Config& c) {
  constexpr int kFile = 65536, kMost = 255;
  return is_split_kv(c) ? min_of(kMost, kFile / (threads(c) * c.min_ctas)) : consumer_registers(c);
}
// An estimate of what a consumer thread holds at once: O, the scores, P while a product reads it,
// slices of P V before their promotion, and everything else.
OCTAVO_HD constexpr int registers_held(const Config& c) {
  const bool has_small_state = has_f16_scores(c) || (is_int8_pv(c) && c.k_scales != KScales::row);
  const int scores = c.block_n / (has_f16_scores(c) ? 4 : 2);
  const int p = c.block_n * element_bytes(c.v_element) / 8;
  const int ones = ones_columns(c);
  const int slice = c.pv_columns > 0 ? (c.pv_columns + ones) / 2 : 0;
  const int other_slice = (c.pv_buffers - 1) * c.pv_columns / 2;
  const int here = c.schedule == Schedule::qk_first          ? scores + p + other_slice
                   : c.schedule == Schedule::pv_first_queued ? max_of(scores + p, p + other_slice)
                                                             : max_of(scores, p + other_slice);
  return here + slice + (v_columns(c) + ones) / 2 + (has_small_state ? 16 : 24);
}

// Keys of a block that share a scale of K; 0 if all keys of a head do.
OCTAVO_HD constexpr int scaled_keys(const Config& c) {
  if (c.k_scales == KScales::row) return 1;
  if (c.k_scales == KScales::head) return 0;
  return c.block_n % kScaledKeys == 0 ? kScaledKeys : c.block_n % 32 == 0 ? 32 : 16;
}
OCTAVO_HD constexpr int k_scales_per_block(const Config& c) {
  return scaled_keys(c) > 0 ? c.block_n / scaled_keys(c) : 0;
}

// A tile of rows in shared memory: panels of columns side by side, each swizzled over 128 bytes, or
// 64 or 32 where 128 does not divide a row.
struct Panels {
  int row_bytes;  // of one panel
  int columns;    // of one panel
  int count;
};
OCTAVO_HD constexpr Panels panels(int head_dim, Element element) {
  const int bytes = head_dim * element_bytes(element);
  const int row_bytes = bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : 32;
  return {row_bytes, row_bytes / element_bytes(element), bytes / row_bytes};
}
OCTAVO_HD constexpr Panels qk_panels(const Config& c) { return panels(c.head_dim, c.element); }
// Of 16-bit V, and of O if stores_o_by_tma.
OCTAVO_HD constexpr Panels v_panels(const Config& c) { return panels(v_columns(c), c.v_element); }
// 8-bit V is transposed: its keys lie in chunks of this size, the width of their swizzle.
OCTAVO_HD constexpr int chunk_keys(const Config& c) {
  return loaded_keys(c) % 128 == 0 ? 128 : loaded_keys(c) % 64 == 0 ? 64 : 32;
}

// The output needs scales or amax.
OCTAVO_HD constexpr bool has_output_params(const Config& c) {
  return is_8bit_out(c) || c.output.amax;
}

// Split-KV: columns of O that one split reduces, and the bytes that each other split sends it:
// those columns, and ref_max and sum of each row.
OCTAVO_HD constexpr int split_columns(const Config& c) { return v_columns(c) / kv_splits(c); }
OCTAVO_HD constexpr int partial_bytes(int columns) { return kRows * (columns + 2) * 4; }

// Work tiles that the producer publishes ahead of the consumers, and the bytes of one. Kernels with
// scales or modifiers publish more about a tile.
inline constexpr int kTileSlots = 4;
OCTAVO_HD constexpr bool publishes_sequence(const Config& c) {
  return is_8bit_qk(c) || has_output_params(c) || any(c.modifiers);
}
// Whether a tile's blocks are visited from the diagonal on (device/sm90/scheduler.cuh): ALiBi
// lowers scores with the distance from it, so from left to right most blocks would raise ref_max
// and rescale O.
OCTAVO_HD constexpr bool starts_at_diagonal(const Config& c) {
  return c.modifiers.alibi && !is_split_kv(c) && !has_block_mask(c);
}
OCTAVO_HD constexpr int tile_slot_bytes(const Config& c) { return publishes_sequence(c) ? 48 : 32; }

// Bytes that the producer publishes about the blocks of the mask in each stage.
OCTAVO_HD constexpr int listed_bytes(const Config& c) {
  return has_block_mask(c) ? 8 * listed_blocks(c) : 0;
}

// Tiles in shared memory (device/sm90/score_tiles.cuh): the elements of a bias, and the bytes and
// bits of a mask tensor, for a warpgroup's rows of a block.
OCTAVO_HD constexpr int bias_tile_bytes(const Config& c) {
  return c.modifiers.score_tiles && c.modifiers.bias
             ? kRows * c.block_n * element_bytes(c.modifiers.bias_element)
             : 0;
}
OCTAVO_HD constexpr bool has_mask_tiles(const Config& c) {
  return c.modifiers.score_tiles && c.modifiers.mask;
}
OCTAVO_HD constexpr Panels bias_panels(const Config& c) {
  return panels(c.block_n, c.modifiers.bias_element);
}
OCTAVO_HD constexpr Panels mask_panels(const Config& c) {
  return panels(round_up(c.block_n, 32), Element::int8);
}
OCTAVO_HD constexpr int mask_tile_bytes(const Config& c) {
  return has_mask_tiles(c) ? kRows * mask_panels(c).row_bytes * mask_panels(c).count : 0;
}
inline constexpr int kMaskBits = 128;  // bits of a row in a tile of mask bits
OCTAVO_HD constexpr int mask_bits_bytes(const Config& c) {
  return has_mask_tiles(c) ? kRows * kMaskBits / 8 : 0;
}

struct SmemPlan {
  // bytes from the start
  int q, o, bias, mask, mask_bits, k, v, ones, receive_cta, receive_cluster, k_scales, v_scales,
      tile_slots, listed, barriers, total;
  int q_tile, o_tile, k_stage, v_stage, k_scales_stage;  // bytes of one
  int v_bytes;                                           // the part of v_stage that TMA loads
};
OCTAVO_HD constexpr SmemPlan smem_plan(const Config& c, bool with_o) {
  constexpr int kAlignment = 1024;
  SmemPlan s{};
  s.q_tile = kRows * c.head_dim * element_bytes(c.element);
  s.o_tile = kRows * v_columns(c) * element_bytes(c.v_element);
  s.k_stage = c.block_n * c.head_dim * element_bytes(c.element);
  // wgmma reads the ones as one more panel of V. If V has a single panel, the descriptor's stride
  // to the next can be anything, and one panel of 16 keys serves all stages; else each stage has
  // its own. In transposed V the ones are rows of each chunk.
  const bool ones_in_stage = c.sum_rounded_p && !is_8bit_pv(c) && v_panels(c).count > 1;
  s.v_bytes = c.block_n * v_columns(c) * element_bytes(c.v_element);
  s.v_stage = s.v_bytes + (ones_in_stage   ? c.block_n * v_panels(c).row_bytes
                           : is_8bit_pv(c) ? c.block_n * ones_columns(c)
                                           : 0);
  s.q = 0;
  s.o = q_tiles(c) * s.q_tile;
  s.bias = round_up(s.o + (with_o ? q_tiles(c) * s.o_tile : 0), kAlignment);
  s.mask = s.bias + c.warpgroups * bias_tile_bytes(c);
  s.mask_bits = s.mask + c.warpgroups * mask_tile_bytes(c);
  s.k = round_up(s.mask_bits + c.warpgroups * mask_bits_bytes(c), kAlignment);
  s.v = round_up(s.k + kv_buffers(c) * s.k_stage, kAlignment);
  s.ones = s.v + kv_buffers(c) * s.v_stage;
  // Other warpgroups and CTAs send their partial results while K and V are still read.
  s.receive_cta =
      s.ones + (has_biased_scores(c)                                  ? 2 * kBiasBytes
                : c.sum_rounded_p && !ones_in_stage && !is_8bit_pv(c) ? 16 * v_panels(c).row_bytes
                                                                      : 0);
  s.receive_cluster = s.receive_cta + c.warpgroups * (kv_groups(c) - 1) *
                                          partial_bytes(v_columns(c) / kv_groups(c));
  s.k_scales = s.receive_cluster + c.warpgroups * (c.cluster - 1) * partial_bytes(split_columns(c));
  s.k_scales_stage = round_up(k_scales_per_block(c) * 4, 16);
  s.v_scales = s.k_scales + kv_buffers(c) * s.k_scales_stage;
  s.tile_slots =
      s.v_scales + (is_8bit_pv(c) && !is_split_kv(c) ? c.warpgroups * v_columns(c) * 4 : 0);
  s.listed = s.tile_slots + (is_split_kv(c) ? 0 : kTileSlots * tile_slot_bytes(c));
  s.barriers = s.listed + kv_buffers(c) * listed_bytes(c);
  // Full and empty for each Q tile and K slice, and for V as many barriers as for K, though V has
  // no slices; one for each warpgroup (tail_full in the persistent kernel, which uses only the
  // first, or partials_full with split-KV); and three for the score tiles of each warpgroup.
  s.total = s.barriers + 8 * (2 * q_tiles(c) + 4 * kv_buffers(c) * k_slices(c) + c.warpgroups) +
            (c.modifiers.score_tiles ? 24 * c.warpgroups : 0);
  return s;
}
// O goes through shared memory and TMA if there is room, else from registers to memory. TMA gained
// 1.7% over six cases at head_dim 128 and 192, and 3% in two of them; at 64 the search chose no
// kernel with it. Kernels with two tiles of columns spill with it.
OCTAVO_HD constexpr bool stores_o_by_tma(const Config& c) {
  return !is_split_kv(c) && !is_8bit_qk(c) && element_bytes(c.output.element) == 2 &&
         v_columns(c) > 64 && column_tiles(c) == 1 &&
         smem_plan(c, true).total <= kSmemBytes / (has_block_mask(c) ? c.min_ctas : 1);
}
OCTAVO_HD constexpr SmemPlan smem_plan(const Config& c) { return smem_plan(c, stores_o_by_tma(c)); }
OCTAVO_HD constexpr int smem_bytes(const Config& c) { return smem_plan(c).total; }

}  // namespace sm90

}  // namespace octavo
