// SPDX-License-Identifier: Apache-2.0
// merge_states(): attention over parts of the keys becomes attention over all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "attention/call.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

TEST(MergeStates, MergedPartsEqualAttentionOverAllKeys) {
  test::Call whole(2, 4, 2, 3, 50, 8);
  ASSERT_EQ(attention(whole.arguments).message(), "");
  std::vector<std::vector<float>> memory;
  std::vector<ConstTensor> outs, lses;
  memory.reserve(6);
  std::int64_t begin = 0;
  for (const std::int64_t keys : {10, 39, 1}) {
    Arguments part = whole.arguments;
    for (ConstTensor* t : {&part.k, &part.v}) {
      t->data = static_cast<const float*>(t->data) + begin * t->stride[2];
      t->shape[2] = keys;
    }
    memory.emplace_back(whole.out.size());
    part.out.data = memory.back().data();
    outs.push_back(part.out);
    memory.emplace_back(whole.lse.size());
    part.lse.data = memory.back().data();
    lses.push_back(part.lse);
    ASSERT_EQ(attention(part).message(), "");
    begin += keys;
  }
  std::vector<float> out(whole.out.size()), lse(whole.lse.size());
  Tensor out_view = whole.arguments.out, lse_view = whole.arguments.lse;
  out_view.data = out.data();
  lse_view.data = lse.data();
  ASSERT_EQ(merge_states(outs, lses, out_view, lse_view).message(), "");
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], whole.out[i], 1e-6);
  for (std::size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], whole.lse[i], 1e-6);
  // Without lse, and in the order (batch, seqlen, heads, head_dim).
  std::vector<float> swapped(out.size());
  const Tensor by_rows = Tensor::bshd(swapped.data(), DType::f32, 2, 4, 3, 8);
  ASSERT_EQ(merge_states(outs, lses, by_rows).message(), "");
  EXPECT_EQ(swapped[4 * 8], out[8]);  // row 1 of head 0
}

// Two parts of one head, two rows and one column.
struct TwoParts {
  std::vector<float> out0 = {1, 1}, out1 = {3, 3}, lse0 = {0, 0}, lse1 = {0, 0};
  std::vector<float> merged = {-7, -7}, merged_lse = {-7, -7};
  static Tensor view(std::vector<float>& data) {
    return Tensor::bhsd(data.data(), DType::f32, 1, 1, 2, 1);
  }
  std::vector<ConstTensor> outs{view(out0), view(out1)}, lses{view(lse0), view(lse1)};
  Tensor out = view(merged), lse = view(merged_lse);
  Status run() { return merge_states(outs, lses, out, lse); }
};

TEST(MergeStates, WeightsAreTheExponentialsOfLse) {
  TwoParts parts;
  parts.lse1 = {std::log(3.0f), 200};
  ASSERT_EQ(parts.run().message(), "");
  EXPECT_FLOAT_EQ(parts.merged[0], 2.5f);
  EXPECT_FLOAT_EQ(parts.merged_lse[0], std::log(4.0f));
  EXPECT_FLOAT_EQ(parts.merged[1], 3.0f);  // exp(200) is no float
  EXPECT_FLOAT_EQ(parts.merged_lse[1], 200.0f);
}

TEST(MergeStates, PartsWithoutKeysAreIgnored) {
  TwoParts parts;
  parts.out0 = {kNoNumber, kNoNumber};
  parts.lse0 = {kNone, kNone};
  parts.out1[1] = kNoNumber;
  parts.lse1[1] = kNone;
  ASSERT_EQ(parts.run().message(), "");
  EXPECT_EQ(parts.merged, (std::vector<float>{3, 0}));
  EXPECT_EQ(parts.merged_lse, (std::vector<float>{0, kNone}));
}

TEST(MergeStates, EveryFaultIsOneSentenceAndNothingIsWritten) {
  const auto refused = [](const auto& plant, const std::string& sentence) {
    TwoParts parts;
    plant(parts);
    EXPECT_EQ(parts.run().message(), sentence);
    EXPECT_EQ(parts.merged, (std::vector<float>{-7, -7}));
    EXPECT_EQ(parts.merged_lse, (std::vector<float>{-7, -7}));
  };
  refused([](TwoParts& p) { p.lses.pop_back(); },
          "outs is 2 parts with 1 lses; supported: as many lses as outs, from 1 on.");
  refused([](TwoParts& p) { p.outs = p.lses = {}; },
          "outs is 0 parts with 0 lses; supported: as many lses as outs, from 1 on.");
  refused([](TwoParts& p) { p.outs[1].shape[2] = 1; },
          "outs[1].shape is (1, 1, 1, 1); supported: (1, 1, 2, 1), that of the first part.");
  refused([](TwoParts& p) { p.lses[0].shape[2] = 1; },
          "lses[0].shape is (1, 1, 1, 1); supported: (1, 1, 2, 1), a value per row of a part.");
  refused([](TwoParts& p) { p.lses[1].dtype = DType::f16; },
          "lses[1].dtype is f16; supported: f32.");
  refused([](TwoParts& p) { p.outs[0].dtype = DType::int8; },
          "outs[0].dtype is int8; supported: f32, f16, bf16.");
  refused([](TwoParts& p) { p.out.shape[2] = 1; },
          "out.shape is (1, 1, 1, 1); supported: (1, 1, 2, 1), that of the first part.");
  refused([](TwoParts& p) { p.out.data = p.out1.data(); },
          "out is in memory that outs[1] also covers; supported: memory apart from outs[1].");
  refused([](TwoParts& p) { p.lse.data = p.merged.data(); },
          "lse is in memory that out also covers; supported: memory apart from out.");
  TwoParts parts;
  EXPECT_EQ(merge_states(parts.outs, parts.lses, parts.out, {}, {Device::Kind::emulator, 0}).code(),
            ErrorCode::unsupported);
}

}  // namespace
}  // namespace octavo
