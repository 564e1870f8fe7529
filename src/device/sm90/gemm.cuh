// SPDX-License-Identifier: Apache-2.0
// wgmma descriptors of the two products, S = Q K^T and O += P V, and the loop over the steps of
// Q K^T. Callers fence before it, commit and wait after it.
#pragma once

#include "device/ptx/wgmma.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

inline constexpr int kStepBytes = 32;  // bytes of each row that one wgmma consumes

// Builds a 64-bit descriptor from its low half. Only the low half (address and leading offset)
// varies, so callers add to it in 32 bits.
OCTAVO_DEVICE u64 descriptor(u32 low, Swizzle swizzle) {
  const u32 high = static_cast<u32>(k_major(0, swizzle) >> 32);
  return static_cast<u64>(high) << 32 | low;
}

template <class G>
OCTAVO_DEVICE u32 q_descriptor(u32 tile) {
  return static_cast<u32>(k_major(G::q_tile(tile), G::kSwizzle));
}

// Calls mma(a, b, step) for every 32 bytes of head_dim.
template <class G, class Mma>
OCTAVO_DEVICE void for_each_qk_step(u32 q, u32 stage, Mma&& mma) {
  constexpr int kStepsInPanel = G::kRowBytes / kStepBytes;
  const u32 k = static_cast<u32>(k_major(G::k_tile(0), G::kSwizzle)) + stage * (G::S.k_stage >> 4);
  OCTAVO_UNROLL
  for (int step = 0; step < G::kQkPanels.count * kStepsInPanel; ++step) {
    const u32 panel = step / kStepsInPanel, bytes = step % kStepsInPanel * kStepBytes;
    mma(descriptor(q + ((panel * kRows * G::kRowBytes + bytes) >> 4), G::kSwizzle),
        descriptor(k + ((panel * G::C.block_n * G::kRowBytes + bytes) >> 4), G::kSwizzle), step);
  }
}

template <class P>
OCTAVO_DEVICE void pin_p(P& p) {
  OCTAVO_UNROLL
  for (auto& step : p.a) ptx::pin(step);
}

}  // namespace octavo::sm90
