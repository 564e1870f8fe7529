// SPDX-License-Identifier: Apache-2.0
// The float vector type of all SIMD files. Included once per instruction set, hence the toggling
// guard.
#include <hwy/highway.h>

#include <cstdint>

#if defined(OCTAVO_CPU_VECTOR_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_CPU_VECTOR_TOGGLE
#undef OCTAVO_CPU_VECTOR_TOGGLE
#else
#define OCTAVO_CPU_VECTOR_TOGGLE
#endif

HWY_BEFORE_NAMESPACE();
namespace octavo::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<D32>;
using U32 = hn::RebindToUnsigned<D32>;
using V = hn::Vec<D32>;

HWY_INLINE std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(D32())); }

}  // namespace HWY_NAMESPACE
}  // namespace octavo::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
