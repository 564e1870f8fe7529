// SPDX-License-Identifier: Apache-2.0
// SIMD conversions of rows: from any format to f32 and back, rounding and scaling. Included once
// per instruction set.
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/kernels.h"
#include "cpu/vector-inl.h"

#if defined(OCTAVO_CPU_ROW_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_CPU_ROW_TOGGLE
#undef OCTAVO_CPU_ROW_TOGGLE
#else
#define OCTAVO_CPU_ROW_TOGGLE
#endif

HWY_BEFORE_NAMESPACE();
namespace octavo::cpu {
namespace HWY_NAMESPACE {

// ---------------------------------------------------------------------------------------------
// Rows: formats

struct Rows {
  std::int64_t stride, count, n;
  float* target;
  std::int64_t pitch;
};

// Converts any stored type T with `convert`. The tail is copied first, because no element past the
// row may be read.
template <class T, class Convert>
HWY_INLINE void widen(const T* source, const Rows& rows, Convert convert) {
  const D32 d;
  const hn::Rebind<T, D32> dt;
  const std::int64_t step = lanes();
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const T* from = source + r * rows.stride;
    float* to = rows.target + r * rows.pitch;
    std::int64_t i = 0;
    for (; i + step <= rows.n; i += step) hn::StoreU(convert(hn::LoadU(dt, from + i)), d, to + i);
    if (i == rows.n) continue;
    HWY_ALIGN T tail[HWY_MAX_BYTES / sizeof(float)] = {};
    std::memcpy(tail, from + i, static_cast<std::size_t>(rows.n - i) * sizeof(T));
    hn::StoreU(convert(hn::Load(dt, tail)), d, to + i);
  }
}

HWY_INLINE V f32_of_bf16(hn::Vec<hn::Rebind<std::uint16_t, D32>> bits) {
  const U32 du;
  return hn::BitCast(D32(), hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

// Uses only integer arithmetic, so that every target agrees: a denormal is read with an implicit
// leading one, which is subtracted again.
template <int kMantissa, int kBias, std::uint32_t kInfinityBits>
HWY_INLINE V f32_of_small(hn::Vec<U32> magnitude) {
  const D32 d;
  const U32 du;
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kOffset = static_cast<std::uint32_t>(127 - kBias) << 23;
  const auto bits = hn::ShiftLeft<kShift>(magnitude);
  const V normal = hn::BitCast(d, hn::Add(bits, hn::Set(du, kOffset)));
  const V smallest = hn::BitCast(d, hn::Set(du, kOffset + (1u << 23)));
  const V denormal =
      hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(du, kOffset + (1u << 23)))), smallest);
  const auto is_denormal = hn::Lt(magnitude, hn::Set(du, 1u << kMantissa));
  const V finite = hn::IfThenElse(hn::RebindMask(d, is_denormal), denormal, normal);
  // From kInfinityBits on the exponent is all ones and the mantissa is kept, so NaN stays NaN.
  const V special = hn::BitCast(d, hn::Or(bits, hn::Set(du, 0x7F800000u)));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, kInfinityBits - 1));
  return hn::IfThenElse(hn::RebindMask(d, is_special), special, finite);
}

template <int kMantissa, int kBias, std::uint32_t kInfinityBits, int kSignBit>
HWY_INLINE V f32_of_signed_small(hn::Vec<U32> code) {
  const U32 du;
  const auto sign = hn::And(code, hn::Set(du, 1u << kSignBit));
  const V magnitude = f32_of_small<kMantissa, kBias, kInfinityBits>(hn::Xor(code, sign));
  return hn::Or(magnitude, hn::BitCast(D32(), hn::ShiftLeft<31 - kSignBit>(sign)));
}

void to_f32(DType dtype, const void* source, std::int64_t stride, std::int64_t count,
            std::int64_t n, float* target, std::int64_t pitch) {
  const Rows rows{stride, count, n, target, pitch};
  const D32 d;
  const I32 di;
  const U32 du;
  const auto* u8 = static_cast<const std::uint8_t*>(source);
  const auto* u16 = static_cast<const std::uint16_t*>(source);
  switch (dtype) {
    case DType::f32:
      return widen(static_cast<const float*>(source), rows, [](auto x) HWY_ATTR { return x; });
    case DType::f16:
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // F16C; signalling NaN becomes quiet
      return widen(u16, rows, [=](auto x) HWY_ATTR {
        return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D32>(), x));
      });
