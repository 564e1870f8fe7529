// SPDX-License-Identifier: Apache-2.0
// Causal attention in C++ with 8 heads and 512 tokens. Prints the first value of the last token.
#include <cstdio>
#include <octavo/octavo.hpp>
#include <vector>

int main() {
  std::vector<float> q(8 * 512 * 64, 0.5f), k(q), v(q.size()), out(q.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 64 % 512);  // its token
  const auto view = [](std::vector<float>& x) {
    return octavo::Tensor::bhsd(x.data(), octavo::DType::f32, 1, 8, 512, 64);
  };
  const octavo::Arguments arguments{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
  const octavo::Status status = octavo::attention(arguments, {.causal = octavo::Causal::top_left});
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.what()), 1;
  std::printf("%.1f\n", static_cast<double>(out[511 * 64]));  // the mean over all tokens: 255.5
}
