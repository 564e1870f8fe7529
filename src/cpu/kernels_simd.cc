// SPDX-License-Identifier: Apache-2.0
// The SIMD kernels, compiled once per instruction set with Highway; the ones that this machine
// supports are selected at run time.
#include "cpu/kernels_simd.h"

#include "numeric/fork_safe.h"

// Only common targets are compiled: AVX-512 and AVX2 on x86 (other machines use the portable
// kernels), NEON and SVE on Arm.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels_simd.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
#include "cpu/row-inl.h"
#include "cpu/tile-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace octavo::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

const Kernels* table() { return nullptr; }

#else

// Independent chains of multiply-adds, more than latency (4 or 5 cycles) times units of any core in
// use. On x86 that is 10, and with twelve chains the constants still fit into 16 registers; Arm's
// widest cores have four NEON units and 32 registers.
double multiply_adds(std::int64_t rounds) {
  const D32 d;
  // Accumulates into the chain as a matrix product does: on Arm any other sum would cost a copy.
  const V scale = hn::Set(d, 0.999f), step = hn::Set(d, 0.001f);
  constexpr bool kMore = HWY_ARCH_ARM;
  // The starts differ, because equal chains would be computed once. They are not an array, because
  // the size of a vector is unknown at compile time on some targets.
  V x0 = hn::Set(d, 0.0f), x1 = hn::Set(d, 0.1f), x2 = hn::Set(d, 0.2f), x3 = hn::Set(d, 0.3f),
    x4 = hn::Set(d, 0.4f), x5 = hn::Set(d, 0.5f), x6 = hn::Set(d, 0.6f), x7 = hn::Set(d, 0.7f),
    x8 = hn::Set(d, 0.8f), x9 = hn::Set(d, 0.9f), x10 = hn::Set(d, 1.1f), x11 = hn::Set(d, 1.2f);
  V x12 = hn::Set(d, 1.3f), x13 = hn::Set(d, 1.4f), x14 = hn::Set(d, 1.5f), x15 = hn::Set(d, 1.6f),
    x16 = hn::Set(d, 1.7f), x17 = hn::Set(d, 1.8f), x18 = hn::Set(d, 1.9f), x19 = hn::Set(d, 2.0f),
    x20 = hn::Set(d, 2.1f), x21 = hn::Set(d, 2.2f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(scale, step, x0);
    x1 = hn::MulAdd(scale, step, x1);
    x2 = hn::MulAdd(scale, step, x2);
    x3 = hn::MulAdd(scale, step, x3);
    x4 = hn::MulAdd(scale, step, x4);
    x5 = hn::MulAdd(scale, step, x5);
    x6 = hn::MulAdd(scale, step, x6);
    x7 = hn::MulAdd(scale, step, x7);
    x8 = hn::MulAdd(scale, step, x8);
    x9 = hn::MulAdd(scale, step, x9);
    x10 = hn::MulAdd(scale, step, x10);
    x11 = hn::MulAdd(scale, step, x11);
    if constexpr (kMore) {
      x12 = hn::MulAdd(scale, step, x12);
      x13 = hn::MulAdd(scale, step, x13);
      x14 = hn::MulAdd(scale, step, x14);
      x15 = hn::MulAdd(scale, step, x15);
      x16 = hn::MulAdd(scale, step, x16);
      x17 = hn::MulAdd(scale, step, x17);
      x18 = hn::MulAdd(scale, step, x18);
      x19 = hn::MulAdd(scale, step, x19);
      x20 = hn::MulAdd(scale, step, x20);
      x21 = hn::MulAdd(scale, step, x21);
    }
  }
  V sum = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, x5));
  sum = hn::Add(sum, hn::Add(hn::Add(hn::Add(x6, x7), hn::Add(x8, x9)), hn::Add(x10, x11)));
  sum = hn::Add(sum, hn::Add(hn::Add(hn::Add(x12, x13), hn::Add(x14, x15)), hn::Add(x16, x17)));
  sum = hn::Add(sum, hn::Add(hn::Add(x18, x19), hn::Add(x20, x21)));
  HWY_ALIGN float kept[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(sum, d, kept);
  volatile float sink = kept[0];
  static_cast<void>(sink);
  constexpr double kChains = kMore ? 22 : 12;
  return 2 * kChains * static_cast<double>(lanes()) * static_cast<double>(rounds);
}

const Kernels* table() {
  static constinit MadeOnce<Kernels> made;
  return &made.get([] {
    return Kernels{hwy::TargetName(HWY_TARGET),
                   lanes(),
                   kMaxVectors,
                   scores,
                   modify_scores,
                   softmax,
                   accumulate,
                   product,
                   softmax_backward,
                   to_f32,
                   from_f32,
                   round_to,
                   scale_row,
                   multiply_row,
                   multiply_adds};
  });
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace octavo::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace octavo::cpu {

HWY_EXPORT(table);

std::vector<const Kernels*> simd_kernels() {
  std::vector<const Kernels*> found;
  // One bit per target, the best one lowest. Highway's own dispatch is not used, because it is
  // shared with other users of Highway in the process.
  for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0; rest &= rest - 1) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
    const Kernels* kernels = HWY_STATIC_DISPATCH(table)();
#else
    hwy::ChosenTarget chosen;
    chosen.Update(rest);
    const Kernels* kernels = HWY_DISPATCH_TABLE(table)[chosen.GetIndex()]();
#endif
    if (kernels != nullptr) found.push_back(kernels);
  }
  return found;
}

}  // namespace octavo::cpu
#endif
