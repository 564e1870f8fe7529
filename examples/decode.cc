// SPDX-License-Identifier: Apache-2.0
// Decoding with a paged KV cache: a prompt of 100 tokens, a fork of it, and 20 tokens more for
// each, one at a time. Prints the first value of the last token of both.
#include <array>
#include <cstdint>
#include <cstdio>
#include <octavo/kv_cache.hpp>
#include <vector>

constexpr std::int64_t kHeads = 2, kQueryHeads = 8, kDim = 64;

// Tokens [begin, end) of `sequences` sequences: equal keys, and values that are the token's number.
struct NewTokens {
  std::vector<float> k, v;
  octavo::Tensor k_view, v_view;
  NewTokens(std::int64_t sequences, std::int64_t begin, std::int64_t end)
      : k(static_cast<std::size_t>(sequences * kHeads * (end - begin) * kDim), 0.5f), v(k) {
    const auto tokens = static_cast<std::size_t>(end - begin);
    for (std::size_t i = 0; i < v.size(); ++i)
      v[i] = static_cast<float>(static_cast<std::size_t>(begin) + i / kDim % tokens);
    const auto view = [&](std::vector<float>& x) {
      return octavo::Tensor::bhsd(x.data(), octavo::DType::f32, sequences, kHeads, end - begin,
                                  kDim);
    };
    k_view = view(k);
    v_view = view(v);
  }
};

int main() try {
  octavo::KvCacheOptions options;
  options.pages = 32;
  options.page_size = 16;
  options.heads = kHeads;
  options.head_dim = kDim;
  options.dtype = octavo::DType::f16;
  octavo::KvCache cache = octavo::KvCache::create(options).value();

  const auto check = [](const octavo::Status& status) {
    if (!status.ok()) throw status;
  };
  const std::int64_t first = cache.add_sequence().value();
  check(cache.select({{first}}));
  const NewTokens prompt(1, 0, 100);
  check(cache.append(prompt.k_view, prompt.v_view));
  const std::int64_t second = cache.fork(first).value();  // shares the pages of the prompt

  std::vector<float> q(2 * kQueryHeads * kDim, 0.5f), out(q.size());
  octavo::Arguments arguments;
  arguments.q = octavo::Tensor::bhsd(q.data(), octavo::DType::f32, 2, kQueryHeads, 1, kDim);
  arguments.out = octavo::Tensor::bhsd(out.data(), octavo::DType::f32, 2, kQueryHeads, 1, kDim);
  check(cache.select({{first, second}}));
  cache.set_arguments(arguments);  // the same addresses for all tokens
  for (std::int64_t token = 100; token < 120; ++token) {
    const NewTokens step(2, token, token + 1);
    check(cache.append(step.k_view, step.v_view));
    check(octavo::attention(arguments, {.causal = octavo::Causal::bottom_right}));
  }
  // The mean over 120 tokens: 59.5.
  std::printf("%.1f %.1f\n", static_cast<double>(out[0]),
              static_cast<double>(out[kQueryHeads * kDim]));
} catch (const octavo::Status& status) {
  return std::fprintf(stderr, "%s\n", status.what()), 1;
}
