// SPDX-License-Identifier: Apache-2.0
#include "attention/operand.h"

#include <gtest/gtest.h>

namespace octavo {
namespace {

Problem problem(DType dtype, Precision precision) {
  Problem p;
  p.q = p.k = p.v = dtype;
  p.options.precision = precision;
  return p;
}

TEST(OperandFormats, NativeRoundsNothing) {
  for (const DType dtype : kAllDTypes) {
    const OperandFormats f = operand_formats(problem(dtype, Precision::native));
    for (const OperandFormat& o : {f.q, f.k, f.v}) EXPECT_FALSE(o.rounded.has_value());
  }
}

TEST(OperandFormats, EachModeRoundsToItsFormats) {
  struct Expected {
    Precision precision;
    DType qk, v;
  };
  for (const Expected& e : {Expected{Precision::fp16, DType::f16, DType::f16},
                            {Precision::bf16, DType::bf16, DType::bf16},
                            {Precision::fp8, DType::e4m3, DType::e4m3},
                            {Precision::fp8_fast, DType::e4m3, DType::e4m3},
                            {Precision::fp8_mixed, DType::e4m3, DType::f16},
                            {Precision::int8, DType::int8, DType::int8},
                            {Precision::int8_mixed, DType::int8, DType::f16},
                            {Precision::sim8, DType::sim8, DType::sim8}}) {
    const OperandFormats f = operand_formats(problem(DType::f32, e.precision));
    EXPECT_EQ(f.q.rounded, e.qk) << name(e.precision);
    EXPECT_EQ(f.k.rounded, e.qk) << name(e.precision);
    EXPECT_EQ(f.v.rounded, e.v) << name(e.precision);
  }
}

TEST(OperandFormats, MixedModesKeepSixteenBitV) {
  for (const Precision mode : {Precision::fp8_mixed, Precision::int8_mixed})
    for (const DType dtype : {DType::f16, DType::bf16})
      EXPECT_FALSE(operand_formats(problem(dtype, mode)).v.rounded.has_value());
  EXPECT_EQ(operand_formats(problem(DType::bf16, Precision::fp16)).v.rounded, DType::f16);
}

TEST(OperandFormats, DefaultGranularitiesAndTheCallersChoice) {
  Problem p = problem(DType::f16, Precision::fp8);
  EXPECT_EQ(operand_formats(p).q.granularity, Granularity::row);
  EXPECT_EQ(operand_formats(p).k.granularity, Granularity::head);
  EXPECT_EQ(operand_formats(p).v.granularity, Granularity::channel);
  for (const Precision precision : {Precision::int8, Precision::int8_mixed}) {
    p.options.precision = precision;
    EXPECT_EQ(operand_formats(p).q.granularity, Granularity::row);
    EXPECT_EQ(operand_formats(p).k.granularity, Granularity::block);
  }
  p.options.precision = Precision::sim8;
  EXPECT_EQ(operand_formats(p).k.granularity, Granularity::head);
  EXPECT_EQ(operand_formats(p).v.granularity, Granularity::head);
  p.options.quantization.qk = Granularity::block;
  p.options.quantization.v = Granularity::tensor;
  EXPECT_EQ(operand_formats(p).q.granularity, Granularity::block);
  EXPECT_EQ(operand_formats(p).k.granularity, Granularity::block);
  EXPECT_EQ(operand_formats(p).v.granularity, Granularity::tensor);
}

// For FP8 Q and K, no sum of head_dim products of quantized values exceeds FP16's range; V and
// other formats use their whole range, and so does the least-squares rule.
TEST(OperandFormats, LargestQuantizedValues) {
  Problem p = problem(DType::f16, Precision::fp8);
  for (const auto& [head_dim, code] :
       {std::pair{64, 30.0f}, {128, 22.0f}, {256, 15.0f}, {8, 88.0f}, {1, 240.0f}}) {
    p.head_dim = head_dim;
    const OperandFormats f = operand_formats(p);
    EXPECT_EQ(f.q.max_quantized, code) << head_dim;
    EXPECT_EQ(f.k.max_quantized, code) << head_dim;
    EXPECT_EQ(f.v.max_quantized, 448.0f);
  }
  p.options.quantization.rule = ScaleRule::least_squares;
  EXPECT_EQ(operand_formats(p).k.max_quantized, 448.0f);
  p = problem(DType::f16, Precision::int8);
  p.head_dim = 64;
  EXPECT_EQ(operand_formats(p).q.max_quantized, 127.0f);
}

TEST(OperandFormats, EightBitInputsAreNotRounded) {
  Problem p = problem(DType::int8, Precision::fp8);
  p.k_scales = Granularity::row;
  const OperandFormats f = operand_formats(p);
  EXPECT_FALSE(f.k.rounded.has_value());
  EXPECT_TRUE(f.k.scales_of_caller());
  EXPECT_EQ(f.k.granularity, Granularity::row);
}

}  // namespace
}  // namespace octavo
