// SPDX-License-Identifier: Apache-2.0
// Attention in three loops: over the rows, over the keys for the scores, and over the keys for the
// sum.
#include "evidence/oracle/three_loop.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "attention/mask.h"
#include "cpu/thread_pool.h"

namespace octavo::evidence {
namespace {

struct Head {
  const float* q;
  const float* k;
  const float* v;
  float* out;
  std::int64_t length, head_dim;
  float softcap;
};

void attend_row(const Head& head, std::int64_t i, const KeyRange& keys, float* scores) {
  const std::int64_t head_dim = head.head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  const float* q = head.q + i * head_dim;
  float largest = -HUGE_VALF;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const float* k = head.k + j * head_dim;
    float dot = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) dot += q[d] * k[d];
    scores[j] = dot * scale;
    if (head.softcap != 0) scores[j] = head.softcap * std::tanh(scores[j] / head.softcap);
    largest = std::max(largest, scores[j]);
  }
  float sum = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    scores[j] = std::exp(scores[j] - largest);
    sum += scores[j];
  }
  float* out = head.out + i * head_dim;
  std::fill_n(out, head_dim, 0.0F);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const float* v = head.v + j * head_dim;
    const float p = scores[j] / sum;
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] += p * v[d];
  }
}

}  // namespace

void three_loop(const float* q, const float* k, const float* v, float* out, std::int64_t batch,
                std::int64_t heads, std::int64_t length, std::int64_t head_dim,
                const Options& options, int threads) {
  constexpr std::int64_t kRows = 32;  // a thread takes this many rows at a time
  const std::int64_t blocks = (length + kRows - 1) / kRows;
  const std::int64_t units = batch * heads * blocks;
  std::atomic<std::int64_t> next = 0;
  const auto work = [&](int) {
    std::vector<float> scores(static_cast<std::size_t>(length));
    for (std::int64_t unit = next++; unit < units; unit = next++) {
      const std::int64_t offset = unit / blocks * length * head_dim;
      const Head head{q + offset, k + offset, v + offset,     out + offset,
                      length,     head_dim,   options.softcap};
      const std::int64_t begin = unit % blocks * kRows;
      for (std::int64_t i = begin; i < std::min(begin + kRows, length); ++i)
        attend_row(head, i, visible_keys(options, i, length, length), scores.data());
    }
  };
  cpu::on_own_threads(threads, work);
}

}  // namespace octavo::evidence
