// SPDX-License-Identifier: Apache-2.0
// wgmma takes 16-bit A and B from shared memory in either major-ness: the product is the same.
#include <gtest/gtest.h>

#include <vector>

#include "device/ptx/fence.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/ptx/wgmma_f16.cuh"
#include "emulator/machine.h"
#include "numeric/formats.h"

namespace octavo::emulator {
namespace {

constexpr u32 kM = 64, kN = 32, kK = 16;
constexpr u32 kRowBytes = 128;  // of the swizzle
constexpr u32 kOperandBytes = 64 * kRowBytes;
constexpr u32 kRegisters = kN / 2;

float a_value(u32 m, u32 k) { return static_cast<float>((m * 7 + k * 3) % 13) - 6.0f; }
float b_value(u32 n, u32 k) { return static_cast<float>((n * 5 + k * 11) % 17) * 0.5f - 4.0f; }

// The byte of element (index, k) in rows of 128 bytes, whose 16-byte chunks are exchanged by the
// row number: a row is an index (K-major) or a k (MN-major, up to 64 indices).
u32 byte_of(bool mn_major, u32 index, u32 k) {
  const u32 row = mn_major ? k : index, column = mn_major ? index : k;
  return row * kRowBytes + ((column / 8) ^ (row % 8)) * 16 + column % 8 * 2;
}

u64 descriptor(u32 address) {
  return u64{address >> 4} | u64{1} << 16 | u64{8 * kRowBytes >> 4} << 32 | u64{1} << 62;
}

template <bool kBf16, bool kTransposeA, bool kTransposeB>
void multiply(std::vector<float>& out) {
  const u32 a = ptx::shared_base(), b = a + kOperandBytes, thread = ptx::thread_index();
  const auto bits = [](float x) { return kBf16 ? bf16_from_f32(x) : f16_from_f32(x); };
  for (u32 i = thread; i < kM * kK; i += 128)
    ptx::store_shared_b16(a + byte_of(kTransposeA, i / kK, i % kK), bits(a_value(i / kK, i % kK)));
  for (u32 i = thread; i < kN * kK; i += 128)
    ptx::store_shared_b16(b + byte_of(kTransposeB, i / kK, i % kK), bits(b_value(i / kK, i % kK)));
  ptx::fence_proxy_async();
  ptx::cta_sync();
  float d[kRegisters] = {};
  ptx::pin(d);
  ptx::wgmma_fence();
  if constexpr (kBf16)
    ptx::wgmma_bf16<kTransposeA, kTransposeB>(d, descriptor(a), descriptor(b), false);
  else
    ptx::wgmma_f16<kTransposeA, kTransposeB>(d, descriptor(a), descriptor(b), false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin(d);
  for (u32 i = 0; i < kRegisters; ++i) {
    const u32 row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
    const u32 column = i / 4 * 8 + thread % 4 * 2 + i % 2;
    out[row * kN + column] = d[i];
  }
}

template <bool kBf16, bool kTransposeA, bool kTransposeB>
void expect_product() {
  std::vector<float> out(kM * kN);
  Launch launch;
  launch.kernel = "product";
  launch.arch = 90;
  launch.threads = 128;
  launch.smem_bytes = 2 * kOperandBytes;
  launch.entry = [&out] { multiply<kBf16, kTransposeA, kTransposeB>(out); };
  const GlobalMemory none;
  Machine machine(launch, none, {});
  machine.run();
  EXPECT_TRUE(machine.report().clean()) << machine.report().text();
  for (u32 m = 0; m < kM; ++m)
    for (u32 n = 0; n < kN; ++n) {
      float sum = 0;  // exact: all values are small multiples of 0.5
      for (u32 k = 0; k < kK; ++k) sum += a_value(m, k) * b_value(n, k);
      ASSERT_EQ(out[m * kN + n], sum) << m << " " << n << " " << kTransposeA << kTransposeB;
    }
}

TEST(EmulatorWgmma, ProductDoesNotDependOnMajorness) {
  expect_product<false, false, false>();
  expect_product<false, false, true>();
  expect_product<false, true, false>();
  expect_product<false, true, true>();
  expect_product<true, false, false>();
  expect_product<true, false, true>();
  expect_product<true, true, false>();
  expect_product<true, true, true>();
}

}  // namespace
}  // namespace octavo::emulator
