// SPDX-License-Identifier: Apache-2.0
// A small, complete and valid call, for tests that change one thing of it.
#pragma once

#include <cstdint>
#include <vector>

#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo::test {

// Contiguous fp32 tensors with their memory. Inputs are standard normal. Each allocation is as
// large as the largest tensor, so that a test may point one tensor at another's memory without
// reaching a third.
struct Call {
  std::vector<float> q, k, v, out, lse;
  Arguments arguments;

  Call(std::int64_t b, std::int64_t hq, std::int64_t hkv, std::int64_t sq, std::int64_t skv,
       std::int64_t d, std::uint64_t seed = 1)
      : q(floats(b * hq * sq * d, 0)),
        k(floats(b * hkv * skv * d, 0)),
        v(floats(b * hkv * skv * d, 0)),
        out(floats(b * hq * sq * d, -7)),
        lse(floats(b * hq * sq, -7)) {
    const Tensor tq = Tensor::bhsd(q.data(), DType::f32, b, hq, sq, d);
    const Tensor tk = Tensor::bhsd(k.data(), DType::f32, b, hkv, skv, d);
    const Tensor tv = Tensor::bhsd(v.data(), DType::f32, b, hkv, skv, d);
    for (const auto& [tensor, stream] : {std::pair{tq, 0}, {tk, 1}, {tv, 2}})
      if (!random_normal(tensor, seed, static_cast<std::uint64_t>(stream)).ok()) std::abort();
    arguments.q = tq;
    arguments.k = tk;
    arguments.v = tv;
    arguments.out = Tensor::bhsd(out.data(), DType::f32, b, hq, sq, d);
    arguments.lse = Tensor::bhsd(lse.data(), DType::f32, b, hq, sq, 1);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool untouched() const {
    for (const auto* written : {&out, &lse})
      for (const float x : *written)
        if (x != -7.0f) return false;
    return true;
  }

 private:
  static std::vector<float> floats(std::int64_t n, float value) {
    constexpr std::size_t kRoom = 4096;
    std::vector<float> made;
    made.reserve(static_cast<std::size_t>(n) + kRoom);
    made.assign(static_cast<std::size_t>(n), value);
    return made;
  }
};

}  // namespace octavo::test
