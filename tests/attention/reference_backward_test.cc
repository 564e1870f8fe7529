// The oracle of the backward pass against central differences of the fp64 forward reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attention/backward_call.h"
#include "attention/reference.h"

namespace octavo {
namespace {

using test::BackwardCall;

struct Gradients {
  std::vector<double> dq, dk, dv;
};

Gradients gradients(const BackwardCall& call, const Options& options) {
  Gradients g{std::vector<double>(call.dq.size()), std::vector<double>(call.dk.size()),
              std::vector<double>(call.dv.size())};
  EXPECT_EQ(
      reference_backward(call.arguments, options, g.dq.data(), g.dk.data(), g.dv.data()).message(),
      "");
  return g;
}

// The loss sum(dout * out), whose gradients the backward pass gives.
double loss(const BackwardCall& call, const Options& options) {
  Arguments a = call.forward.arguments;
  a.scale = call.arguments.scale;
  a.cu_seqlens_q = call.arguments.cu_seqlens_q;
  a.cu_seqlens_kv = call.arguments.cu_seqlens_kv;
  a.sequences = call.arguments.sequences;
  a.max_seqlen_q = call.arguments.max_seqlen_q;
  a.max_seqlen_kv = call.arguments.max_seqlen_kv;
  std::vector<double> out(call.dq.size());
  EXPECT_EQ(reference(a, options, out.data()).message(), "");
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(call.dout[i]);
  return sum;
}

// The inputs are floats, so a step of a power of two is exact for inputs on a grid of 2^-12. The
// error of a central difference is a third of the third derivative times the step squared.
void expect_central_differences(BackwardCall& call, const Options& options) {
  for (auto* x : {&call.forward.q, &call.forward.k, &call.forward.v})
    for (float& value : *x) value = std::round(value * 4096) / 4096;
  const Gradients g = gradients(call, options);
  const float step = 1.0f / 1024;
  const auto expect = [&](std::vector<float>& x, const std::vector<double>& gradient,
                          const char* what) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float before = x[i];
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
  EXPECT_NE(reference_backward(call.arguments, {}, d.data(), d.data(), d.data())
                .message()
                .find("dout.shape"),
            std::string::npos);
}

}  // namespace
}  // namespace octavo
