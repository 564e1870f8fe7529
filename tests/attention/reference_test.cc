// SPDX-License-Identifier: Apache-2.0
#include "attention/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/call.h"
#include "numeric/formats.h"

namespace octavo {
namespace {

using test::Call;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Reference, TwoKeysByHand) {
  Call call(1, 1, 1, 1, 2, 2);
  call.q = {1.0f, 2.0f};
  call.k = {1.0f, 0.0f, 0.0f, 1.0f};
  call.v = {10.0f, 20.0f, 30.0f, 40.0f};
  call.arguments.scale = 0.5f;
  double out[2], lse[1];
  ASSERT_TRUE(reference(call.arguments, {}, out, lse).ok());
  const double p1 = std::exp(1.0) / (std::exp(0.5) + std::exp(1.0));
  EXPECT_NEAR(out[0], 10 * (1 - p1) + 30 * p1, 1e-12);
  EXPECT_NEAR(out[1], 20 * (1 - p1) + 40 * p1, 1e-12);
  EXPECT_NEAR(lse[0], std::log(std::exp(0.5) + std::exp(1.0)), 1e-12);
}

TEST(Reference, DefaultScaleIsTheInverseRootOfTheHeadDimension) {
  Call call(1, 2, 1, 3, 4, 16);
  std::vector<double> unset(2 * 3 * 16), given(2 * 3 * 16);
  ASSERT_TRUE(reference(call.arguments, {}, unset.data()).ok());
  call.arguments.scale = 0.25f;
  ASSERT_TRUE(reference(call.arguments, {}, given.data()).ok());
  EXPECT_EQ(unset, given);
}

// Every column of O depends on its own column of V alone, and the scale on the columns of Q and K.
TEST(Reference, FewerColumnsOfVGiveThoseOfTheOutput) {
  Call call(2, 4, 2, 3, 5, 8);
  std::vector<double> all(2 * 4 * 3 * 8), some(2 * 4 * 3 * 5);
  ASSERT_TRUE(reference(call.arguments, {}, all.data()).ok());
  call.arguments.v.shape[3] = call.arguments.out.shape[3] = 5;
  ASSERT_EQ(reference(call.arguments, {}, some.data()).message(), "");
  for (std::size_t row = 0; row < 2 * 4 * 3; ++row)
    for (std::size_t c = 0; c < 5; ++c) EXPECT_EQ(some[row * 5 + c], all[row * 8 + c]);
}

TEST(Reference, CausalRowsSeeOnlyTheirKeys) {
  Call call(1, 1, 1, 3, 3, 4);
  std::vector<double> out(12);
  Options options;
  options.causal = Causal::top_left;
  ASSERT_TRUE(reference(call.arguments, options, out.data()).ok());
  for (int c = 0; c < 4; ++c) EXPECT_DOUBLE_EQ(out[c], call.v[c]) << "row 0 sees key 0 alone";
}

TEST(Reference, RowsWithoutKeysAreZeroAndMinusInfinity) {
  Call call(1, 1, 1, 4, 2, 4);
  std::vector<double> out(16, 1.0), lse(4, 1.0);
  Options options;
  options.causal = Causal::bottom_right;  // rows 0 and 1 lie before the first key
  ASSERT_TRUE(reference(call.arguments, options, out.data(), lse.data()).ok());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(out[i], 0.0);
  EXPECT_EQ(lse[0], -kInfinity);
  EXPECT_EQ(lse[1], -kInfinity);
  EXPECT_GT(lse[2], -kInfinity);
}

TEST(Reference, QueryHeadsUseTheKvHeadOfTheirGroup) {
  Call grouped(1, 4, 2, 3, 5, 8);
  std::vector<double> all(4 * 3 * 8);
  ASSERT_TRUE(reference(grouped.arguments, {}, all.data()).ok());
  for (std::int64_t head = 0; head < 4; ++head) {
    Arguments one = grouped.arguments;
    one.lse = {};
    one.q.shape[1] = one.k.shape[1] = one.v.shape[1] = one.out.shape[1] = 1;
    one.q.data = grouped.q.data() + head * 24;
    one.k.data = grouped.k.data() + head / 2 * 40;
    one.v.data = grouped.v.data() + head / 2 * 40;
    std::vector<double> single(24);
    ASSERT_TRUE(reference(one, {}, single.data()).ok());
    for (std::size_t i = 0; i < 24; ++i)
      EXPECT_EQ(single[i], all[static_cast<std::size_t>(head) * 24 + i]);
  }
}

TEST(Reference, VarlenSequencesEqualSeparateSequences) {
  constexpr std::int64_t kH = 2, kD = 8;
  Call tokens(1, kH, kH, 9, 7, kD);
  const std::int32_t cu_q[] = {0, 4, 4, 9};
  const std::int32_t cu_kv[] = {0, 3, 5, 7};
  Arguments a = tokens.arguments;
  a.cu_seqlens_q = cu_q;
  a.cu_seqlens_kv = cu_kv;
  a.sequences = 3;
  a.max_seqlen_q = 5;
  a.max_seqlen_kv = 3;
  std::vector<double> varlen(kH * 9 * kD), alone(kH * 9 * kD);
  ASSERT_TRUE(reference(a, {}, varlen.data()).ok());
  for (int s : {0, 2}) {
    Arguments one = tokens.arguments;
    one.lse = {};
    const std::int64_t seqlen_q = cu_q[s + 1] - cu_q[s], seqlen_kv = cu_kv[s + 1] - cu_kv[s];
    one.q.shape[2] = one.out.shape[2] = seqlen_q;
    one.k.shape[2] = one.v.shape[2] = seqlen_kv;
    one.q.data = tokens.q.data() + cu_q[s] * kD;
    one.k.data = tokens.k.data() + cu_kv[s] * kD;
    one.v.data = tokens.v.data() + cu_kv[s] * kD;
    ASSERT_TRUE(reference(one, {}, alone.data()).ok());
    for (std::int64_t h = 0; h < kH; ++h)
      for (std::int64_t i = 0; i < seqlen_q * kD; ++i)
        EXPECT_EQ(alone[static_cast<std::size_t>(h * seqlen_q * kD + i)],
                  varlen[static_cast<std::size_t>((h * 9 + cu_q[s]) * kD + i)]);
  }
}

TEST(Reference, CuSeqlensAreClampedNotTrusted) {
  Call tokens(1, 1, 1, 4, 4, 4);
  const std::int32_t hostile[] = {-5, -3, 2, 1000000};
  Arguments a = tokens.arguments;
  a.cu_seqlens_q = a.cu_seqlens_kv = hostile;
  a.sequences = 3;
  a.max_seqlen_q = a.max_seqlen_kv = 1000;
  std::vector<double> out(16);
  EXPECT_TRUE(reference(a, {}, out.data()).ok());
}

TEST(Reference, EightBitInputsAreDequantized) {
  Call call(1, 1, 1, 2, 3, 8);
  std::vector<std::uint8_t> codes(24);
  for (std::size_t i = 0; i < 24; ++i) codes[i] = int8_from_f32(static_cast<float>(i) - 12);
  const float row_scales[] = {0.5f, 0.25f, 0.125f};
  std::vector<float> same(24);
  for (std::size_t i = 0; i < 24; ++i) same[i] = (static_cast<float>(i) - 12) * row_scales[i / 8];

  Arguments coded = call.arguments;
  coded.k = ConstTensor::bhsd(codes.data(), DType::int8, 1, 1, 3, 8);
  coded.k_scales = {row_scales, Granularity::row};
  Arguments plain = call.arguments;
  plain.k = ConstTensor::bhsd(same.data(), DType::f32, 1, 1, 3, 8);
  std::vector<double> a(16), b(16);
  ASSERT_TRUE(reference(coded, {}, a.data()).ok());
  ASSERT_TRUE(reference(plain, {}, b.data()).ok());
  EXPECT_EQ(a, b);
}

TEST(ReferenceTiled, WithoutRoundingEqualsTheReferenceInAnyOrder) {
  Call call(1, 2, 1, 9, 50, 16);
  Options options;
  options.causal = Causal::bottom_right;
  options.window_left = 30;
  std::vector<double> exact(2 * 9 * 16), tiled(exact.size());
  ASSERT_TRUE(reference(call.arguments, options, exact.data()).ok());
  for (const std::int64_t block : {1, 7, 16, 64})
    for (const bool backwards : {false, true})
      for (const double threshold : {0.0, 8.0}) {
        TiledRounding t;
        t.block_keys = block;
        t.backwards = backwards;
        t.rescale_threshold_log2 = threshold;
        ASSERT_TRUE(reference_tiled(call.arguments, options, t, tiled.data()).ok());
        for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(tiled[i], exact[i], 1e-12);
      }
}

TEST(ReferenceTiled, ErrorOfRoundedPFollowsTheFormat) {
  Call call(1, 1, 1, 32, 256, 16);
  std::vector<double> exact(32 * 16), tiled(exact.size());
  ASSERT_TRUE(reference(call.arguments, {}, exact.data()).ok());
  const auto worst = [&](const TiledRounding& t) {
    EXPECT_TRUE(reference_tiled(call.arguments, {}, t, tiled.data()).ok());
    double error = 0;
    for (std::size_t i = 0; i < exact.size(); ++i)
      error = std::max(error, std::abs(tiled[i] - exact[i]));
    return error;
  };
  TiledRounding t;
  t.p_format = DType::f16;
  const double f16_error = worst(t);
  t.p_format = DType::e4m3;
  t.p_scale = 256;
  const double e4m3_error = worst(t);
  EXPECT_GT(f16_error, 0.0);
  EXPECT_LT(f16_error, 1e-3);
  EXPECT_GT(e4m3_error, 4 * f16_error);
  EXPECT_LT(e4m3_error, 3e-2);
}

TEST(Reference16Bit, RoundsPAndO) {
  Call call(1, 1, 1, 8, 64, 16);
  std::vector<double> exact(8 * 16), rounded(exact.size());
  ASSERT_TRUE(reference(call.arguments, {}, exact.data()).ok());
  for (const DType dtype : {DType::f16, DType::bf16}) {
    ASSERT_TRUE(reference_16bit(call.arguments, {}, dtype, rounded.data()).ok());
    double worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      worst = std::max(worst, std::abs(rounded[i] - exact[i]));
      const auto x = static_cast<float>(rounded[i]);
      EXPECT_EQ(
          dtype == DType::f16 ? f32_from_f16(f16_from_f32(x)) : f32_from_bf16(bf16_from_f32(x)), x);
    }
    EXPECT_GT(worst, 0.0);
    EXPECT_LT(worst, dtype == DType::f16 ? 1e-3 : 8e-3);
  }
}

}  // namespace
}  // namespace octavo
