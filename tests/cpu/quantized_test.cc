// SPDX-License-Identifier: Apache-2.0
// Precisions that round their inputs: the backend must agree with fp64 on inputs that quantize()
// and convert() have rounded.
#include <gtest/gtest.h>

#include "case.h"
#include "cpu/kernels.h"
#include "numeric/quantize.h"

namespace octavo::cpu {
namespace {

// One operand rounded by the library's own scalar code; `codes` owns the memory of `tensor`.
struct Rounded {
  OwnedTensor codes;
  std::vector<float> scales, mean;

  void round(const OperandFormat& format, const Quantization& quantization, ConstTensor& tensor,
             Scales& tensor_scales) {
    if (!format.rounded) return;
    codes = OwnedTensor(*format.rounded, tensor.shape);
    if (!is_8bit(*format.rounded)) {
      ASSERT_EQ(convert(tensor, codes.view).message(), "");
    } else {
      QuantizeOptions options;
      options.granularity = format.granularity;
      options.block_rows = quantization.block_rows;
      options.rule = quantization.rule;
      options.smooth = format.smooth;
      options.hadamard = format.hadamard;
      scales.resize(static_cast<std::size_t>(
          scale_count(tensor.shape, format.granularity, quantization.block_rows)));
      mean.resize(static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1] * tensor.shape[3]));
      ASSERT_EQ(
          quantize_to(format.max_quantized, tensor, options, codes.view, scales.data(), mean.data())
              .message(),
          "");
      tensor_scales = {scales.data(), format.granularity, quantization.block_rows, {}};
    }
    tensor = codes.view;
  }
};

// `lse_tolerance`: smoothing adds q . mean of the original q.
void expect_rounds_as_quantize(const Case& c) {
  Call call(c);
  const Problem problem = problem_of(call.arguments, c.options).value();
  const OperandFormats formats = operand_formats(problem);
  Arguments rounded = call.arguments;
  Rounded q, k, v;
  q.round(formats.q, c.options.quantization, rounded.q, rounded.q_scales);
  k.round(formats.k, c.options.quantization, rounded.k, rounded.k_scales);
  v.round(formats.v, c.options.quantization, rounded.v, rounded.v_scales);
  std::vector<double> expected(call.values(call.out).size()), lse(expected.size());
  Options exact = c.options;
  exact.precision = Precision::native;
  exact.quantization = {};
  ASSERT_EQ(reference(rounded, exact, expected.data(), lse.data()).message(), "");
  ASSERT_EQ(call.run().message(), "");
  Call::expect_near(call.values(call.out), expected, 5e-6, "out");
  if (!c.options.quantization.smooth_k) Call::expect_near(call.values(call.lse), lse, 5e-6, "lse");
}

TEST(CpuQuantized, EveryPrecisionAndGranularity) {
  for (const Kernels* target : available_kernels()) {
    use_kernels(target);
    for (const Precision precision : kAllPrecisions)
      for (const Granularity granularity : kAllGranularities)
        for (const DType dtype : {DType::f32, DType::bf16}) {
          SCOPED_TRACE(testing::Message() << target->name << ' ' << name(precision) << ' '
                                          << name(granularity) << ' ' << name(dtype));
          Case c{.batch = 2,
                 .heads_q = 4,
                 .seqlen_q = 20,
                 .seqlen_kv = 70,
                 .head_dim = 24,
                 .q = dtype,
                 .k = dtype,
                 .v = dtype};
          c.options.precision = precision;
          c.options.quantization.qk = granularity;
          c.options.quantization.v = granularity;
          c.options.quantization.block_rows = 16;
          expect_rounds_as_quantize(c);
        }
  }
  use_kernels(nullptr);
}

TEST(CpuQuantized, EveryGranularityOfUnequalHeadDims) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{24, 40}, {40, 24}})
    for (const Granularity granularity : kAllGranularities) {
      SCOPED_TRACE(testing::Message() << name(granularity) << ' ' << head_dim);
      Case c{.batch = 2,
             .heads_q = 4,
             .seqlen_q = 20,
             .seqlen_kv = 70,
             .head_dim = head_dim,
             .head_dim_v = head_dim_v};
      c.options.precision = Precision::fp8;
      c.options.quantization.qk = granularity;
      c.options.quantization.v = granularity;
      expect_rounds_as_quantize(c);
    }
}

