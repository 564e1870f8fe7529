// Configuration of the Hopper forward kernel (device/sm90/forward.cuh), as a value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

// What V is beside 8-bit Q and K, where it is not as they are: 16 bits, as P is then, or the other
// kind of FP8.
enum class MixedV : int { none, f16, bf16, e4m3, e5m2 };

struct Sm90Forward {
  int arch = 90;                   // the chip it is compiled for
  Element element = Element::f16;  // of Q, K and V: f16, bf16, e4m3, e5m2 or int8
  MixedV mixed_v = MixedV::none;   // 8-bit Q and K: V is this instead
  Element out = Element::f16;      // f16, bf16, f32, e4m3, e5m2 or int8
  int head_dim = 64;               // columns of the tiles, 64, 96, 128, 192 or 256
  int warpgroups = 3;              // that compute
  int block_n = 128;               // keys of a step
  int stages = 2;                  // K/V buffers in flight; of each warpgroup where they split keys
  bool split_keys = false;         // warpgroups share query rows and divide their keys, each
                                   // loading for itself; else each has 64 rows of its own
  int row_groups = 1;              // where they do: warpgroups along the rows, 64 for each
  int cluster = 1;                 // CTAs that divide the keys as well, where they are split
  bool overlap = true;             // a block's scores come before the last one's P V, which is
                                   // computed under its softmax; else after it, with fewer
                                   // registers
  bool scores_behind = false;      // then: they are started right behind P V, which still reads P;
                                   // else when it is there
  bool persistent = true;          // one CTA an SM, tile after tile; else a CTA a tile
  bool own_o = true;               // O is stored through shared memory; else from registers
  bool ones = true;                // row sums are of P as it was rounded: by the tensor cores, from
                                   // a column of ones beside V, or of bytes
  int rescale_log2 = 8;            // O is rescaled only when a maximum grows by 2^this; of 8-bit P
                                   // by what its format has room for
  bool pack_heads = false;    // where keys are split: a tile's rows are queries of several heads
                              // that share keys, so that a few queries of each fill it
  bool early_start = false;   // launched so that it may start before what precedes it in the
                              // stream has ended; it waits for that before it touches memory
  int fold_columns = 0;       // 8 bits: columns of O that one product computes before they
                              // are folded into FP32; 0 in 16 bits, which folds nothing
  int fold_buffers = 1;       // 8 bits: such products at once, one under way while one is folded
  bool k_row_scales = false;  // 8-bit K has a scale per row, or per block of any size, not per head
  bool k_block_scales = false;  // or per block of a multiple of kScaledRows
  bool f16_scores = false;      // FP8: scores are accumulated, and the softmax computed, in FP16;
                                // |q k| must stay below 65504
  bool code_exp = false;        // then: P's codes by arithmetic, without the exp unit
  int ctas = 1;                 // that an SM is to hold: registers are limited to their share
  bool amax = false;            // the largest |O| is gathered, of the tensor or of each head

  bool operator==(const Sm90Forward&) const = default;
};

