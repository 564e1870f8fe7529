// SPDX-License-Identifier: Apache-2.0
// Conformance kernels of one warp: ldmatrix, stmatrix, mma.sync, cp.async, shuffles.
#pragma once

#include "device/conformance/params.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/mma.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::conformance {

OCTAVO_DEVICE u32 input(const Params& p, u32 i) {
  return static_cast<u32>(ptx::load_global_i32(reinterpret_cast<const i32*>(p.in) + i));
}
OCTAVO_DEVICE u32 shared_word(u32 i) { return ptx::shared_base() + i * 4; }

enum class Matrix : int { ld_x4, ld_x4_trans, ld_x2, ld_x2_trans, st_x4, st_x4_trans, st_x2 };

// in: 512 words of shared memory, 32 row indices (rows of 16 bytes), 128 registers. out: 128
// registers, or the 512 words.
template <Matrix kMatrix>
OCTAVO_KERNEL(32, 1)
matrix(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  for (u32 i = lane; i < 512; i += 32) ptx::store_shared_b32(shared_word(i), input(p, i));
  ptx::cta_sync();
  const u32 row = ptx::shared_base() + (input(p, 512 + lane) % 128) * 16;
  u32 r[4] = {};
  u32 two[2] = {};
  for (u32 i = 0; i < 4; ++i) r[i] = input(p, 544 + lane * 4 + i);
  two[0] = r[0];
  two[1] = r[1];
  if constexpr (kMatrix == Matrix::ld_x4) ptx::ldmatrix_x4(r, row);
  if constexpr (kMatrix == Matrix::ld_x4_trans) ptx::ldmatrix_x4_trans(r, row);
  if constexpr (kMatrix == Matrix::ld_x2) ptx::ldmatrix_x2(two, row);
  if constexpr (kMatrix == Matrix::ld_x2_trans) ptx::ldmatrix_x2_trans(two, row);
  if constexpr (kMatrix >= Matrix::st_x4) {
    if constexpr (kMatrix == Matrix::st_x4) ptx::stmatrix_x4(row, r);
    if constexpr (kMatrix == Matrix::st_x4_trans) ptx::stmatrix_x4_trans(row, r);
    if constexpr (kMatrix == Matrix::st_x2) ptx::stmatrix_x2(row, two);
    ptx::cta_sync();
    for (u32 i = lane; i < 512; i += 32)
      ptx::store_global_f32(reinterpret_cast<float*>(p.out) + i,
                            ptx::load_shared_f32(shared_word(i)));
    return;
  }
  if constexpr (kMatrix == Matrix::ld_x2 || kMatrix == Matrix::ld_x2_trans) {
    r[0] = two[0];
    r[1] = two[1];
  }
  for (u32 i = 0; i < 4; ++i) ptx::store_global_b32(p.out + lane * 4 + i, r[i]);
}

enum class Mma : int { f16, bf16, e4m3, e5m2, e4m3_e5m2, s8, u8_s8 };

// `count` products, each with A (4 words per lane), B (2) and C (4) in, and D (4) out.
template <Mma kMma>
OCTAVO_KERNEL(32, 1)
mma(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  for (u32 n = 0; n < static_cast<u32>(p.count); ++n) {
    const u32 first = (n * 32 + lane) * 10;
    u32 a[4], b[2];
    for (u32 i = 0; i < 4; ++i) a[i] = input(p, first + i);
    for (u32 i = 0; i < 2; ++i) b[i] = input(p, first + 4 + i);
    const u32 out = (n * 32 + lane) * 4;
    if constexpr (kMma >= Mma::s8) {
      i32 c[4];
      for (u32 i = 0; i < 4; ++i) c[i] = static_cast<i32>(input(p, first + 6 + i));
      i32 d[4];
      if constexpr (kMma == Mma::s8)
        ptx::mma_m16n8k32_s8(d, a, b, c);
      else
        ptx::mma_m16n8k32_u8_s8(d, a, b, c);
      for (u32 i = 0; i < 4; ++i) ptx::store_global_b32(p.out + out + i, static_cast<u32>(d[i]));
    } else {
      float c[4], d[4];
      for (u32 i = 0; i < 4; ++i)
        c[i] = ptx::load_global_f32(reinterpret_cast<const float*>(p.in) + first + 6 + i);
      if constexpr (kMma == Mma::f16) ptx::mma_m16n8k16_f16(d, a, b, c);
      if constexpr (kMma == Mma::bf16) ptx::mma_m16n8k16_bf16(d, a, b, c);
      if constexpr (kMma == Mma::e4m3) ptx::mma_m16n8k32_e4m3(d, a, b, c);
      if constexpr (kMma == Mma::e5m2) ptx::mma_m16n8k32_e5m2(d, a, b, c);
      if constexpr (kMma == Mma::e4m3_e5m2) ptx::mma_m16n8k32_e4m3_e5m2(d, a, b, c);
      for (u32 i = 0; i < 4; ++i)
        ptx::store_global_f32(reinterpret_cast<float*>(p.out) + out + i, d[i]);
    }
  }
}

