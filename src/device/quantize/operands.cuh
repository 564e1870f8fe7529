// SPDX-License-Identifier: Apache-2.0
// Quantizes Q, K and V to 8 bits in one launch: Q per row, K per block of kBlockRows rows or per
// head, V per channel and transposed (values.cuh). The bits equal those of the single-operand
// kernels, quantize.cuh.
//
// A CTA holds a tile of one operand entirely in registers, so every load is in flight before the
// first value is used. The maxima of a block of K are combined in shared memory. The scale of a
// head of K, or of a column of V, covers more rows than one CTA holds, so these have two forms:
//
//   one_pass    one launch: the CTAs of a cluster hold a whole head, and nothing is read twice.
//               Each CTA sends its maxima to all others, so each knows the scales of the head.
//               These CTAs come first because they take longest.
//   two passes  for a longer head. The first launch (amax_pass) quantizes the operands whose scales
//               one CTA can compute, and writes partial maxima of the others, V last. The second
//               launch quantizes those in reverse order, because the data read last may still be
//               cached.
//
// Barriers: `barrier` has one phase. Thread 0 arrives and expects the bytes of the cluster's
// maxima, st.async completes them, and the threads that need the maxima wait. The CTAs of a cluster
// synchronise once, before they send.
#pragma once

#include "device/ptx/cluster.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/quantize/quantize.cuh"

namespace octavo::quantizer {

// The configuration of Q and V: only K is smoothed.
OCTAVO_HD constexpr QuantizeConfig not_smoothed(QuantizeConfig c) {
  c.smooth = false;
  return c;
}

// Call before accessing global memory.
template <QuantizeConfig kC>
OCTAVO_DEVICE void wait_for_inputs() {
  if constexpr (overlaps(kC)) ptx::wait_for_earlier_grids();
}
// Call when little work is left: the next grid may then start, and waits for this grid's end.
template <QuantizeConfig kC>
OCTAVO_DEVICE void let_next_start() {
  if constexpr (overlaps(kC)) ptx::launch_dependent_grids();
}

// The rows of a tile that a thread holds: slot, slot + rows_at_once, ..., in the input format.
template <QuantizeConfig kC>
struct HeldRows {
  u32 words[held_rows(kC)][kVector * element_bytes(kC.from) / 4];
};

template <QuantizeConfig kC>
OCTAVO_DEVICE i32 held_row(const Tile& t, const ThreadCoord<kC>& at, int i) {
  return t.begin + at.slot + i * rows_at_once(kC);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void load_held(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at,
                             HeldRows<kC>& rows) {
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i)
    load_row_words<kC>(p, t, held_row(t, at, i), at.column, rows.words[i]);
}

// The largest magnitude of held row i, after smoothing; 0 if there is no such row.
template <QuantizeConfig kC>
OCTAVO_DEVICE float largest_held(const HeldRows<kC>& rows, const Tile& t, const ThreadCoord<kC>& at,
                                 const Means<kC>& means, int i) {
  float x[kVector];
  widen<kC.from>(rows.words[i], x);
  if constexpr (kC.smooth)
    subtract_means<kC>(means, ptx::mask_term(held_row(t, at, i) < t.end, true), x);
  return largest_magnitude(x);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void store_held(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at,
                              const HeldRows<kC>& rows, const Means<kC>& means,
                              const float (&inverse)[held_rows(kC)]) {
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i) {
    float x[kVector], by[kVector];
    widen<kC.from>(rows.words[i], x);
    subtract_means<kC>(means, true, x);
    fill(by, inverse[i]);
    store_row<kC>(p, t, held_row(t, at, i), at.column, x, by);
  }
}

// The factors that quantize the held rows. A scale takes two divisions, so each lane of a row
// computes the scale of one held row and shares it by shuffles.
template <QuantizeConfig kC>
OCTAVO_DEVICE void row_inverses(const QuantizeParams& p, const Tile& t, const ThreadCoord<kC>& at,
                                const float (&amax)[held_rows(kC)],
                                float (&inverse)[held_rows(kC)]) {
  constexpr int kHeld = held_rows(kC);
  static_assert(lanes(kC) >= kHeld, "a row has a lane for each of the rows held");
  const int place = at.column / kVector, mine = place % kHeld;
  float own = amax[0], found[kHeld];
  OCTAVO_UNROLL
  for (int i = 1; i < kHeld; ++i) own = i == mine ? amax[i] : own;
  const float scale = scale_from_amax<kC.to>(own, p.max_quantized);
  if (place < kHeld) store_row_scale(p, t, held_row(t, at, mine), scale);
  found[0] = inverse_step<kC.to>(scale);
  OCTAVO_UNROLL
  for (int i = 1; i < kHeld; ++i) found[i] = ptx::shuffle_xor(found[0], i);
  OCTAVO_UNROLL
  for (int i = 0; i < kHeld; ++i) {
    inverse[i] = found[0];
    OCTAVO_UNROLL
    for (int j = 1; j < kHeld; ++j) inverse[i] = (mine ^ j) == i ? found[j] : inverse[i];
  }
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void quantize_q(const QuantizeParams& p, i32 block) {
  wait_for_inputs<kC>();
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, block);
  HeldRows<kC> rows;
  load_held(p, t, at, rows);
  const Means<kC> none(p, t, at.column);
  let_next_start<kC>();
  float amax[held_rows(kC)], inverse[held_rows(kC)];
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i) {
    float x[kVector];
    widen<kC.from>(rows.words[i], x);
    amax[i] = lanes_max(largest_magnitude(x), 1, lanes(kC));
  }
  row_inverses(p, t, at, amax, inverse);
  store_held(p, t, at, rows, none, inverse);
}

