// SPDX-License-Identifier: Apache-2.0
// The oracle of the backward pass against central differences of the fp64 forward reference.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/backward_call.h"
#include "attention/reference.h"

namespace octavo {
namespace {

using test::BackwardCall;

struct Gradients {
  std::vector<double> dq, dk, dv, dbias, dsinks;
};

Gradients gradients(const BackwardCall& call, const Options& options) {
  const auto& bias = call.arguments.bias.shape;
  Gradients g{std::vector<double>(call.dq.size()), std::vector<double>(call.dk.size()),
              std::vector<double>(call.dv.size()),
              std::vector<double>(static_cast<std::size_t>(bias[0] * bias[1] * bias[2] * bias[3])),
              std::vector<double>(static_cast<std::size_t>(call.arguments.q.shape[1]))};
  EXPECT_EQ(reference_backward(
                call.arguments, options,
                {g.dq.data(), g.dk.data(), g.dv.data(),
                 call.arguments.bias.data == nullptr ? nullptr : g.dbias.data(), g.dsinks.data()})
                .message(),
            "");
  return g;
}

// The loss sum(dout * out), whose gradients the backward pass gives.
double loss(const BackwardCall& call, const Options& options) {
  std::vector<double> out(call.dq.size());
  EXPECT_EQ(reference(forward_arguments(call.arguments), options, out.data()).message(), "");
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(call.dout[i]);
  return sum;
}

// The inputs are floats, so a step of a power of two is exact for inputs on a grid of 2^-12. The
// error of a central difference is a third of the third derivative times the step squared.
struct LearnedModifiers {
  std::vector<float> bias, sinks;  // memory that the call's arguments point to
};
void expect_central_differences(BackwardCall& call, const Options& options,
                                LearnedModifiers modified = {}) {
  if (!modified.bias.empty()) call.arguments.bias.data = modified.bias.data();
  if (!modified.sinks.empty()) call.arguments.sinks = modified.sinks.data();
  for (auto* x : {&call.forward.q, &call.forward.k, &call.forward.v, &modified.bias})
    for (float& value : *x) value = std::round(value * 4096) / 4096;
  const Gradients g = gradients(call, options);
  const float step = 1.0f / 1024;
  const auto expect = [&](std::vector<float>& x, const std::vector<double>& gradient,
                          const char* what) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float before = x[i];
      if (!std::isfinite(before)) {
        ASSERT_EQ(gradient[i], 0.0) << what << "[" << i << "] is hidden";
        continue;
      }
      x[i] = before + step;
      const double above = loss(call, options);
      x[i] = before - step;
      const double below = loss(call, options);
      x[i] = before;
      const double difference = (above - below) / (2 * static_cast<double>(step));
      ASSERT_NEAR(gradient[i], difference, 2e-5 * (1 + std::abs(difference)))
          << what << "[" << i << "]";
    }
  };
  expect(call.forward.q, g.dq, "dq");
  expect(call.forward.k, g.dk, "dk");
  expect(call.forward.v, g.dv, "dv");
  expect(modified.bias, g.dbias, "dbias");
  expect(modified.sinks, g.dsinks, "dsinks");
}

std::vector<float> normal(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (!random_normal(Tensor::bhsd(values.data(), DType::f32, 1, 1, 1, count), seed, 0).ok())
    std::abort();
  return values;
}

TEST(ReferenceBackward, EqualsCentralDifferences) {
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
    BackwardCall call(2, 4, 2, 5, 7, 4);
    Options options;
    options.causal = causal;
    expect_central_differences(call, options);
  }
}

TEST(ReferenceBackward, EqualsCentralDifferencesWithAWindowAndAScale) {
  BackwardCall call(1, 2, 1, 9, 6, 8);
  call.arguments.scale = 0.7f;
  Options options;
  options.window_left = 2;
  options.window_right = 1;
  expect_central_differences(call, options);
}