#else
      return widen(u16, rows, [=](auto x) HWY_ATTR {
        return f32_of_signed_small<10, 15, 0x7C00, 15>(hn::PromoteTo(du, x));
      });
#endif
    case DType::bf16:
      return widen(u16, rows, [](auto x) HWY_ATTR { return f32_of_bf16(x); });
    case DType::e4m3:
      return widen(u8, rows, [=](auto x) HWY_ATTR {
        return f32_of_signed_small<3, 7, 0x7F, 7>(hn::PromoteTo(du, x));
      });
    case DType::e5m2:
      return widen(u8, rows, [=](auto x) HWY_ATTR {
        return f32_of_signed_small<2, 15, 0x7C, 7>(hn::PromoteTo(du, x));
      });
    case DType::int8:
      return widen(static_cast<const std::int8_t*>(source), rows,
                   [=](auto x) HWY_ATTR { return hn::ConvertTo(d, hn::PromoteTo(di, x)); });
    case DType::sim8:
      return widen(u8, rows, [=](auto x) HWY_ATTR {
        return hn::ConvertTo(d, hn::Sub(hn::PromoteTo(di, x), hn::Set(di, 128)));
      });
    case DType::boolean:
    case DType::int4:
      break;
  }
}

// ---------------------------------------------------------------------------------------------
// Rows: rounding

// Rounds to nearest even at kMantissa bits with the smallest exponent kMinExponent: after adding
// 2^23 quanta the sum has no bits below the quantum. Beyond `largest`: `overflow`. NaN stays NaN.
template <int kMantissa, int kMinExponent>
HWY_INLINE V round_small(V x, float largest, float overflow) {
  const D32 d;
  const U32 du;
  const V magnitude = hn::Abs(x);
  const V top = hn::Set(d, 2 * largest);
  const V bounded = hn::IfThenElse(hn::Gt(magnitude, top), top, magnitude);
  const auto exponent = hn::Max(hn::And(hn::BitCast(du, bounded), hn::Set(du, 0x7F800000u)),
                                hn::Set(du, static_cast<std::uint32_t>(127 + kMinExponent) << 23));
  const V magic = hn::BitCast(
      d, hn::Add(exponent, hn::Set(du, static_cast<std::uint32_t>(23 - kMantissa) << 23)));
  const V rounded = hn::Sub(hn::Add(bounded, magic), magic);
  const V limit = hn::Set(d, largest);
  const V kept = hn::IfThenElse(hn::Gt(rounded, limit), hn::Set(d, overflow), rounded);
  // The sum of a NaN and the magic number may have any sign, so it is not used.
  return hn::IfThenElse(hn::Eq(x, x), hn::CopySignToAbs(kept, x), x);
}

HWY_INLINE V round_bf16(V x) {
  const D32 d;
  const U32 du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded =
      hn::And(hn::Add(hn::Add(bits, odd), hn::Set(du, 0x7FFF)), hn::Set(du, 0xFFFF0000u));
  const V quiet =
      hn::BitCast(d, hn::And(hn::Or(bits, hn::Set(du, 0x00400000u)), hn::Set(du, 0xFFFF0000u)));
  return hn::IfThenElse(hn::Eq(x, x), hn::BitCast(d, rounded), quiet);
}

HWY_INLINE V round_integer(V x) {
  const D32 d;
  const V number = hn::IfThenElseZero(hn::Eq(x, x), x);
  const V bounded = hn::Max(hn::Min(number, hn::Set(d, 127.0f)), hn::Set(d, -127.0f));
  return hn::Round(bounded);
}

template <class Change>
HWY_INLINE void change_row(float* row, std::int64_t n, Change change) {
  const D32 d;
  const std::int64_t step = lanes();
  for (std::int64_t i = 0; i < n; i += step)
    hn::StoreU(change(hn::LoadU(d, row + i), i), d, row + i);
}