// The maximum over all threads, for each block of the tile.
template <QuantizeConfig kC, int kBlocks>
OCTAVO_DEVICE void cta_max_of_blocks(float (&amax)[kBlocks]) {
  constexpr int kWarps = kC.threads / 32;
  const u32 slots = ptx::shared_base(), own = slots + ptx::warp_index() * 4;
  OCTAVO_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    amax[b] = lanes_max(amax[b], 1, 32);
    if (ptx::lane_index() == 0)
      ptx::store_shared_f32(own + static_cast<u32>(b * kWarps) * 4, amax[b]);
  }
  ptx::cta_sync();
  OCTAVO_UNROLL
  for (int b = 0; b < kBlocks; ++b) OCTAVO_UNROLL
  for (int warp = 0; warp < kWarps; ++warp)
    amax[b] = ptx::max_f32(amax[b],
                           ptx::load_shared_f32(slots + static_cast<u32>(b * kWarps + warp) * 4));
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void quantize_k(const QuantizeParams& p, i32 block) {
  constexpr int kBlocks = operand_rows(kC) / kBlockRows;
  wait_for_inputs<kC>();
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, block);
  HeldRows<kC> rows;
  load_held(p, t, at, rows);
  const Means<kC> means(p, t, at.column);
  let_next_start<kC>();
  float amax[kBlocks] = {};
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i) {
    float& most = amax[i * rows_at_once(kC) / kBlockRows];
    most = ptx::max_f32(most, largest_held(rows, t, at, means, i));
  }
  cta_max_of_blocks<kC>(amax);
  float of_block[kBlocks];
  OCTAVO_UNROLL
  for (int b = 0; b < kBlocks; ++b) {
    const float scale = scale_from_amax<kC.to>(amax[b], p.max_quantized);
    of_block[b] = inverse_step<kC.to>(scale);
    // The last blocks of a tile may not exist. The block of a tile of one block is missing only if
    // there are no rows.
    const i32 number = t.number * kBlocks + b;
    const bool there = static_cast<i64>(number) * kBlockRows < p.len;
    if (ptx::thread_index() == 0 && (kBlocks == 1 ? there : ptx::mask_term(there, true)))
      ptx::store_global_f32(scales_of(p, t) + number, scale);
  }
  float inverse[held_rows(kC)];
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i) inverse[i] = of_block[i * rows_at_once(kC) / kBlockRows];
  store_held(p, t, at, rows, means, inverse);
}

// First pass over a K head that is too long for `one_pass`.
template <QuantizeConfig kC>
OCTAVO_DEVICE void find_k_maxima(const QuantizeParams& p, i32 block) {
  wait_for_inputs<kC>();
  const ThreadCoord<kC> at;
  Tile t = find_tile(p, block);
  const Means<kC> means(p, t, at.column);
  float amax = 0;
  for (; t.begin < t.end; t.begin += operand_rows(kC)) {
    HeldRows<kC> rows;
    load_held(p, t, at, rows);
    OCTAVO_UNROLL
    for (int i = 0; i < held_rows(kC); ++i)
      amax = ptx::max_f32(amax, largest_held(rows, t, at, means, i));
  }
  let_next_start<kC>();
  amax = cta_max<kC>(amax);
  if (ptx::thread_index() == 0) ptx::store_global_f32(p.partial_amax + block, amax);
}

