// SPDX-License-Identifier: Apache-2.0
// The steps that all kinds of consumer warpgroups take for a block of queries: products, P, dS,
// masks and stores. The schedules are in consumer.cuh, divided_consumer.cuh and pair_consumer.cuh.
#pragma once

#include "device/core/score_modifiers.cuh"
#include "device/ptx/fence.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"
#include "device/ptx/wgmma.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "device/sm90/backward/geometry.cuh"
#include "device/sm90/backward/work.cuh"
#include "device/sm90/pipeline_state.cuh"

namespace octavo::sm90::backward {

template <class Config>
struct ConsumerSteps {
  using G = Geometry<Config>;
  static constexpr Sm90BackwardConfig C = G::C;
  static constexpr u32 kRowBytes = G::kHead.row_bytes;

  // A 16-bit tile of scores as the A operand of a product: four registers for each 16 queries.
  struct Operand {
    u32 a[G::kQuerySteps][4];
  };

  const Sm90BackwardParams& p;
  ThreadCoord thread;
  u32 block = 0;  // the current block of queries, counted from 0

  OCTAVO_DEVICE ConsumerSteps(const Sm90BackwardParams& params, const ThreadCoord& t)
      : p(params), thread(t) {}

  static OCTAVO_DEVICE PipelineState<C.stages_q> q(u32 of_block) { return {0, of_block}; }
  static OCTAVO_DEVICE PipelineState<C.stages_do> dout(u32 of_block) { return {0, of_block}; }

  // --- products ---------------------------------------------------------------------------------

  template <bool kTransposeA, bool kTransposeB, int kSize>
  static OCTAVO_DEVICE void mma(float (&d)[kSize], u64 a, u64 b, bool accumulate) {
    if constexpr (C.element == Element::f16)
      ptx::wgmma_f16<kTransposeA, kTransposeB>(d, a, b, accumulate);
    else
      ptx::wgmma_bf16<kTransposeA, kTransposeB>(d, a, b, accumulate);
  }
  template <int kSize>
  static OCTAVO_DEVICE void mma(float (&d)[kSize], const u32 (&a)[4], u64 b, bool accumulate) {
    if constexpr (C.element == Element::f16)
      ptx::wgmma_f16<true>(d, a, b, accumulate);
    else
      ptx::wgmma_bf16<true>(d, a, b, accumulate);
  }

  // The number of the warpgroup, hidden from the compiler as in here(). Otherwise the compiler
  // would keep a descriptor for each step of a product in registers across the loop, and spill.
  OCTAVO_DEVICE u32 fresh_group() const {
    u32 group = thread.group;
    ptx::pin(group);
    return group;
  }
  // The part of a shared-memory address that a matrix descriptor holds. In a cluster the bits above
  // it are the number of the CTA.
  static OCTAVO_DEVICE u32 in_cta(u32 address) { return is_pair(C) ? address & 0x3ffff : address; }
  // Descriptors of tiles of a head's rows: 16 columns of each row, or 16 rows.
  static OCTAVO_DEVICE u64 by_columns(u32 address) {
    return at_address(k_major(0, G::kHeadSwizzle), in_cta(address));
  }
  template <u32 kTileRows>
  static OCTAVO_DEVICE u64 by_rows(u32 address) {
    return at_address(mn_major(0, kTileRows * kRowBytes, G::kHeadSwizzle), in_cta(address));
  }
  // The address of step `step` of 16 columns in a tile of `rows` rows.
  static OCTAVO_DEVICE u32 column_step(u32 tile, u32 rows, u32 step) {
    constexpr u32 kSteps = G::kHead.columns / 16;
    return tile + step / kSteps * rows * kRowBytes + step % kSteps * 32;
  }
  // d = keys queries^T, a warpgroup's 64 keys by block_m queries: S^T, or dP^T.
  OCTAVO_DEVICE void keys_by_queries(float (&d)[G::kScores], u32 keys, u32 queries) const {
    keys += fresh_group() * kRows * kRowBytes;
    OCTAVO_UNROLL
    for (u32 step = 0; step < C.head_dim / 16; ++step)
      mma<false, false>(d, by_columns(column_step(keys, cta_keys(C), step)),
                        by_columns(column_step(queries, C.block_m, step)), step > 0);
    ptx::wgmma_commit();
  }
  // d += scores^T queries: dV += P^T dO, or dK += dS^T Q. Block 0 replaces d. A pair is launched
  // with 128 registers a thread, and ptxas accepts no product with more, although setmaxnreg adds
  // some. Calls after_step(step) when the product of a step was issued.
  static constexpr int kParts = is_pair(C) ? 2 : 1;
  template <class AfterStep>
  OCTAVO_DEVICE void add_queries(float (&d)[G::kColumns], const Operand& scores, u32 of_block,
                                 u32 queries, const AfterStep& after_step) const {
    OCTAVO_UNROLL
    for (u32 step = 0; step < G::kQuerySteps; ++step) {
      OCTAVO_UNROLL
      for (u32 part = 0; part < kParts; ++part) {
        constexpr u32 kSize = G::kColumns / kParts, kPanels = G::kHead.count / kParts;
        const u32 rows = queries + (part * kPanels * C.block_m + step * 16) * kRowBytes;
        mma(reinterpret_cast<float(&)[kSize]>(d[part * kSize]), scores.a[step],
            by_rows<C.block_m>(rows), step > 0 || of_block > 0);
      }
      after_step(step);
    }
    ptx::wgmma_commit();
  }
  OCTAVO_DEVICE void add_queries(float (&d)[G::kColumns], const Operand& scores, u32 of_block,
                                 u32 queries) const {
    add_queries(d, scores, of_block, queries, [](u32) {});
  }
  // The descriptor of 16 keys of each row of dS.
  static OCTAVO_DEVICE u64 by_keys(u32 address) {
    return at_address(k_major(0, G::kDsSwizzle), in_cta(address));
  }

