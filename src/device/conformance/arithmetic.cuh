// SPDX-License-Identifier: Apache-2.0
// Conformance kernels for conversions, byte permutes and approximate functions, one 32-bit word at
// a time.
#pragma once

#include "device/conformance/params.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"

namespace octavo::conformance {

enum class Function : int {
  exp2,
  log2,
  reciprocal,
  f16x2,
  bf16x2,
  e4m3x2,
  e5m2x2,
  sub_f16x2,
  shift_left,
  permute,
  add_bytes,
  fma,
  fma_sat,
  max,
  int_to_float,
  exp2_f16x2,
  f32_low_of_f16x2,
  f32_high_of_f16x2,
  f16x2_of_e4m3x2,
  e4m3x2_of_f16x2,
  fma_f16x2,
  fnma_f16x2,
  fma_sat_f16x2,
  max_f16x2,
  any_ge_f16x2,
  min
};

OCTAVO_DEVICE float as_float(u32 x) {
  // The word passes through shared memory, where it has no type.
  ptx::store_shared_b32(ptx::shared_base() + ptx::thread_index() * 4, x);
  return ptx::load_shared_f32(ptx::shared_base() + ptx::thread_index() * 4);
}

template <Function kFunction>
OCTAVO_DEVICE u32 apply(u32 a, u32 b, u32 c) {
  switch (kFunction) {
    case Function::exp2:
      return ptx::bits_of(ptx::exp2_approx(as_float(a)));
    case Function::log2:
      return ptx::bits_of(ptx::log2_approx(as_float(a)));
    case Function::reciprocal:
      return ptx::bits_of(ptx::reciprocal_approx(as_float(a)));
    case Function::f16x2:
      return ptx::f16x2_from_f32(as_float(a), as_float(b));
    case Function::bf16x2:
      return ptx::bf16x2_from_f32(as_float(a), as_float(b));
    case Function::e4m3x2:
      return ptx::e4m3x2_from_f32(as_float(a), as_float(b));
    case Function::e5m2x2:
      return ptx::e5m2x2_from_f32(as_float(a), as_float(b));
    case Function::sub_f16x2:
      return ptx::sub_f16x2(a, b);
    case Function::shift_left:
      return ptx::shift_left(a, b);
    case Function::permute:
      return ptx::permute_bytes(a, b, c & 0x7777);
    case Function::add_bytes:
      return ptx::add_bytes(a, b);
    case Function::fma:
      return ptx::bits_of(ptx::fused_multiply_add(as_float(a), as_float(b), as_float(c)));
    case Function::fma_sat:
      return ptx::bits_of(ptx::fma_sat_f32(as_float(a), as_float(b), as_float(c)));
    case Function::max:
      return ptx::bits_of(ptx::max_f32(as_float(a), as_float(b)));
    case Function::int_to_float:
      return ptx::bits_of(ptx::float_of_int(static_cast<i32>(a)));
    case Function::exp2_f16x2:
      return ptx::exp2_approx_f16x2(a);
    case Function::f32_low_of_f16x2:
    case Function::f32_high_of_f16x2: {
      float low, high;
      ptx::f32_from_f16x2(low, high, a);
      return ptx::bits_of(kFunction == Function::f32_low_of_f16x2 ? low : high);
    }
    case Function::f16x2_of_e4m3x2:
      return ptx::f16x2_from_e4m3x2(a & 0xffff);
    case Function::e4m3x2_of_f16x2:
      return ptx::e4m3x2_from_f16x2(a);
    case Function::fma_f16x2:
      return ptx::fma_f16x2(a, b, c);
    case Function::fnma_f16x2:
      return ptx::fnma_f16x2(a, b, c);
    case Function::fma_sat_f16x2:
      return ptx::fma_sat_f16x2(a, b, c);
    case Function::max_f16x2:
      return ptx::max_f16x2(a, b);
    case Function::any_ge_f16x2:
      return ptx::any_ge_f16x2(a, b) ? 1 : 0;
    case Function::min:
      return ptx::bits_of(ptx::min_f32(as_float(a), as_float(b)));
  }
  return 0;
}

// in: three words per item; out: one word per item.
template <Function kFunction>
OCTAVO_KERNEL(128, 1)
arithmetic(const OCTAVO_GRID_CONSTANT Params p) {
  const auto word = [&p](i32 i) {
    return static_cast<u32>(ptx::load_global_i32(reinterpret_cast<const i32*>(p.in) + i));
  };
  for (i32 i = static_cast<i32>(ptx::thread_index()); i < p.count; i += 128)
    ptx::store_global_b32(p.out + i,
                          apply<kFunction>(word(i * 3), word(i * 3 + 1), word(i * 3 + 2)));
}

}  // namespace octavo::conformance
