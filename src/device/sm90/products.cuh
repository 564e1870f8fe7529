// The two products of attention as wgmma: scores s = q k^T from shared memory, o += p v with P in
// registers, or t = p v of codes. Both only start; who calls fences before, commits and waits.
#pragma once

#include "device/ptx/wgmma_f16.cuh"
#include "device/ptx/wgmma_f8.cuh"
#include "device/ptx/wgmma_s8.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Products {
  static constexpr Sm90Forward C = G::C;
  static constexpr int kStepBytes = 32;
  static constexpr int kStepsInBlock = G::kRowBytes / kStepBytes;

  // Descriptors are put together from a low half that moves (address, and the way to the next
  // columns) and a high half that does not: 32-bit sums, one for an operand.
  static OCTAVO_DEVICE u64 descriptor(u32 low, Swizzle swizzle = G::kSwizzle) {
    const u32 high = static_cast<u32>(k_major(0, swizzle) >> 32);
    return static_cast<u64>(high) << 32 | low;
  }

  static OCTAVO_DEVICE u32 q_descriptor(u32 tile) {
    return static_cast<u32>(k_major(G::q_tile(tile), G::kSwizzle));
  }

  // The registers that the tensor cores write.
  static OCTAVO_DEVICE auto& sums_of(typename G::Scores& scores) {
    if constexpr (G::kIntegerScores)
      return scores.sums;
    else if constexpr (G::kHalves)
      return scores.pairs;
    else
      return scores.s;
  }

  // What biased scores start from, in floats that become the integers of q k^T: the tensor cores
  // write them, and no thread has to. All rows, and all columns, are the same 128 bytes.
  static OCTAVO_DEVICE void bias(typename G::Scores& scores) {
    const u32 a = ptx::shared_base() + G::S.ones;
    ptx::wgmma_e5m2(scores.s, MatrixDescriptor{a, 0, 0, Swizzle::none}.encoded(),
                    MatrixDescriptor{a + kBiasBytes, 0, 0, Swizzle::none}.encoded(), false);
  }

  static OCTAVO_DEVICE void qk(typename G::Scores& scores, u32 q, u32 stage) {
    const u32 k =
        static_cast<u32>(k_major(G::k_tile(0), G::kSwizzle)) + stage * (G::S.k_stage >> 4);
    OCTAVO_UNROLL
    for (int step = 0; step < G::kQkBlocks.count * kStepsInBlock; ++step) {
      const u32 block = step / kStepsInBlock, bytes = step % kStepsInBlock * kStepBytes;
      const u64 a = descriptor(q + ((block * kRows * G::kRowBytes + bytes) >> 4));
      const u64 b = descriptor(k + ((block * C.block_n * G::kRowBytes + bytes) >> 4));
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<false, false>(scores.s, a, b, step > 0);
      else if constexpr (C.element == Element::bf16)
        ptx::wgmma_bf16<false, false>(scores.s, a, b, step > 0);
      else if constexpr (C.element == Element::e4m3)
        ptx::wgmma_e4m3(sums_of(scores), a, b, step > 0);
      else if constexpr (C.element == Element::e5m2)
        ptx::wgmma_e5m2(sums_of(scores), a, b, step > 0);
      else
        ptx::wgmma_s8(scores.sums, a, b, G::kBiased || step > 0);
    }
  }

  // V of a stage from its row 16 * step on. Its blocks of columns follow each other, and the ones
  // are the last of them; the ones of a single block lie elsewhere, and the way to them shrinks as
  // the rows go on.
  static OCTAVO_DEVICE u64 v_descriptor(u32 stage, int step) {
    constexpr bool kFarOnes = G::kOnes && !G::kOnesInside;
    constexpr Swizzle kSwizzle = swizzle_of(G::kVRowBytes);
    const u32 next_columns = kFarOnes ? G::S.ones - G::S.v : C.block_n * G::kVRowBytes;
    const u32 first = static_cast<u32>(mn_major(G::v_tile(0), next_columns, kSwizzle));
    constexpr u32 kFurther = kFarOnes ? 1u - (1u << 16) : 1u;  // 16 bytes further
    return descriptor(first + stage * ((G::S.v_stage >> 4) * kFurther) +
                          ((step * 16 * G::kVRowBytes) >> 4) * kFurther,
                      kSwizzle);
  }

  // `adds`: to what O holds, else in its place.
  static OCTAVO_DEVICE void pv_step(typename G::State& state, const typename G::Probabilities& p,
                                    u32 stage, int step, bool adds) {
    const u64 v = v_descriptor(stage, step);
    if constexpr (v_element(C) == Element::f16)
      ptx::wgmma_f16<true>(state.o, p.a[step], v, adds);
    else if constexpr (v_element(C) == Element::bf16)
      ptx::wgmma_bf16<true>(state.o, p.a[step], v, adds);
  }
  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Probabilities& p,
                               u32 stage, bool adds) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) pv_step(state, p, stage, step, step > 0 || adds);
  }

  // --- codes ------------------------------------------------------------------------------------

  // Parts are those of O's columns, and where keys are in halves those of the first half and then
  // those of the second. Calls use(t) with the registers of one. Each buffer has products of one
  // width: of two, the compiler would do one after the other (C7511).
  template <class Use>
  static OCTAVO_DEVICE void with_part(typename G::State& state, int part, Use&& use) {
    if constexpr (C.fold_buffers == 2) {
      if (part % 2 == 0) return use(state.t_first);
    }
    use(state.t);
  }
  // The sums come with the last part.
  static OCTAVO_DEVICE bool has_ones_apart(int part) {
    return G::kOnesApart && part + 1 == G::kParts;
  }
  // What a part of P V is written to, or all of it where nothing is folded.
  static OCTAVO_DEVICE void pin_part(typename G::State& state, int part) {
    if constexpr (G::kFolds) {
      with_part(state, part, [](auto& t) { ptx::pin(t); });
      if (has_ones_apart(part)) ptx::pin(state.t_ones);
    } else {
      ptx::pin(state.o);
    }
  }

  // V transposed: rows are columns of O, from `column` on; behind them are the ones.
  static OCTAVO_DEVICE u64 v_column_descriptor(u32 stage, int step, int column) {
    constexpr Swizzle kSwizzle = swizzle_of(G::kChunkKeys);
    const u32 first = static_cast<u32>(k_major(G::v_tile(0), kSwizzle));
    const u32 key = step * G::kStepKeys;
    const u32 bytes =
        key / G::kChunkKeys * G::kChunkBytes + key % G::kChunkKeys + column * G::kChunkKeys;
    return descriptor(first + stage * (G::S.v_stage >> 4) + (bytes >> 4), kSwizzle);
  }
  // P is e4m3 whatever V is: with e5m2 it would have two bits less. Or unsigned bytes, as V is.
  template <class Sums>
  static OCTAVO_DEVICE void pv_columns_step(Sums& t, const typename G::Probabilities& p, u32 stage,
                                            int step, int column) {
    const u64 v = v_column_descriptor(stage, step, column);
    const bool adds = step % G::kFoldedSteps > 0;
    if constexpr (v_element(C) == Element::e4m3)
      ptx::wgmma_e4m3(t, p.a[step], v, adds);
    else if constexpr (v_element(C) == Element::e5m2)
      ptx::wgmma_e4m3_e5m2(t, p.a[step], v, adds);
    else
      ptx::wgmma_u8(t, p.a[step], v, adds);
  }
  static OCTAVO_DEVICE void pv_part_step(typename G::State& state,
                                         const typename G::Probabilities& p, u32 stage, int step,
                                         int part) {
    with_part(state, part, [&](auto& t) {
      pv_columns_step(t, p, stage, step, part % G::kParts * C.fold_columns);
    });
    if constexpr (G::kOnesApart) {
      if (has_ones_apart(part)) pv_columns_step(state.t_ones, p, stage, step, C.head_dim);
    }
  }
  static OCTAVO_DEVICE void pv_part(typename G::State& state, const typename G::Probabilities& p,
                                    u32 stage, int part) {
    const int first = part / G::kParts * G::kFoldedSteps;
    OCTAVO_UNROLL
    for (int step = 0; step < G::kFoldedSteps; ++step)
      pv_part_step(state, p, stage, first + step, part);
  }

  static OCTAVO_DEVICE void pin_probabilities(typename G::Probabilities& p) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) ptx::pin(p.a[step]);
  }
};

}  // namespace octavo::sm90