// cp.async of 16, 8 and 4 bytes, with rows that exist and rows that do not. out: 512 words of
// shared memory.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
cp_async(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  for (u32 i = lane; i < 512; i += 32) ptx::store_shared_b32(shared_word(i), 0xcdcdcdcdu);
  ptx::cta_sync();
  const bool exists = input(p, 512 + lane) % 3 != 0;
  ptx::cp_async_16(shared_word(lane * 4), p.in + lane * 4, exists);
  ptx::cp_async_narrow<8>(shared_word(128 + lane * 4), p.in + 128 + lane * 2, exists);
  ptx::cp_async_narrow<4>(shared_word(256 + lane * 3), p.in + 256 + lane, exists);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::cta_sync();
  for (u32 i = lane; i < 512; i += 32)
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + i,
                          ptx::load_shared_f32(shared_word(i)));
}

// cp.async of 16 bytes with an L2 eviction policy. The rest of `out` holds the grid size.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
cp_async_hinted(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  for (u32 i = lane; i < 512; i += 32)
    ptx::store_shared_b32(shared_word(i), static_cast<u32>(ptx::grid_size_x()));
  ptx::cta_sync();
  const bool exists = input(p, 512 + lane) % 3 != 0;
  ptx::cp_async_16_hinted(shared_word(lane * 8), p.in + lane * 4, exists, ptx::l2_evict_last());
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::cta_sync();
  for (u32 i = lane; i < 512; i += 32)
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + i,
                          ptx::load_shared_f32(shared_word(i)));
}

// mma.sync with C and D in FP16: C is the first two of its four words, D is written to the first
// two.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
mma_in_f16(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  for (u32 n = 0; n < static_cast<u32>(p.count); ++n) {
    const u32 first = (n * 32 + lane) * 10;
    u32 a[4], b[2], c[2], d[2];
    for (u32 i = 0; i < 4; ++i) a[i] = input(p, first + i);
    for (u32 i = 0; i < 2; ++i) b[i] = input(p, first + 4 + i);
    // The input words are floats, whose halves are not FP16 values near 1: keep sign and fraction
    // and replace the exponent.
    for (u32 i = 0; i < 2; ++i) c[i] = (input(p, first + 6 + i) & 0x83ff83ffu) | 0x38003800u;
    ptx::mma_m16n8k16_f16_in_f16(d, a, b, c);
    for (u32 i = 0; i < 2; ++i) ptx::store_global_b32(p.out + (n * 32 + lane) * 4 + i, d[i]);
  }
}

// out, per lane: a shuffle by each power of two, a vote, and the elected lane.
template <int kThreads>
OCTAVO_KERNEL(kThreads, 1)
lanes(const OCTAVO_GRID_CONSTANT Params p) {
  const u32 lane = ptx::thread_index();
  const float x = ptx::load_global_f32(reinterpret_cast<const float*>(p.in) + lane);
  u32 at = lane * 8;
  for (int mask = 1; mask < 32; mask *= 2)
    ptx::store_global_f32(reinterpret_cast<float*>(p.out) + at++, ptx::shuffle_xor(x, mask));
  ptx::store_global_b32(p.out + at++, ptx::warp_any(lane == 7) ? 1 : 0);
  ptx::store_global_b32(p.out + at++, ptx::warp_any(lane == 99) ? 1 : 0);
  ptx::store_global_b32(p.out + at++, ptx::elect_one() ? 1 : 0);
}

}  // namespace octavo::conformance
