// The two products of attention as wgmma: scores s = q k^T from shared memory, o += p v with P in
// registers. Both only start; who calls fences before, commits and waits.
#pragma once

#include "device/ptx/wgmma_f16.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct Products {
  static constexpr Sm90Forward C = G::C;
  static constexpr int kStepsInBlock = block_columns(C) / 16;

  // Descriptors are put together from a low half that moves (address, and the way to the next
  // columns) and a high half that does not: 32-bit sums, one for an operand.
  static constexpr u32 kHigh = static_cast<u32>(k_major(0, G::kSwizzle) >> 32);
  static OCTAVO_DEVICE u64 descriptor(u32 low) { return static_cast<u64>(kHigh) << 32 | low; }

  static OCTAVO_DEVICE u32 q_descriptor(u32 tile) {
    return static_cast<u32>(k_major(G::q_tile(tile), G::kSwizzle));
  }

  static OCTAVO_DEVICE void qk(typename G::Scores& scores, u32 q, u32 stage) {
    const u32 k =
        static_cast<u32>(k_major(G::k_tile(0), G::kSwizzle)) + stage * (G::S.k_stage >> 4);
    OCTAVO_UNROLL
    for (int step = 0; step < C.head_dim / 16; ++step) {
      const u32 block = step / kStepsInBlock, bytes = step % kStepsInBlock * 32;
      const u64 a = descriptor(q + ((block * kRows * G::kRowBytes + bytes) >> 4));
      const u64 b = descriptor(k + ((block * C.block_n * G::kRowBytes + bytes) >> 4));
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<false, false>(scores.s, a, b, step > 0);
      else
        ptx::wgmma_bf16<false, false>(scores.s, a, b, step > 0);
    }
  }

  // V of a stage from its row 16 * step on. Its blocks of columns follow each other, and the ones
  // are the last of them; the ones of a single block lie elsewhere, and the way to them shrinks as
  // the rows go on.
  static OCTAVO_DEVICE u64 v_descriptor(u32 stage, int step) {
    constexpr bool kFarOnes = C.ones && !G::kOnesInside;
    const u32 next_columns = kFarOnes ? G::S.ones - G::S.v : C.block_n * G::kRowBytes;
    const u32 first = static_cast<u32>(mn_major(G::v_tile(0), next_columns, G::kSwizzle));
    constexpr u32 kFurther = kFarOnes ? 1u - (1u << 16) : 1u;  // 16 bytes further
    return descriptor(first + stage * ((G::S.v_stage >> 4) * kFurther) +
                      ((step * 16 * G::kRowBytes) >> 4) * kFurther);
  }

  // `adds`: to what O holds, else in its place.
  static OCTAVO_DEVICE void pv_step(typename G::State& state, const typename G::Probabilities& p,
                                    u32 stage, int step, bool adds) {
    const u64 v = v_descriptor(stage, step);
    if constexpr (C.element == Element::f16)
      ptx::wgmma_f16<true>(state.o, p.a[step], v, adds);
    else
      ptx::wgmma_bf16<true>(state.o, p.a[step], v, adds);
  }
  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Probabilities& p,
                               u32 stage, bool adds) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) pv_step(state, p, stage, step, step > 0 || adds);
  }

  static OCTAVO_DEVICE void pin_probabilities(typename G::Probabilities& p) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) ptx::pin(p.a[step]);
  }
};

}  // namespace octavo::sm90
