// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/accuracy_data.h"

#include <cmath>

#include "numeric/fork_safe.h"
#include "numeric/formats.h"
#include "numeric/random.h"

namespace octavo::evidence {
namespace {

// Random streams that make_inputs() does not use.
enum RandomStream : std::uint64_t { kWhere = 10, kHowLarge = 20, kMeanKey = 30 };

// Calls change(value, b, h, s, d, n) for every element; n is its index.
template <class Change>
void for_each_value(const Tensor& t, const Change& change) {
  std::uint64_t n = 0;
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < t.shape[2]; ++s)
        for (std::int64_t d = 0; d < t.shape[3]; ++d, ++n) {
          const std::int64_t at =
              b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d * t.stride[3];
          store_element(t.dtype, t.data, at, change(load_element(t.dtype, t.data, at), h, s, d, n));
        }
}

void add_outliers(Inputs& in, std::uint64_t seed) {
  constexpr std::uint64_t kOneIn = 1000;
  constexpr float kDeviation = 10;
  std::uint64_t stream = 0;
  for (Inputs::Operand* x : {&in.q, &in.k, &in.v}) {
    for_each_value(x->wide.view, [&](float value, auto, auto, auto, std::uint64_t n) {
      if (random_below(seed, kWhere + stream, n, kOneIn) != 0) return value;
      return value + kDeviation * random_normal_value(seed, kHowLarge + stream, n);
    });
    ++stream;
  }
}

// Adds the same mean key to all keys of a head. The softmax does not change, but the scales do.
void bias_keys(Inputs& in, std::uint64_t seed) {
  constexpr float kDeviation = 4;
  const std::int64_t columns = in.k.wide.view.shape[3];
  for_each_value(in.k.wide.view, [&](float value, std::int64_t h, auto, std::int64_t d, auto) {
    return value + kDeviation * random_normal_value(seed, kMeanKey,
                                                    static_cast<std::uint64_t>(h * columns + d));
  });
}

void raise_v(Inputs& in, std::uint64_t /*seed*/) {
  for_each_value(in.v.wide.view, [](float value, auto, auto, auto, auto) { return value + 2; });
}

// Replaces the component of Q and K along the diagonal direction u: it becomes a for every query
// and for key 0, and 0 for the other keys. The scores of key 0 then rise by a^2 / sqrt(D) = 12. Its
// V has 5% of the normal size.
void add_sink(Inputs& in, std::uint64_t /*seed*/) {
  const std::int64_t columns = in.q.wide.view.shape[3];
  const double a = std::sqrt(12 * std::sqrt(static_cast<double>(columns)));
  const double along = a / std::sqrt(static_cast<double>(columns));  // in each column
  const auto set = [&](const Tensor& t, bool every_row) {
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < t.shape[2]; ++s) {
        const std::int64_t first = h * t.stride[1] + s * t.stride[2];
        double mean = 0;
        for (std::int64_t d = 0; d < columns; ++d)
          mean += load_element(t.dtype, t.data, first + d) / static_cast<double>(columns);
        for (std::int64_t d = 0; d < columns; ++d) {
          const double value = load_element(t.dtype, t.data, first + d) - mean;
          const bool sees = every_row || s == 0;
          store_element(t.dtype, t.data, first + d,
                        static_cast<float>(sees ? value + along : value));
        }
      }
  };
  set(in.q.wide.view, true);
  set(in.k.wide.view, false);
  for_each_value(in.v.wide.view, [](float value, auto, std::int64_t s, auto, auto) {
    return s == 0 ? 0.05f * value : value;
  });
}

Case size_of(std::int64_t heads, std::int64_t seqlen_q, std::int64_t seqlen_kv,
             std::int64_t head_dim) {
  Case c;
  c.heads_q = c.heads_kv = heads;
  c.seqlen_q = seqlen_q;
  c.seqlen_kv = seqlen_kv;
  c.head_dim = head_dim;
  c.lse = false;
  return c;
}

// A case for each of these lengths, with `judged` rows; 0: all rows. A bias needs many rows to be
// measured: the columns of a row share the roundings of P, which leaves an uncertainty of 1.9e-3 /
// sqrt(rows) at 512 keys.
std::vector<Case> lengths(const std::vector<std::int64_t>& all, std::int64_t head_dim,
                          std::int64_t judged) {
  constexpr std::int64_t kQueries = 128;
  std::vector<Case> cases;
  for (const std::int64_t keys : all) {
    cases.push_back(size_of(1, kQueries, keys, head_dim));
    cases.back().sampled_rows = judged;
  }
  return cases;
}

}  // namespace

const std::vector<Distribution>& distributions() {
  static constinit MadeOnce<std::vector<Distribution>> made;
  return made.get([] {
    // All rows of the `mission` preset (1, 8, 512, 64) are judged; elsewhere a sample is enough.
    const Case mission = size_of(8, 512, 512, 64);
    Case some = mission, wide = size_of(8, 2048, 2048, 128);
    Case large = size_of(4, 16384, 16384, 128);
    some.sampled_rows = 64;
    wide.sampled_rows = 32;
    large.sampled_rows = 16;
    std::vector<Distribution> all = {
        {"normal", "Q, K and V standard normal", {mission, wide, large}},
        {"outliers", "normal, plus a normal of deviation 10 on one value in a thousand", {wide}},
        {"outliers_rotated", "the same, Q and K rotated by a Hadamard matrix", {wide}, true},
        {"biased_keys", "normal, plus a mean key of deviation 4", {some}},
        {"v_mean", "normal, V of mean 2", lengths({512, 2048, 4096, 8192, 16384, 131072}, 128, 0)},
        {"sink", "normal, but for one key whose scores are 12 above, its V at 5%", {some}},
        {"long", "normal, many keys", lengths({4096, 16384, 131072}, 64, 16)},
    };
    // As many queries as keys, because a grid that fills a GPU uses other tiles than a few queries.
    Case filled = size_of(8, 6144, 6144, 128);
    filled.sampled_rows = 32;
    all[4].sizes.push_back(filled);
    all[1].shape = all[2].shape = add_outliers;
    all[3].shape = bias_keys;
    all[4].shape = raise_v;
    all[5].shape = add_sink;
    return all;
  });
}

Result<Inputs> make_inputs(const Distribution& of, const Case& c) {
  Result<Inputs> made = make_inputs(c);
  if (made.ok() && of.shape != nullptr) of.shape(*made, c.seed);
  return made;
}

}  // namespace octavo::evidence