TEST(CpuQuantized, SmoothingRotationAndLeastSquares) {
  for (const ScaleRule rule : {ScaleRule::amax, ScaleRule::least_squares})
    for (const bool smooth : {false, true})
      for (const bool hadamard : {false, true})
        for (const Granularity granularity : {Granularity::tensor, Granularity::row}) {
          SCOPED_TRACE(testing::Message() << name(rule) << smooth << hadamard << name(granularity));
          Case c{.batch = 2, .seqlen_q = 20, .seqlen_kv = 40, .head_dim = 24};
          c.options.precision = Precision::int8;
          c.options.quantization.qk = granularity;
          c.options.quantization.v = granularity;
          c.options.quantization.rule = rule;
          c.options.quantization.smooth_k = smooth;
          c.options.quantization.hadamard = hadamard;
          expect_rounds_as_quantize(c);
        }
}

// The LSE is that of the original scores, although smoothing subtracts the mean key.
TEST(CpuQuantized, SmoothingAddsTheMeanBackToTheLse) {
  Case c{.seqlen_q = 30, .seqlen_kv = 50, .head_dim = 32};
  c.options.precision = Precision::int8;
  c.options.quantization.smooth_k = true;
  Call call(c);
  call.k.for_each([&](std::int64_t at, std::int64_t n) {
    auto& x = static_cast<float*>(call.k.view.data)[at];
    x += static_cast<float>(n % 32) - 10.0f;
  });
  ASSERT_EQ(call.run().message(), "");
  std::vector<double> out(call.values(call.out).size()), lse(out.size());
  ASSERT_TRUE(reference(call.arguments, {}, out.data(), lse.data()).ok());
  Call::expect_near(call.values(call.out), out, 0.05, "out");
  Call::expect_near(call.values(call.lse), lse, 0.02, "lse");
}

// A call's quantized V, transposed, one sequence after the other in a varlen batch; all unused
// bytes are poison. INT8 values have their sign bit flipped.
OwnedTensor transposed(const Call& call) {
  const Arguments& a = call.arguments;
  const ConstTensor& v = a.v;
  const bool varlen = a.cu_seqlens_kv != nullptr;
  const std::int64_t columns = transposed_columns(v.shape[2], varlen ? a.sequences : 0);
  OwnedTensor codes(v.dtype, {v.shape[0], v.shape[1], v.shape[3], columns},
                    OwnedTensor::Order::bhsd, 3);
  const auto place = [&](std::int64_t b, std::int64_t begin, std::int64_t at, std::int64_t keys) {
    constexpr std::array kPlaces = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
    for (std::int64_t h = 0; h < v.shape[1]; ++h)
      for (std::int64_t s = 0; s < keys; ++s)
        for (std::int64_t d = 0; d < v.shape[3]; ++d)
          static_cast<std::uint8_t*>(codes.view.data)[codes.at(
              b, h, d, at + s / 16 * 16 + kPlaces[static_cast<std::size_t>(s % 16)])] =
              static_cast<const std::uint8_t*>(
                  v.data)[b * v.stride[0] + h * v.stride[1] + (begin + s) * v.stride[2] + d] ^
              (v.dtype == DType::int8 ? 0x80 : 0);
  };
  for (std::int64_t b = 0; !varlen && b < v.shape[0]; ++b) place(b, 0, 0, v.shape[2]);
  for (std::int64_t b = 0; varlen && b < a.sequences; ++b)
    place(0, a.cu_seqlens_kv[b], transposed_begin(a.cu_seqlens_kv[b], b),
          a.cu_seqlens_kv[b + 1] - a.cu_seqlens_kv[b]);
  return codes;
}

// A transposed V must give the same bits as V by rows, in the backend and in the oracle.
void expect_same_from_transposed(Call& call) {
  ASSERT_EQ(call.run().message(), "");
  const std::vector<float> from_rows = call.values(call.out);
  std::vector<double> exact(from_rows.size());
  ASSERT_EQ(reference(call.arguments, {}, exact.data()).message(), "");
  const OwnedTensor codes = transposed(call);
  call.arguments.v = codes.view;
  call.arguments.v_layout = VLayout::transposed;
  call.out.fill(9);
  ASSERT_EQ(call.run().message(), "");
  EXPECT_EQ(call.values(call.out), from_rows);
  std::vector<double> again(from_rows.size());
  ASSERT_EQ(reference(call.arguments, {}, again.data()).message(), "");
  EXPECT_EQ(again, exact);
}

