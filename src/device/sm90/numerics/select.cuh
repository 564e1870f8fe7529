// SPDX-License-Identifier: Apache-2.0
// Which numerics a configuration computes with.
#pragma once

#include "device/sm90/numerics/bits16.cuh"
#include "device/sm90/numerics/fp8.cuh"
#include "device/sm90/numerics/fp8_f16.cuh"
#include "device/sm90/numerics/int8.cuh"
#include "device/sm90/numerics/modified16.cuh"
#include "device/sm90/numerics/quantized.cuh"

namespace octavo::sm90 {

// mixed: 8-bit Q and K with 16-bit P and V.
enum class NumericsKind : int { bits16, modified16, mixed, fp8, fp8_f16, int8 };

constexpr NumericsKind numerics_kind(const Sm90ForwardConfig& c) {
  return fuses_modifiers(c)  ? NumericsKind::modified16
         : !is_8bit_qk(c)    ? NumericsKind::bits16
         : !is_8bit_pv(c)    ? NumericsKind::mixed
         : is_int8_pv(c)     ? NumericsKind::int8
         : has_f16_scores(c) ? NumericsKind::fp8_f16
                             : NumericsKind::fp8;
}

template <class G, NumericsKind kKind>
struct SelectNumerics;
template <class G>
struct SelectNumerics<G, NumericsKind::bits16> {
  using Type = NumericsPv16<G, Qk16<G>>;
};
template <class G>
struct SelectNumerics<G, NumericsKind::modified16> {
  using Type = NumericsModified16<G>;
};
template <class G>
struct SelectNumerics<G, NumericsKind::mixed> {
  using Type = NumericsPv16<G, QuantizedF32Qk<G>>;
};
template <class G>
struct SelectNumerics<G, NumericsKind::fp8> {
  using Type = NumericsFp8<G>;
};
template <class G>
struct SelectNumerics<G, NumericsKind::fp8_f16> {
  using Type = NumericsFp8F16<G>;
};
template <class G>
struct SelectNumerics<G, NumericsKind::int8> {
  using Type = NumericsInt8<G>;
};

template <class G>
using NumericsOf = typename SelectNumerics<G, numerics_kind(G::C)>::Type;

}  // namespace octavo::sm90
