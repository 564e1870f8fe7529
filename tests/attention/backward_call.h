// SPDX-License-Identifier: Apache-2.0
// A small, complete and valid call of the backward pass, for tests that change one thing of it.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/backward_arguments.h"
#include "attention/call.h"

namespace octavo::test {

// Contiguous fp32 tensors with their memory: the inputs are those of a Call, whose out and lse the
// caller fills, and dout is standard normal.
struct BackwardCall {
  Call forward;
  std::vector<float> dout, dq, dk, dv;
  BackwardArguments arguments;

  BackwardCall(std::int64_t b, std::int64_t hq, std::int64_t hkv, std::int64_t sq, std::int64_t skv,
               std::int64_t d, std::uint64_t seed = 1)
      : forward(b, hq, hkv, sq, skv, d, seed),
        dout(floats(b * hq * sq * d)),
        dq(floats(b * hq * sq * d)),
        dk(floats(b * hkv * skv * d)),
        dv(floats(b * hkv * skv * d)) {
    const Arguments& f = forward.arguments;
    arguments.q = f.q;
    arguments.k = f.k;
    arguments.v = f.v;
    arguments.out = f.out;
    arguments.lse = f.lse;
    const Tensor upstream = Tensor::bhsd(dout.data(), DType::f32, b, hq, sq, d);
    if (!random_normal(upstream, seed, 3).ok()) std::abort();
    arguments.dout = upstream;
    arguments.dq = Tensor::bhsd(dq.data(), DType::f32, b, hq, sq, d);
    arguments.dk = Tensor::bhsd(dk.data(), DType::f32, b, hkv, skv, d);
    arguments.dv = Tensor::bhsd(dv.data(), DType::f32, b, hkv, skv, d);
  }

  // Computes out and lse, of which `arguments` hold views.
  Status run_forward(const Options& options) {
    return attention(forward_arguments(arguments), options);
  }

  bool untouched() const {
    for (const auto* written : {&dq, &dk, &dv})
      for (const float x : *written)
        if (x != -7.0f) return false;
    return true;
  }

 private:
  static std::vector<float> floats(std::int64_t n) {
    constexpr std::size_t kRoom = 4096;
    std::vector<float> made;
    made.reserve(static_cast<std::size_t>(n) + kRoom);
    made.assign(static_cast<std::size_t>(n), -7.0f);
    return made;
  }
};

}  // namespace octavo::test