TEST(CpuQuantized, TransposedVGivesTheSameBitsAsRows) {
  for (const DType format : {DType::e4m3, DType::e5m2, DType::int8, DType::sim8})
    for (const Granularity granularity : kAllGranularities) {
      SCOPED_TRACE(testing::Message() << name(format) << ' ' << name(granularity));
      Case c{.batch = 2, .heads_q = 4, .seqlen_q = 9, .seqlen_kv = 75, .q = format, .k = format};
      c.v = format;
      Call call(c);
      Call::scales(granularity, call.arguments.v, call.v_scales, call.arguments.v_scales);
      expect_same_from_transposed(call);
    }
}

TEST(CpuQuantized, TransposedVMayHaveOtherColumnsThanK) {
  Call call({.seqlen_q = 9,
             .seqlen_kv = 75,
             .head_dim = 16,
             .head_dim_v = 21,
             .q = DType::int8,
             .k = DType::int8,
             .v = DType::int8});
  Call::scales(Granularity::channel, call.arguments.v, call.v_scales, call.arguments.v_scales);
  expect_same_from_transposed(call);
}

TEST(CpuQuantized, VarlenTransposedVGivesTheSameBitsAsRows) {
  for (const Granularity granularity : kAllGranularities) {
    SCOPED_TRACE(name(granularity));
    Case c{.seqlen_q = 90, .seqlen_kv = 90, .q = DType::int8, .k = DType::int8, .v = DType::int8};
    c.order = OwnedTensor::Order::bshd;
    Call call(c);
    const std::vector<std::int32_t> cu{0, 20, 20, 33, 90};
    call.arguments.cu_seqlens_q = call.arguments.cu_seqlens_kv = cu.data();
    call.arguments.sequences = 4;
    call.arguments.max_seqlen_q = call.arguments.max_seqlen_kv = 57;
    for (const auto& [tensor, data, scales] :
         {std::tuple{&call.arguments.q, &call.q_scales, &call.arguments.q_scales},
          {&call.arguments.k, &call.k_scales, &call.arguments.k_scales}})
      Call::scales(Granularity::head, *tensor, *data, *scales, 4, 57);
    Call::scales(granularity, call.arguments.v, call.v_scales, call.arguments.v_scales, 4, 57);
    expect_same_from_transposed(call);
  }
}

// One scale for a varlen batch covers the tokens of its sequences and no others.
TEST(CpuQuantized, VarlenScalesIgnoreTokensOfNoSequence) {
  for (const Granularity granularity : kAllGranularities)
    for (const bool smooth : {false, true}) {
      Case c{.seqlen_q = 60, .seqlen_kv = 60, .order = OwnedTensor::Order::bshd};
      c.options.precision = Precision::fp8;
      c.options.quantization.qk = granularity;
      c.options.quantization.v = granularity;
      c.options.quantization.smooth_k = smooth;
      const std::vector<std::int32_t> cu{5, 20, 50};
      std::vector<float> first;
      for (const float outside : {1.0f, 1e9f}) {
        Call call(c);
        for (OwnedTensor* t : {&call.q, &call.k, &call.v})
          for (std::int64_t s : {0, 4, 50, 59})
            for (std::int64_t h = 0; h < 2; ++h)
              for (std::int64_t d = 0; d < c.head_dim; ++d)
                store_element(DType::f32, t->view.data, t->at(0, h, s, d), outside);
        call.arguments.cu_seqlens_q = call.arguments.cu_seqlens_kv = cu.data();
        call.arguments.sequences = 2;
        call.arguments.max_seqlen_q = call.arguments.max_seqlen_kv = 30;
        ASSERT_EQ(call.run().message(), "");
        std::vector<float> found;
        for (std::int64_t s = 5; s < 50; ++s)
          found.push_back(load_element(DType::f32, call.out.view.data, call.out.at(0, 1, s, 2)));
        if (first.empty()) first = found;
        EXPECT_EQ(first, found) << name(granularity);
      }
    }
}

}  // namespace
}  // namespace octavo::cpu
