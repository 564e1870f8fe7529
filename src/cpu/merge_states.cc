// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge_states.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cpu/attention.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"
#include "numeric/formats.h"

namespace octavo::cpu {
namespace {

// One row of (B, H, S).
struct MergedRow {
  std::int64_t b, h, s;
  template <class Void>
  std::int64_t first(const BasicTensor<Void>& t) const {
    return b * t.stride[0] + h * t.stride[1] + s * t.stride[2];
  }
};

struct MergedParts {
  std::span<const ConstTensor> outs, lses;

  float lse(std::size_t i, const MergedRow& row) const {
    return static_cast<const float*>(lses[i].data)[row.first(lses[i])];
  }
  // The largest finite lse of the parts, which keeps the exponentials in range; 0 if there is none.
  float largest(const MergedRow& row) const {
    float most = -kInfinity;
    for (std::size_t i = 0; i < lses.size(); ++i) most = std::max(most, lse(i, row));
    return std::isinf(most) ? 0 : most;
  }
};

void merge_row(const MergedParts& parts, const MergedRow& row, std::vector<float>& weights,
               const Tensor& out, const Tensor& lse) {
  const float largest = parts.largest(row);
  float total = 0;
  for (std::size_t i = 0; i < weights.size(); ++i)
    total += weights[i] = std::exp(parts.lse(i, row) - largest);
  for (std::int64_t c = 0; c < out.shape[3]; ++c) {
    float sum = 0;
    for (std::size_t i = 0; i < parts.outs.size(); ++i) {
      const ConstTensor& part = parts.outs[i];
      if (weights[i] != 0)
        sum += weights[i] * load_element(part.dtype, part.data, row.first(part) + c);
    }
    store_element(out.dtype, out.data, row.first(out) + c, total == 0 ? 0 : sum / total);
  }
  if (lse.data != nullptr)
    static_cast<float*>(lse.data)[row.first(lse)] =
        total == 0 ? -kInfinity : largest + std::log(total);
}

}  // namespace

void merge_states(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses,
                  const Tensor& out, const Tensor& lse) {
  const std::int64_t heads = out.shape[1], rows = out.shape[2];
  parallel_for(out.shape[0] * heads, thread_count(), [&](std::int64_t head, int) {
    std::vector<float> weights(outs.size());
    for (std::int64_t s = 0; s < rows; ++s)
      merge_row({outs, lses}, {head / heads, head % heads, s}, weights, out, lse);
  });
}

}  // namespace octavo::cpu