  // --- steps of a block -------------------------------------------------------------------------

  // The thread's coordinates. pin() hides where the lane came from, so that the compiler recomputes
  // addresses instead of keeping them in registers across the loop.
  OCTAVO_DEVICE ThreadCoord here() const {
    ThreadCoord t = thread;
    ptx::pin(t.lane);
    return t;
  }

  // Two floats of neighbouring queries.
  static OCTAVO_DEVICE void load_pair(u32 from, float& x0, float& x1) {
    u32 bits[2];
    ptx::load_shared_b64(from, bits[0], bits[1]);
    x0 = __builtin_bit_cast(float, bits[0]);
    x1 = __builtin_bit_cast(float, bits[1]);
  }
  // The row statistics of the thread's queries, two of every eight. To save registers, only the
  // first kEarly pairs are loaded at once, before a wait for a product, and the others when they
  // are needed.
  template <int kEarly>
  struct QueryStats {
    u32 from;
    float early[kEarly][2];
    OCTAVO_DEVICE void load(int i, float (&row)[2]) const {
      if (i < kEarly) {
        row[0] = early[i][0];
        row[1] = early[i][1];
      } else {
        load_pair(from + static_cast<u32>(i) * 32, row[0], row[1]);
      }
    }
  };
  template <int kEarly>
  OCTAVO_DEVICE QueryStats<kEarly> load_stats(u32 from) const {
    QueryStats<kEarly> stats;
    stats.from = from + here().lane % 4 * 8;
    OCTAVO_UNROLL
    for (u32 i = 0; i < kEarly; ++i)
      load_pair(stats.from + i * 32, stats.early[i][0], stats.early[i][1]);
    return stats;
  }
  // P = exp2(scale_log2 * S - LSE).
  template <class Stats>
  OCTAVO_DEVICE void exp_scores(float (&s)[G::kScores], const Stats& lse) const {
    OCTAVO_UNROLL
    for (int i = 0; i < C.block_m / 8; ++i) {
      float row[2];
      lse.load(i, row);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e)
        s[i * 4 + e] =
            ptx::exp2_approx(ptx::fused_multiply_add(s[i * 4 + e], p.scale_log2, -row[e % 2]));
    }
  }
  // The same with softcap and ALiBi, for scores x in log2 units:
  //   P = exp2(softcap * tanh(x / softcap) - slope * |distance| - LSE)
  template <class Stats>
  OCTAVO_DEVICE void exp_modified_scores(float (&s)[G::kScores], const Stats& lse, i32 m) const {
    const ScoreModifierParams& scores = modifiers(p).scores;
    const Alibi alibi = alibi_of(m);
    OCTAVO_UNROLL
    for (int i = 0; i < C.block_m / 8; ++i) {
      float row[2];
      lse.load(i, row);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) {
        float score = s[i * 4 + e] * p.scale_log2;
        if (C.modifiers.softcap) score = apply_softcap(score, scores);
        if (C.modifiers.alibi) score = apply_alibi(score, alibi.slope, alibi.distance(i, e));
        s[i * 4 + e] = ptx::exp2_approx(score - row[e % 2]);
      }
    }
  }
  // ALiBi of the thread's two keys. `first` is the distance from the diagonal of the thread's first
  // query of the block to its first key. Its second key is 8 further.
  struct Alibi {
    float slope, first;
    OCTAVO_DEVICE float distance(int i, int e) const {
      return first + static_cast<float>(i * 8 + e % 2 - e / 2 * 8);
    }
  };
  OCTAVO_DEVICE Alibi alibi_of(i32 m) const {
    if (!C.modifiers.alibi) return {};
    const ThreadCoord t = here();
    const Work<Config> work = Work<Config>::read_lengths(G::work_slot());
    const i32 key = work.cta_n() + static_cast<i32>(t.group * kRows + t.warp * 16 + t.lane / 4);
    const i32 offset = p.bottom_right ? work.span.seqlen_kv - work.span.seqlen_q : 0;
    const i32 first = m * C.block_m + static_cast<i32>(t.lane % 4 * 2) + offset - key;
    return {ptx::load_shared_f32(G::slope_slot(q(block).stage())), ptx::float_of_int(first)};
  }
  // Multiplies dS by the derivative of the softcap, 1 - tanh^2. tanh is recomputed from P, as there
  // are no registers to keep it. If P is 0, dS is 0 already.
  template <class Stats>
  OCTAVO_DEVICE void multiply_capped_ds(float (&s)[G::kScores], const float (&dp)[G::kScores],
                                        const Stats& delta, i32 m) const {
    const ScoreModifierParams& scores = modifiers(p).scores;
    const u32 lse_log2 = G::lse_log2(q(block).stage()) + here().lane % 4 * 8;
    const Alibi alibi = alibi_of(m);
    OCTAVO_UNROLL
    for (int i = 0; i < C.block_m / 8; ++i) {
      float lse[2], row[2];
      load_pair(lse_log2 + static_cast<u32>(i) * 32, lse[0], lse[1]);
      delta.load(i, row);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float weight = s[i * 4 + e];
        float score = ptx::log2_approx(weight) + lse[e % 2];
        if (C.modifiers.alibi) score = apply_alibi(score, -alibi.slope, alibi.distance(i, e));
        const float t = score * scores.inverse_softcap_log2;
        const float ds = weight * (dp[i * 4 + e] - row[e % 2]);
        // With a tiny softcap the rounding of the logarithm is magnified, and tanh may come out
        // above 1.
        const float derivative = ptx::max_f32(ptx::fused_multiply_add(-t, t, 1.0f), 0.0f);
        s[i * 4 + e] = weight == 0 ? 0.0f : ds * derivative;
      }
    }
  }
  // dS = P (dP - delta), stored in the registers of P. In those of dP the compiler would place dS
  // so that dQ has no registers left.
  template <class Stats>
  OCTAVO_DEVICE void multiply_ds(float (&s)[G::kScores], const float (&dp)[G::kScores],
                                 const Stats& delta) const {
    OCTAVO_UNROLL
    for (int i = 0; i < C.block_m / 8; ++i) {
      float row[2];
      delta.load(i, row);
      OCTAVO_UNROLL
      for (int e = 0; e < 4; ++e) s[i * 4 + e] *= dp[i * 4 + e] - row[e % 2];
    }
  }
  // Zeroes the scores of queries that do not see a key.
  OCTAVO_DEVICE void hide_unseen(float (&s)[G::kScores], i32 m) const {
    const ThreadCoord t = here();
    const Work<Config> work = Work<Config>::read_lengths(G::work_slot());
    OCTAVO_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const i32 key =
          work.cta_n() + static_cast<i32>(t.group * kRows + t.warp * 16 + r * 8 + t.lane / 4);
      const QueryLimits seen = query_limits(p, work.span, key);
      const i32 first = m * C.block_m + static_cast<i32>(t.lane % 4 * 2);
      OCTAVO_UNROLL
      for (int i = 0; i < C.block_m / 8; ++i) {
        OCTAVO_UNROLL
        for (int e = 0; e < 2; ++e) {
          const i32 query = first + i * 8 + e;
          float& score = s[i * 4 + static_cast<int>(r) * 2 + e];
          score = query >= seen.begin && query < seen.end ? score : 0.0f;
        }
      }
    }
  }
  static OCTAVO_DEVICE void pack(Operand& to, const float (&s)[G::kScores]) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQuerySteps; ++step) {
      OCTAVO_UNROLL
      for (int i = 0; i < 4; ++i) {
        to.a[step][i] = packed(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
      }
    }
  }
  static OCTAVO_DEVICE u32 packed(float low, float high) {
    return C.element == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                     : ptx::bf16x2_from_f32(low, high);
  }
  static OCTAVO_DEVICE void unpack(float (&s)[G::kScores], const Operand& from) {
    OCTAVO_UNROLL
    for (int i = 0; i < G::kScores / 2; ++i)
      unpack_pair(s[i * 2], s[i * 2 + 1], from.a[i / 4][i % 4]);
  }
  static OCTAVO_DEVICE void unpack_pair(float& low, float& high, u32 x) {
    if (C.element == Element::f16) {
      ptx::f32_from_f16x2(low, high, x);
    } else {
      low = ptx::float_of_bits(x << 16);
      high = ptx::float_of_bits(x & 0xffff0000);
    }
  }
  // The address that the lane passes to stmatrix and ldmatrix, for 16 queries of its warp's 16
  // keys.
  OCTAVO_DEVICE u32 ds_row(const ThreadCoord& t, u32 of_block, u32 step) const {
    const u32 matrix = t.lane / 8;
    const u32 query = matrix / 2 * 8 + t.lane % 8;
    const u32 key = t.warp * 16 + matrix % 2 * 8;
    const u32 tile = G::ds_tile(of_block % kDsBuffers) + t.group * C.block_m * G::kDs.row_bytes;
    return tile + swizzled(G::kDsSwizzle, (query + step * 16) * G::kDs.row_bytes + key * 2);
  }
  // Stores dS, or P, of a block in shared memory, one row for each query.
  OCTAVO_DEVICE void store_ds(const Operand& ds, u32 of_block) const {
    const ThreadCoord t = here();
    OCTAVO_UNROLL
    for (u32 step = 0; step < G::kQuerySteps; ++step)
      ptx::stmatrix_x4_trans(ds_row(t, of_block, step), ds.a[step]);
  }
  // Loads the operand that the thread with the same index in the other warpgroup has stored.
  OCTAVO_DEVICE void load_ds(Operand& ds, u32 of_block) const {
    const ThreadCoord t = here();
    OCTAVO_UNROLL
    for (u32 step = 0; step < G::kQuerySteps; ++step)
      ptx::ldmatrix_x4_trans(ds.a[step], ds_row(t, of_block, step));
  }
  // Stores a slice of dQ in register order: warpgroup by warpgroup, and four registers of all its
  // threads together. The tile in global memory has the same order. `part` says which of so many
  // equal parts of the registers is stored.
  struct Part {
    u32 index, count;
  };
  template <int kSize>
  OCTAVO_DEVICE void store_dq(const float (&dq)[kSize], u32 slice, u32 tile,
                              Part part = {0, 1}) const {
    const ThreadCoord t = here();
    const u32 threads = t.group == 0 ? kWarpgroup : last_dq_threads(C);
    if (t.warp * 32 >= threads) return;
    const u32 to = tile + (t.group * (G::kDq / 4) * kWarpgroup + t.warp * 32 + t.lane) * 16;
    constexpr u32 kQuads = G::kDq / 4;
    OCTAVO_UNROLL
    for (u32 i = part.index * kQuads / part.count; i < (part.index + 1) * kQuads / part.count;
         ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (u32 e = 0; e < 4; ++e) x[e] = __builtin_bit_cast(u32, dq[slice * G::kDq + i * 4 + e]);
      ptx::store_shared_b128(to + i * threads * 16, x);
    }
  }
  static OCTAVO_DEVICE void pin(Operand& x) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQuerySteps; ++step) ptx::pin(x.a[step]);
  }
  OCTAVO_DEVICE void arrive(u32 bar) const {
    if (thread.lane == 0) ptx::mbarrier_arrive(bar);
  }

  // Computes P of the current block, whose S is complete.
  template <class Stats>
  OCTAVO_DEVICE void find_p(float (&s)[G::kScores], const Stats& lse, u32 slot) const {
    if (changes_scores(C.modifiers))
      exp_modified_scores(s, lse, static_cast<i32>(slot / 2));
    else
      exp_scores(s, lse);
    if (slot % 2 != 0) hide_unseen(s, static_cast<i32>(slot / 2));
  }
  // Computes dS = P (dP - delta) of the current block, whose dP is complete.
  template <class Stats>
  OCTAVO_DEVICE void find_ds(float (&s)[G::kScores], const float (&dp)[G::kScores],
                             const Stats& delta, u32 slot) const {
    if (C.modifiers.softcap)
      multiply_capped_ds(s, dp, delta, static_cast<i32>(slot / 2));
    else
      multiply_ds(s, dp, delta);
    if (slot % 2 != 0) hide_unseen(s, static_cast<i32>(slot / 2));
  }
  // Twice the number of the block of queries in the current stage, plus 1 if the block needs a
  // mask.
  OCTAVO_DEVICE u32 block_slot() const {
    return __builtin_bit_cast(u32, ptx::load_shared_f32(G::block_slot(q(block).stage())));
  }

  // --- dK and dV --------------------------------------------------------------------------------

  // Stores the warpgroup's 64 rows of dK or dV. They go through the warpgroup's own rows of a tile
  // in shared memory and leave 16 bytes at a time.
  OCTAVO_DEVICE void store_gradient(const float (&d)[G::kColumns], float factor, u32 tile, void* to,
                                    const Strides& strides) const {
    const ThreadCoord t = here();
    const Work<Config> work = Work<Config>::read(G::work_slot());
    tile += t.group * kRows * kRowBytes;
    const u32 row = t.warp * 16 + t.lane % 16;
    OCTAVO_UNROLL
    for (u32 i = 0; i < C.head_dim / 16; ++i) {
      u32 x[4];
      OCTAVO_UNROLL
      for (u32 e = 0; e < 4; ++e) {
        const float low = d[i * 8 + e * 2] * factor, high = d[i * 8 + e * 2 + 1] * factor;
        x[e] = C.element == Element::f16 ? ptx::f16x2_from_f32(low, high)
                                         : ptx::bf16x2_from_f32(low, high);
      }
      ptx::stmatrix_x4(at_column(tile, row, i * 16 + t.lane / 16 * 8), x);
    }
    ptx::warp_sync();
    constexpr u32 kChunks = C.head_dim / 8;  // of a row, 16 bytes each
    OCTAVO_ROLLED
    for (u32 i = 0; i < 16 * kChunks / 32; ++i) {
      const u32 chunk = i * 32 + t.lane;
      const u32 of_row = t.warp * 16 + chunk / kChunks, column = chunk % kChunks * 8;
      u32 x[4];
      ptx::load_shared_b128(at_column(tile, of_row, column), x);
      const i32 key = work.cta_n() + static_cast<i32>(t.group * kRows + of_row);
      if (key < work.span.seqlen_kv && static_cast<i32>(column) < p.head_dim)
        ptx::store_global_b128(
            static_cast<u8*>(to) +
                2 * (work.batch(p) * strides.batch + work.head_kv * strides.head +
                     (work.span.kv_begin + key) * strides.row + column),
            x);
    }
  }
  static OCTAVO_DEVICE u32 at_column(u32 tile, u32 row, u32 column) {
    return tile + column / G::kHead.columns * cta_keys(C) * kRowBytes +
           swizzled(G::kHeadSwizzle, row * kRowBytes + column % G::kHead.columns * 2);
  }
};

}  // namespace octavo::sm90::backward
