// SPDX-License-Identifier: Apache-2.0
// wgmma: asynchronous matrix products of a warpgroup (four warps), and their fence, commit and
// wait. The products themselves are in wgmma_f16.cuh, wgmma_f8.cuh and wgmma_s8.cuh:
//
//   wgmma_f16<kTransposeA, kTransposeB>(d, a, b, accumulate);    d = a b + (accumulate ? d : 0)
//
// d is the warpgroup's 64 x N accumulator; the array size determines N. With w the warp, g =
// lane/4, t = lane%4, register 4i + e holds row 16w + g (+ 8 when e >= 2) and column 8i + 2t + e%2;
// 16-bit accumulators hold two columns per register. b is a matrix descriptor
// (tile/matrix_descriptor.cuh); a is a descriptor too, or four registers per thread, laid out as
// for mma.sync.
//
// Between wgmma_fence and wgmma_wait the tensor cores own the registers of d and a. The compiler
// does not know this: pin the registers before the fence and after the wait, or it serialises the
// products (warnings C7510 to C7514).
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// wgmma.fence.sync.aligned;  before the first wgmma, and after other writes to registers it uses
OCTAVO_PTX void wgmma_fence(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
});
// wgmma.commit_group.sync.aligned;  groups the products started since the last commit
OCTAVO_PTX void wgmma_commit(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
});
// wgmma.wait_group.sync.aligned n;  all but the newest n groups are complete
template <int kPending>
OCTAVO_PTX void wgmma_wait(OCTAVO_SITE) OCTAVO_BODY({
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
});
#if defined(__CUDACC__)

OCTAVO_PTX void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
OCTAVO_PTX void pin(u32& x) { asm volatile("" : "+r"(x)::"memory"); }
OCTAVO_PTX void pin(i32& x) { asm volatile("" : "+r"(x)::"memory"); }
OCTAVO_PTX void pin(u8*& x) { asm volatile("" : "+l"(x)::"memory"); }
OCTAVO_PTX void discard(float& x) { asm volatile("" : "=f"(x)); }

#else

enum class WgmmaType : int { f16, bf16, f32, e4m3, e5m2, s8, u8, s32 };

// m64nNkK where K is 32 bytes; a transposed operand is MN-major.
struct WgmmaShape {
  WgmmaType d, a, b;
  int n;
  bool transpose_a = false, transpose_b = false;
};

// The emulator's entry for every wgmma: d and a are this thread's registers.
void wgmma(const WgmmaShape& shape, void* d, u64 a, u64 b, bool accumulate, Site site);
void wgmma(const WgmmaShape& shape, void* d, const u32 (&a)[4], u64 b, bool accumulate, Site site);

// Marks registers that wgmma is about to use, or that were just waited for.
void pin_registers(const void* first, u32 bytes, Site site);

inline void pin(float& x, Site site = Site::here()) { pin_registers(&x, sizeof x, site); }
inline void pin(u32& x, Site site = Site::here()) { pin_registers(&x, sizeof x, site); }
inline void pin(i32& x, Site site = Site::here()) { pin_registers(&x, sizeof x, site); }
inline void pin(u8*& x, Site site = Site::here()) { pin_registers(&x, sizeof x, site); }
inline void discard(float&) {}

#endif

template <class T, int kSize>
OCTAVO_DEVICE void pin(T (&x)[kSize] OCTAVO_AND_SITE) {
#if defined(__CUDACC__)
  OCTAVO_UNROLL
  for (int i = 0; i < kSize; ++i) pin(x[i]);
#else
  pin_registers(&x, sizeof x, site);
#endif
}

// The values of x are not used any more: without this, the pin() before a product that replaces
// them would keep them in registers.
template <int kSize>
OCTAVO_DEVICE void discard(float (&x)[kSize]) {
  OCTAVO_UNROLL
  for (int i = 0; i < kSize; ++i) discard(x[i]);
}

}  // namespace octavo::ptx
