// Numerics of 8-bit Q and K beside 16-bit P and V: FP32 softmax, and P V as in 16 bits.
#pragma once

#include "device/sm90/numerics/bits16.cuh"
#include "device/sm90/numerics/quantized.cuh"

namespace octavo::sm90 {

template <class G>
struct NumericsMixed : Pv16<G>,
                       QuantizedF32Qk<G>,
                       F32Softmax<G, QuantizedF32Qk<G>, kHeadroom16Log2, 0> {
  using Scores = typename QuantizedF32Qk<G>::Scores;
  using Rows = typename QuantizedF32Qk<G>::Rows;
  struct State {
    float o[G::kORegistersWithOnes];
    Rows rows;
  };
  static constexpr float kPLog2 = 0;
  static constexpr bool kLoadsScalesEarly = false;

  static OCTAVO_DEVICE void pack_step(typename G::P& p, const Scores& scores, int step) {
    Pv16<G>::pack_f32_step(p, scores.s, step);
  }
};

}  // namespace octavo::sm90
