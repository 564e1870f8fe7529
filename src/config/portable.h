// SPDX-License-Identifier: Apache-2.0
// The few standard-library functions that config and device code need, for g++, nvcc and NVRTC.
//
// It includes no header: NVRTC has none, and <cuda/std/type_traits> alone costs it 2.1 s.
#pragma once

#if defined(__CUDACC__)
#define OCTAVO_HD __host__ __device__
#else
#define OCTAVO_HD
#endif

namespace octavo {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(i64) == 8 && sizeof(i32) == 4 && sizeof(i16) == 2);

template <class T>
OCTAVO_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
OCTAVO_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}
template <class T>
OCTAVO_HD constexpr T div_up(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
OCTAVO_HD constexpr T round_up(T a, T b) {
  return div_up(a, b) * b;
}

template <class T>
OCTAVO_HD constexpr T gcd_of(T a, T b) {
  return b == 0 ? a : gcd_of(b, a % b);
}

}  // namespace octavo