namespace sm90 {

inline constexpr int kWarpgroup = 128;         // threads
inline constexpr int kRows = 64;               // of a warpgroup's tile
inline constexpr int kSmemBytes = 227 * 1024;  // that CTAs of an SM can have
inline constexpr int kScaledRows = 64;         // of K, that have one scale with k_block_scales

// Q and K are codes: rows of Q have scales of their own, and keys or heads of K theirs.
OCTAVO_HD constexpr bool codes_qk(const Sm90Forward& c) { return element_bytes(c.element) == 1; }
// Of V; P has the same, but for e5m2.
OCTAVO_HD constexpr Element v_element(const Sm90Forward& c) {
  return c.mixed_v == MixedV::f16    ? Element::f16
         : c.mixed_v == MixedV::bf16 ? Element::bf16
         : c.mixed_v == MixedV::e4m3 ? Element::e4m3
         : c.mixed_v == MixedV::e5m2 ? Element::e5m2
                                     : c.element;
}
// P and V are codes as well: V lies transposed, its columns have scales, and P V is folded into O.
OCTAVO_HD constexpr bool codes_pv(const Sm90Forward& c) {
  return codes_qk(c) && element_bytes(v_element(c)) == 1;
}
// P in bytes, beside integers that add up exactly.
OCTAVO_HD constexpr bool bytes_pv(const Sm90Forward& c) {
  return codes_pv(c) && c.element == Element::int8;
}
// Columns beside V's by which the tensor cores sum P. Bytes are summed four at a time without them.
OCTAVO_HD constexpr int ones_columns(const Sm90Forward& c) {
  return c.ones && !bytes_pv(c) ? 8 : 0;
}
// Of codes, where P V is computed in parts: whether the sums by ones are a product of their own,
// eight columns wide. As the last columns of the last part they make all parts wider, since a
// buffer takes products of one width. Apart they gain up to 4% where parts are four (and cost 1%
// in one row, of codes by arithmetic), and 2 to 4% of two at 128 columns where a warpgroup is a
// CTA; of other two they cost up to 4%.
OCTAVO_HD constexpr bool ones_apart(const Sm90Forward& c) {
  const int parts = codes_pv(c) ? c.head_dim / c.fold_columns : 1;
  return ones_columns(c) > 0 && (parts > 2 || (parts == 2 && c.split_keys && c.fold_columns >= 64));
}
// Where sums are of P as it was rounded: of each 64 keys so many sixteens have P's codes by a
// polynomial, and leave the exp unit to the others. On an H200, of FP8 with scores in FP16, three
// of them gave 5 to 15% at 64 and 128 columns and two up to 4% less; all of them nothing where more
// columns leave the exp unit time and power is what is short. Of bytes one gave 1 to 9% over none;
// two gave up to 3% over one where keys are split or warpgroups are two (1% less at one of eleven
// shapes), and mostly less than one where they are more.
OCTAVO_HD constexpr int sixteens_by_polynomial(const Sm90Forward& c) {
  if (!c.ones || c.code_exp) return 0;
  if (bytes_pv(c)) return c.split_keys || c.warpgroups <= 2 ? 2 : 1;
  return c.f16_scores && (c.head_dim <= 128 || c.split_keys) ? 3 : 0;
}
// Scores of bytes are counted from a bias, which makes floats of them: not where they are
// multiplied one by one, or their exact weights summed.
OCTAVO_HD constexpr bool biased_scores(const Sm90Forward& c) {
  return bytes_pv(c) && c.ones && !c.k_row_scales && !c.split_keys && c.head_dim <= 128;
}
// Masks look at groups of keys, and a masked block has exponentials of its own.
OCTAVO_HD constexpr bool masks_groups(const Sm90Forward& c) {
  return biased_scores(c) && c.k_block_scales && c.head_dim <= 64;
}
inline constexpr int kBiasBytes = 128;  // of each of the two operands whose product it is
// FP8 products of P V lose 4e-4 of a mean of V over 128 keys, 8e-4 over 160 and 1.1e-3 over 192:
// those of larger blocks are folded in two halves.
inline constexpr int kMostFoldedKeys = 160;
OCTAVO_HD constexpr int folded_keys(const Sm90Forward& c) {
  const bool halves = codes_pv(c) && !bytes_pv(c) && c.block_n > kMostFoldedKeys;
  return halves ? c.block_n / 2 : c.block_n;
}
// They are of 16 bits beside codes.
OCTAVO_HD constexpr bool is_mixed(const Sm90Forward& c) {
  return c.mixed_v == MixedV::f16 || c.mixed_v == MixedV::bf16;
}

// The warpgroups that compute, and one that loads for them.
OCTAVO_HD constexpr int threads(const Sm90Forward& c) {
  return (c.warpgroups + (c.split_keys ? 0 : 1)) * kWarpgroup;
}
// Warpgroups along the rows, and along the keys.
OCTAVO_HD constexpr int q_tiles(const Sm90Forward& c) {
  return c.split_keys ? c.row_groups : c.warpgroups;
}
OCTAVO_HD constexpr int key_groups(const Sm90Forward& c) { return c.warpgroups / q_tiles(c); }
// Parts into which a tile's keys are divided.
OCTAVO_HD constexpr int key_parts(const Sm90Forward& c) { return key_groups(c) * c.cluster; }
OCTAVO_HD constexpr int block_m(const Sm90Forward& c) { return q_tiles(c) * kRows; }
OCTAVO_HD constexpr int kv_buffers(const Sm90Forward& c) { return key_groups(c) * c.stages; }

// The register file is shared out again after the launch: what is launched with, times the threads,
// holds both (warpgroups 2, 3, 4: 168, 128, 96 at launch).
OCTAVO_HD constexpr int math_registers(const Sm90Forward& c) {
  return c.warpgroups <= 2 ? 240 : c.warpgroups == 3 ? 160 : 112;
}
// What a thread that computes may have.
OCTAVO_HD constexpr int register_budget(const Sm90Forward& c) {
  constexpr int kFile = 65536, kMost = 255;
  return c.split_keys || c.warpgroups == 1 ? min_of(kMost, kFile / (threads(c) * c.ctas))
                                           : math_registers(c);
}
// What it holds at most at once: O, the scores with the probabilities before them where those are
// still read, what is to be folded into O, and about so much beside them.
OCTAVO_HD constexpr int registers_held(const Sm90Forward& c) {
  const int rest = c.f16_scores || (bytes_pv(c) && !c.k_row_scales) ? 16 : 24;
  const int scores = c.block_n / (c.f16_scores ? 4 : 2);
  const int p = c.block_n * element_bytes(v_element(c)) / 8;
  const int ones = ones_columns(c);
  const int folded = c.fold_columns > 0 ? (c.fold_columns + ones) / 2 : 0;
  const int under_way = (c.fold_buffers - 1) * c.fold_columns / 2;  // while another is folded
  const int here = c.overlap         ? scores + p + under_way
                   : c.scores_behind ? max_of(scores + p, p + under_way)
                                     : max_of(scores, p + under_way);
  return here + folded + (c.head_dim + ones) / 2 + rest;
}

OCTAVO_HD constexpr int load_registers(const Sm90Forward& c) { return c.warpgroups <= 2 ? 24 : 32; }

// Keys of a block that have one scale, where those of a head do not share it; and how many such
// groups a block has.
OCTAVO_HD constexpr int scaled_rows(const Sm90Forward& c) {
  if (c.k_row_scales) return 1;
  if (!c.k_block_scales) return 0;
  return c.block_n % kScaledRows == 0 ? kScaledRows : c.block_n % 32 == 0 ? 32 : 16;
}
OCTAVO_HD constexpr int scaled_groups(const Sm90Forward& c) {
  return scaled_rows(c) > 0 ? c.block_n / scaled_rows(c) : 0;
}

// Rows lie in blocks of columns, swizzled by 128 bytes; by 64 or 32 where so many do not divide the
// head dimension.
struct RowBlocks {
  int row_bytes;  // of a block
  int columns;
  int count;
};
OCTAVO_HD constexpr RowBlocks row_blocks(int head_dim, Element element) {
  const int bytes = head_dim * element_bytes(element);
  const int row_bytes = bytes % 128 == 0 ? 128 : bytes % 64 == 0 ? 64 : 32;
  return {row_bytes, row_bytes / element_bytes(element), bytes / row_bytes};
}
// Of Q and K, and of O where it goes through shared memory.
OCTAVO_HD constexpr RowBlocks qk_blocks(const Sm90Forward& c) {
  return row_blocks(c.head_dim, c.element);
}
// Of V where it lies by rows.
OCTAVO_HD constexpr RowBlocks v_blocks(const Sm90Forward& c) {
  return row_blocks(c.head_dim, v_element(c));
}
// O is codes, by a scale of the caller's.
OCTAVO_HD constexpr bool codes_out(const Sm90Forward& c) { return element_bytes(c.out) == 1; }
// There is more to say of O than where it goes.
OCTAVO_HD constexpr bool has_output_params(const Sm90Forward& c) { return codes_out(c) || c.amax; }
// O goes through shared memory and TMA.
OCTAVO_HD constexpr bool stages_o(const Sm90Forward& c) {
  return c.own_o && !c.split_keys && element_bytes(c.out) == 2;
}
// Where V comes transposed, as codes: keys of a tile lie in chunks of so many bytes, the width of
// their swizzle.
OCTAVO_HD constexpr int chunk_keys(const Sm90Forward& c) {
  return c.block_n % 128 == 0 ? 128 : c.block_n % 64 == 0 ? 64 : 32;
}

// Columns of O that one part puts together, where keys are split: whole groups of eight.
OCTAVO_HD constexpr int piece_columns(const Sm90Forward& c) { return c.head_dim / key_parts(c); }
// Bytes that a warpgroup hands to another: so many columns of O, and of each row maximum and sum.
OCTAVO_HD constexpr int handed_bytes(int columns) { return kRows * (columns + 2) * 4; }

// Tiles that the loader announces to those who compute, before they are done with the last ones.
inline constexpr int kBoardSlots = 4;
// Of a slot. Scales need to know more of a tile.
OCTAVO_HD constexpr bool announces_sequence(const Sm90Forward& c) {
  return codes_qk(c) || has_output_params(c);
}
OCTAVO_HD constexpr int board_bytes(const Sm90Forward& c) {
  return announces_sequence(c) ? 48 : 32;
}

struct SmemPlan {
  // bytes from the start
  int q, o, k, v, ones, receive, receive_across, key_scales, v_scales, board, barriers, total;
  int q_tile, k_stage, v_stage, scales_stage;  // bytes of one
  int v_bytes;                                 // of v_stage, that are loaded
};
OCTAVO_HD constexpr SmemPlan smem_plan(const Sm90Forward& c) {
  constexpr int kAlignment = 1024;
  SmemPlan s{};
  s.q_tile = kRows * c.head_dim * element_bytes(c.element);
  s.k_stage = c.block_n * c.head_dim * element_bytes(c.element);
  // wgmma reads the ones as one block of columns more. With a single block before it, the way there
  // is free, and one block of 16 keys serves all; else the ones lie behind each tile of V.
  // Where V is transposed they are rows of each chunk of keys.
  const bool ones_inside = c.ones && !codes_pv(c) && v_blocks(c).count > 1;
  s.v_bytes = c.block_n * c.head_dim * element_bytes(v_element(c));
  s.v_stage = s.v_bytes + (ones_inside   ? c.block_n * v_blocks(c).row_bytes
                           : codes_pv(c) ? c.block_n * ones_columns(c)
                                         : 0);
  s.q = 0;
  const int q_bytes = q_tiles(c) * s.q_tile;
  s.o = q_bytes;
  s.k = round_up(s.o + (stages_o(c) ? q_bytes : 0), kAlignment);
  s.v = round_up(s.k + kv_buffers(c) * s.k_stage, kAlignment);
  s.ones = s.v + kv_buffers(c) * s.v_stage;
  // What comes from other warpgroups, and CTAs, may come while K and V are still read.
  s.receive = s.ones + (biased_scores(c)                         ? 2 * kBiasBytes
                        : c.ones && !ones_inside && !codes_pv(c) ? 16 * v_blocks(c).row_bytes
                                                                 : 0);
  s.receive_across =
      s.receive + c.warpgroups * (key_groups(c) - 1) * handed_bytes(c.head_dim / key_groups(c));
  s.key_scales = s.receive_across + c.warpgroups * (c.cluster - 1) * handed_bytes(piece_columns(c));
  s.scales_stage = round_up(scaled_groups(c) * 4, 16);
  s.v_scales = s.key_scales + kv_buffers(c) * s.scales_stage;
  s.board = s.v_scales + (codes_pv(c) && !c.split_keys ? c.warpgroups * c.head_dim * 4 : 0);
  s.barriers = s.board + (c.split_keys ? 0 : kBoardSlots * board_bytes(c));
  // of Q full and empty by tile; of K and V full and empty by buffer; and more: V's last rows, or
  // what a warpgroup gets from other CTAs
  s.total = s.barriers + 8 * (2 * q_tiles(c) + 4 * kv_buffers(c) + c.warpgroups);
  return s;
}
OCTAVO_HD constexpr int smem_bytes(const Sm90Forward& c) { return smem_plan(c).total; }

}  // namespace sm90

}  // namespace octavo