// Second pass: quantizes K with the head's scale.
template <QuantizeConfig kC>
OCTAVO_DEVICE void write_k(const QuantizeParams& p, i32 block) {
  const ThreadCoord<kC> at;
  const Tile t = find_tile(p, block);
  HeldRows<kC> rows;
  load_held(p, t, at, rows);
  const Means<kC> means(p, t, at.column);
  float by[kVector], inverse[held_rows(kC)];
  find_inverses<kC>(p, t, at, by);
  OCTAVO_UNROLL
  for (int i = 0; i < held_rows(kC); ++i) inverse[i] = by[0];
  store_held(p, t, at, rows, means, inverse);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE u32 maxima_barrier() {
  return ptx::shared_base() + static_cast<u32>(value_smem(kC).barrier);
}

// Initialises the barrier for kValues maxima from every CTA. It runs first, so that the other CTAs
// of the cluster have started long before maxima are sent.
template <QuantizeConfig kC, int kValues>
OCTAVO_DEVICE void expect_maxima() {
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_init(maxima_barrier<kC>(), 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(maxima_barrier<kC>(), ptx::cluster_cta_count() * (kValues * 4));
  }
  ptx::cluster_arrive_relaxed();
}

// Combines the maxima of the cluster's CTAs. Thread n gets maximum n; with kValues of 1, every
// thread gets the one maximum.
template <QuantizeConfig kC, int kValues>
OCTAVO_DEVICE float cluster_max(float amax) {
  constexpr bool kOfAll = kValues == 1;
  ptx::cluster_wait();
  if (!kOfAll && ptx::thread_index() >= kValues) return amax;
  const u32 number = kOfAll ? 0 : ptx::thread_index();
  const u32 received = ptx::shared_base() + static_cast<u32>(value_smem(kC).received) + number * 4;
  const u32 own = received + ptx::cluster_cta_rank() * (kValues * 4);
  const u32 ctas = ptx::cluster_cta_count();
  if (!kOfAll || ptx::thread_index() == 0)
    for (u32 cta = 0; cta < ctas; ++cta)
      ptx::st_async_b32(ptx::map_to_cta(own, cta), ptx::bits_of(amax),
                        ptx::map_to_cta(maxima_barrier<kC>(), cta));
  ptx::mbarrier_wait_cluster(maxima_barrier<kC>(), 0);
  for (u32 cta = 0; cta < ctas; ++cta)
    amax = ptx::max_f32(amax, ptx::load_shared_f32(received + cta * (kValues * 4)));
  return amax;
}

// The keys of a held head that belong to this CTA.
template <QuantizeConfig kC>
struct HeldKeys {
  FourKeys<kC> slabs[kSlabs<kC>];
};
template <QuantizeConfig kC>
OCTAVO_DEVICE void load_held(const QuantizeParams& p, const Tile& t, HeldKeys<kC>& keys) {
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab)
    load_four_keys<kC>(p, t, t.begin, slab, keys.slabs[slab]);
}

// Calls each(row, first column, eight smoothed values) for everything this lane holds of K.
template <QuantizeConfig kC, class Each>
OCTAVO_DEVICE void for_each_held(const QuantizeParams& p, const Tile& t, const HeldKeys<kC>& keys,
                                 const Each& each) {
  const i32 first = t.begin + static_cast<i32>(ptx::warp_index()) * kKeyGroup;
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab) {
    const int column = slab * kSlabColumns + lane_column();
    const Means<kC> means(p, t, column);
    OCTAVO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const i32 row = first + key_of_byte(lane_word(), i);
      float x[kVector];
      widen<kC.from>(keys.slabs[slab].words[i], x);
      if constexpr (kC.smooth) subtract_means<kC>(means, ptx::mask_term(row < t.end, true), x);
      each(row, column, x);
    }
  }
}

