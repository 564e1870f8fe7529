// SPDX-License-Identifier: Apache-2.0
// Options::sm_margin on the emulator: fewer CTAs take the tiles, and the bits stay, except those of
// the decode kernel, whose CTAs divide the keys.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kHopper{Device::Kind::emulator, 90};  // 132 SMs

struct Halves {
  std::vector<std::uint16_t> bits;
  Tensor view;
  Halves(std::int64_t batch, std::int64_t heads, std::int64_t length, std::uint64_t stream)
      : bits(static_cast<std::size_t>(batch * heads * length * 64)),
        view(Tensor::bhsd(bits.data(), DType::f16, batch, heads, length, 64)) {
    EXPECT_TRUE(random_normal(view, 7, stream).ok());
  }
};

struct Attention {
  Halves q, k, v;
  Attention(std::int64_t heads, std::int64_t rows, std::int64_t keys)
      : q(1, heads, rows, 1), k(1, heads, keys, 2), v(1, heads, keys, 3) {}

  std::vector<std::uint16_t> run(const Options& options,
                                 const std::vector<std::int32_t>& cu_seqlens = {}) {
    Halves out(1, q.view.shape[1], q.view.shape[2], 4);
    Arguments a;
    a.q = q.view;
    a.k = k.view;
    a.v = v.view;
    a.out = out.view;
    if (!cu_seqlens.empty()) {
      a.cu_seqlens_q = a.cu_seqlens_kv = cu_seqlens.data();
      a.sequences = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
      a.max_seqlen_q = a.max_seqlen_kv = q.view.shape[2];
    }
    const Status status = attention(a, options, kHopper);
    EXPECT_TRUE(status.ok()) << status.message();
    return out.bits;
  }
};

// 448 rows are three tiles of 192 rows, the last of which is short: with four CTAs the short tiles
// of both heads come last.
TEST(EmulatorSmMargin, ChangesNoBitsOfTheHopperKernel) {
  Attention call(2, 448, 300);
  const std::vector<std::vector<std::int32_t>> sequences = {{}, {0, 70, 70, 300}};
  for (const auto& cu_seqlens : sequences)
    for (const Causal causal : {Causal::none, Causal::bottom_right}) {
      Options options;
      options.causal = causal;
      options.batch_invariant = true;  // a kernel for large grids, which is persistent
      const auto wanted = call.run(options, cu_seqlens);
      for (const std::int64_t margin : {128, 129, 131}) {
        options.sm_margin = margin;
        EXPECT_EQ(call.run(options, cu_seqlens), wanted) << margin;
      }
    }
}

TEST(EmulatorSmMargin, DecodesTheSameWithinRounding) {
  Attention call(2, 1, 2500);
  const auto wanted = call.run({});
  for (const std::int64_t margin : {130, 131}) {
    Options options;
    options.sm_margin = margin;
    const auto found = call.run(options);
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(f32_from_f16(found[i]), f32_from_f16(wanted[i]), 1e-3) << margin;
  }
}

}  // namespace
}  // namespace octavo