void round_to(DType dtype, float* row, std::int64_t n) {
  const float infinity = std::numeric_limits<float>::infinity();
  switch (dtype) {
    case DType::f32:
      return;
    case DType::f16:
      return change_row(row, n, [=](V x, std::int64_t) HWY_ATTR {
        return round_small<10, -14>(x, 65504.0f, infinity);
      });
    case DType::bf16:
      return change_row(row, n, [](V x, std::int64_t) HWY_ATTR { return round_bf16(x); });
    case DType::e4m3:
      return change_row(
          row, n, [](V x, std::int64_t) HWY_ATTR { return round_small<3, -6>(x, 448.0f, 448.0f); });
    case DType::e5m2:
      return change_row(row, n, [](V x, std::int64_t) HWY_ATTR {
        return round_small<2, -14>(x, 57344.0f, 57344.0f);
      });
    case DType::int8:
    case DType::sim8:
      return change_row(row, n, [](V x, std::int64_t) HWY_ATTR { return round_integer(x); });
    case DType::boolean:
    case DType::int4:
      break;
  }
}

void scale_row(float* row, float factor, std::int64_t n) {
  change_row(row, n,
             [=](V x, std::int64_t) HWY_ATTR { return hn::Mul(x, hn::Set(D32(), factor)); });
}

void multiply_row(float* row, const float* factors, std::int64_t n) {
  change_row(row, n, [=](V x, std::int64_t i) HWY_ATTR {
    return hn::Mul(x, hn::LoadU(D32(), factors + i));
  });
}

// ---------------------------------------------------------------------------------------------
// Rows: out

// The bits of a value that round_small<10, -14> made. A denormal is an integer of quanta 2^-24.
HWY_INLINE hn::Vec<U32> f16_bits(V rounded) {
  const D32 d;
  const U32 du;
  const auto bits = hn::BitCast(du, rounded);
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
  const V magnitude = hn::Abs(rounded);
  const auto magnitude_bits = hn::BitCast(du, magnitude);
  const auto normal = hn::Sub(hn::ShiftRight<13>(magnitude_bits), hn::Set(du, 112u << 10));
  // 1.0 + m * 2^-23 holds m in its low bits.
  const V quanta = hn::MulAdd(magnitude, hn::Set(d, 2.0f), hn::Set(d, 1.0f));
  const auto denormal = hn::And(hn::BitCast(du, quanta), hn::Set(du, 0x7FFFFF));
  const auto is_denormal = hn::Lt(magnitude_bits, hn::Set(du, 113u << 23));
  const auto finite = hn::IfThenElse(is_denormal, denormal, normal);
  const auto infinity = hn::Set(du, 0x7C00);
  const auto large = hn::IfThenElse(hn::Gt(magnitude_bits, hn::Set(du, 255u << 23)),
                                    hn::Set(du, 0x7E00), infinity);
  const auto is_large = hn::Gt(magnitude_bits, hn::Set(du, (255u << 23) - 1));
  return hn::Or(sign, hn::IfThenElse(is_large, large, finite));
}

template <class Bits>
HWY_INLINE void narrow(const float* row, std::int64_t n, std::uint16_t* target, Bits bits) {
  const D32 d;
  const I32 di;
  const hn::Rebind<std::uint16_t, D32> dh;
  const std::int64_t step = lanes();
  const auto convert = [=](std::int64_t i) HWY_ATTR {
    return hn::DemoteTo(dh, hn::BitCast(di, bits(hn::LoadU(d, row + i))));
  };
  std::int64_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(convert(i), dh, target + i);
  if (i == n) return;
  HWY_ALIGN std::uint16_t tail[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(convert(i), dh, tail);
  std::memcpy(target + i, tail, static_cast<std::size_t>(n - i) * sizeof(std::uint16_t));
}

void from_f32(DType dtype, const float* row, std::int64_t n, void* target) {
  if (dtype == DType::f32) {
    std::memcpy(target, row, static_cast<std::size_t>(n) * sizeof(float));
  } else if (dtype == DType::f16) {
    narrow(row, n, static_cast<std::uint16_t*>(target), [](V x) HWY_ATTR {
      return f16_bits(round_small<10, -14>(x, 65504.0f, std::numeric_limits<float>::infinity()));
    });
  } else {
    narrow(row, n, static_cast<std::uint16_t*>(target),
           [](V x) HWY_ATTR { return hn::ShiftRight<16>(hn::BitCast(U32(), round_bf16(x))); });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace octavo::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