// K with one scale for each head. It is divided among lanes like V: a warp holds sixteen keys, a
// lane four of them.
template <QuantizeConfig kC>
OCTAVO_DEVICE void hold_k(const QuantizeParams& p, i32 block) {
  expect_maxima<kC, 1>();
  wait_for_inputs<kC>();
  const Tile t = find_tile(p, block);
  HeldKeys<kC> keys;
  load_held(p, t, keys);
  let_next_start<kC>();
  float amax = 0;
  for_each_held(p, t, keys, [&amax](i32 /*row*/, int /*column*/, const float(&x)[kVector]) {
    amax = ptx::max_f32(amax, largest_magnitude(x));
  });
  const u32 parts = ptx::shared_base() + static_cast<u32>(value_smem(kC).parts);
  amax = cluster_max<kC, 1>(cta_max<kC>(amax, parts));
  const float scale = scale_from_amax<kC.to>(amax, p.max_quantized);
  if (t.number == 0 && ptx::thread_index() == 0) ptx::store_global_f32(scales_of(p, t), scale);
  float inverse[kVector];
  fill(inverse, inverse_step<kC.to>(scale));
  for_each_held(p, t, keys, [&](i32 row, int column, const float(&x)[kVector]) {
    store_row<kC>(p, t, row, column, x, inverse);
  });
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void hold_v(const QuantizeParams& p, i32 block) {
  expect_maxima<kC, kC.columns>();
  wait_for_inputs<kC>();
  const Tile t = find_tile(p, block);
  HeldKeys<kC> keys;
  load_held(p, t, keys);
  let_next_start<kC>();
  float amax[kSlabs<kC>][kVector] = {};
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab) widen_maxima<kC>(keys.slabs[slab], amax[slab]);
  leave_inverse<kC>(p, t, cluster_max<kC, kC.columns>(cta_column_max<kC>(amax)));
  ptx::cta_sync();
  OCTAVO_UNROLL
  for (int slab = 0; slab < kSlabs<kC>; ++slab) {
    float inverse[kVector];
    u32 words[kVector];
    take_inverses<kC>(slab, inverse);
    encode_four_keys<kC>(keys.slabs[slab], inverse, words);
    stage<kC>(slab, words);
  }
  ptx::cta_sync();
  store_columns<kC>(p, t);
}

template <QuantizeConfig kC>
OCTAVO_DEVICE void find_v_maxima(const QuantizeParams& p, i32 block) {
  wait_for_inputs<kC>();
  const Tile t = find_tile(p, block);
  float amax[kSlabs<kC>][kVector] = {};
  for (i32 first = t.begin; first < t.end; first += kValueKeys) {
    OCTAVO_UNROLL
    for (int slab = 0; slab < kSlabs<kC>; ++slab) {
      FourKeys<kC> keys;
      load_four_keys<kC>(p, t, first, slab, keys);
      widen_maxima<kC>(keys, amax[slab]);
    }
  }
  let_next_start<kC>();
  const float most = cta_column_max<kC>(amax);
  if (ptx::thread_index() < kC.columns)
    ptx::store_global_f32(p.partial_amax + static_cast<i64>(block) * kC.columns +
                              column_of(static_cast<int>(ptx::thread_index())),
                          most);
}

// The second launch: quantizes, in reverse order, the operands of which the first launch only found
// maxima.
template <QuantizeConfig kC>
OCTAVO_DEVICE void write_rest(const OperandsParams& p, i32 block) {
  wait_for_inputs<kC>();
  let_next_start<kC>();
  if (block < p.v_blocks) return write_values<not_smoothed(kC)>(p.v, p.v_blocks - 1 - block);
  if constexpr (kC.group == ScaleGroup::head)
    write_k<kC>(p.k, p.k_blocks - 1 - (block - p.v_blocks));
}

template <class Config>
OCTAVO_KERNEL(Config::value.threads, ctas_of_sm(Config::value))
quantize_operands(const OCTAVO_GRID_CONSTANT OperandsParams p) {
  constexpr QuantizeConfig kC = Config::value;
  static_assert(kC.columns == 64 || kC.columns == 128 || kC.columns == 256,
                "columns are 64 to 256");
  static_assert(element_bytes(kC.from) == 2 && element_bytes(kC.to) == 1 && kC.load_bytes == 16,
                "16-bit rows of whole vectors are quantized to 8 bits");
  static_assert(kC.threads == kOperandThreads && operand_rows(kC) % kBlockRows == 0,
                "a warp has sixteen of V's keys, a tile whole blocks of K");
  static_assert(!kC.one_pass || (overlaps(kC) && !kC.amax_pass), "clusters are Hopper's");
  constexpr bool kOfHeads = kC.group == ScaleGroup::head;
  static_assert(kOfHeads || kC.group == ScaleGroup::block, "K has scales of blocks or heads");
  i32 block = ptx::block_index_x();
  if constexpr (!kC.one_pass && !kC.amax_pass) return write_rest<kC>(p, block);
  if constexpr (kC.one_pass) {
    if (block < p.v_blocks) return hold_v<not_smoothed(kC)>(p.v, block);
    block -= p.v_blocks;
  }
  if (block < p.k_blocks) {
    if constexpr (!kOfHeads)
      quantize_k<kC>(p.k, block);
    else if constexpr (kC.one_pass)
      hold_k<kC>(p.k, block);
    else
      find_k_maxima<kC>(p.k, block);
    return;
  }
  block -= p.k_blocks;
  if (block < p.q_blocks) return quantize_q<not_smoothed(kC)>(p.q, block);
  if constexpr (kC.amax_pass) find_v_maxima<not_smoothed(kC)>(p.v, block - p.q_blocks);
}

}  // namespace octavo::quantizer