TEST(ReferenceBackward, EqualsCentralDifferencesInAVarlenBatch) {
  BackwardCall call(1, 2, 1, 9, 8, 4);
  const std::int32_t cu_q[] = {0, 4, 4, 8};  // token 8 belongs to no sequence
  const std::int32_t cu_kv[] = {0, 3, 5, 8};
  call.arguments.cu_seqlens_q = cu_q;
  call.arguments.cu_seqlens_kv = cu_kv;
  call.arguments.sequences = 3;
  call.arguments.max_seqlen_q = 4;
  call.arguments.max_seqlen_kv = 3;
  Options options;
  options.causal = Causal::bottom_right;
  expect_central_differences(call, options);
}

// Every modifier alone and all of them together, with padding on both sides.
TEST(ReferenceBackward, EqualsCentralDifferencesWithModifiersAndPadding) {
  enum : int {
    kSoftcap = 1,
    kBias = 2,
    kAlibi = 4,
    kSinks = 8,
    kPadded = 16,
    kMask = 32,
    kAll = 63
  };
  const float slopes[] = {0.3f, 0.11f, 0.5f, 0.21f, -0.4f, 0.07f, 0.2f, 0.9f};
  const std::int32_t seqlens[] = {5, 3}, leftpad_q[] = {0, 1}, leftpad_kv[] = {2, 4};
  std::vector<std::uint8_t> mask(2 * 5 * 7);
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 1;
  for (const int features :
       std::array<int, 7>{kSoftcap, kBias, kAlibi, kSinks, kPadded, kMask, kAll})
    for (const Causal causal : {Causal::none, Causal::bottom_right}) {
      SCOPED_TRACE(features);
      BackwardCall call(2, 4, 2, 5, 7, 4);
      Options options;
      options.causal = causal;
      LearnedModifiers modified;
      BackwardArguments& a = call.arguments;
      if (features & kSoftcap) options.softcap = 0.9f;
      if (features & kBias) {
        modified.bias = normal(4 * 5 * 7, 9);
        modified.bias[3] = -std::numeric_limits<float>::infinity();
        a.bias = ConstTensor::bhsd(nullptr, DType::f32, 1, 4, 5, 7);
      }
      if (features & kAlibi) a.alibi_slopes = slopes, a.alibi_batch_stride = 4;
      if (features & kSinks) modified.sinks = normal(4, 5);
      if (features & kMask) a.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 2, 1, 5, 7);
      if (features & kPadded) {
        a.seqlens_q = a.seqlens_kv = seqlens;
        a.leftpad_q = leftpad_q, a.leftpad_kv = leftpad_kv;
      }
      expect_central_differences(call, options, modified);
    }
}

// Bias that broadcasts in each dimension.
TEST(ReferenceBackward, EqualsCentralDifferencesWithBroadcastBias) {
  for (const std::array<std::int64_t, 4>& shape :
       {std::array<std::int64_t, 4>{2, 1, 1, 4}, {1, 2, 3, 1}, {1, 1, 1, 1}, {2, 2, 3, 4}}) {
    BackwardCall call(2, 2, 1, 3, 4, 4);
    LearnedModifiers modified;
    modified.bias = normal(shape[0] * shape[1] * shape[2] * shape[3], 9);
    call.arguments.bias =
        ConstTensor::bhsd(nullptr, DType::f32, shape[0], shape[1], shape[2], shape[3]);
    expect_central_differences(call, {}, modified);
  }
}

TEST(ReferenceBackward, RowsWithoutKeysHaveZeroGradients) {
  BackwardCall call(1, 1, 1, 4, 2, 4);
  Options options;
  options.causal = Causal::bottom_right;  // rows 0 and 1 lie before the first key
  const Gradients g = gradients(call, options);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(g.dq[i], 0.0);
  // dV sums P^T dO over the two rows that see keys: each row of P sums to 1.
  for (int c = 0; c < 4; ++c)
    EXPECT_NEAR(g.dv[c] + g.dv[4 + c],
                static_cast<double>(call.dout[8 + c]) + static_cast<double>(call.dout[12 + c]),
                1e-12);
}

TEST(ReferenceBackward, ErrorsAreThoseOfTheBackwardPass) {
  BackwardCall call(1, 1, 1, 4, 4, 4);
  call.arguments.dout.shape[2] = 3;
  std::vector<double> d(16);
  EXPECT_NE(reference_backward(call.arguments, {}, {d.data(), d.data(), d.data()})
                .message()
                .find("dout.shape"),
            std::string::npos);
}

}  // namespace
}  // namespace octavo
