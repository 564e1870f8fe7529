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

  static OCTAVO_DEVICE u64 q_descriptor(u32 tile) { return k_major(G::q_tile(tile), G::kSwizzle); }

  static OCTAVO_DEVICE void qk(typename G::Scores& scores, u64 q, u32 stage) {
    const u64 k = k_major(G::k_tile(stage), G::kSwizzle);
    OCTAVO_UNROLL
    for (int step = 0; step < C.head_dim / 16; ++step) {
      const u32 block = step / kStepsInBlock, bytes = step % kStepsInBlock * 32;
      const u64 a = advanced(q, block * kRows * G::kRowBytes + bytes);
      const u64 b = advanced(k, block * C.block_n * G::kRowBytes + bytes);
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<false, false>(scores.s, a, b, step > 0);
      else
        ptx::wgmma_bf16<false, false>(scores.s, a, b, step > 0);
    }
  }

  // V from its row 16 * step on. Its blocks of columns follow each other, and the ones are the last
  // of them; the ones of a single block lie elsewhere, and stay there while the rows go on.
  static OCTAVO_DEVICE u64 v_descriptor(u32 stage, int step) {
    const u32 tile = G::v_tile(stage);
    constexpr u32 kNextColumns = C.block_n * G::kRowBytes;
    const u32 bytes = step * 16 * G::kRowBytes;
    if constexpr (C.ones && !G::kOnesInside) {
      const u32 to_ones = ptx::shared_base() + G::S.ones - tile;
      return advanced_from_next(mn_major(tile, to_ones, G::kSwizzle), bytes);
    } else {
      return advanced(mn_major(tile, kNextColumns, G::kSwizzle), bytes);
    }
  }

  static OCTAVO_DEVICE void pv(typename G::State& state, const typename G::Probabilities& p,
                               u32 stage) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) {
      const u64 v = v_descriptor(stage, step);
      if constexpr (C.element == Element::f16)
        ptx::wgmma_f16<true>(state.o, p.a[step], v, true);
      else
        ptx::wgmma_bf16<true>(state.o, p.a[step], v, true);
    }
  }

  static OCTAVO_DEVICE void pin_probabilities(typename G::Probabilities& p) {
    OCTAVO_UNROLL
    for (int step = 0; step < G::kPvSteps; ++step) ptx::pin(p.a[step]);
  }
};

}  // namespace octavo::sm90
