// SPDX-License-Identifier: Apache-2.0
// A call of the CPU's backward pass on random tensors that own their memory, and its comparison
// with the fp64 oracle. NaN guard elements surround every buffer.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/backward_arguments.h"
#include "attention/reference.h"
#include "cpu/backward.h"
#include "cpu/case.h"

namespace octavo::cpu {

struct BackwardCase {
  std::int64_t batch = 1, heads_q = 2, heads_kv = 2, seqlen_q = 5, seqlen_kv = 7, head_dim = 16;
  DType dtype = DType::f32;
  OwnedTensor::Order order = OwnedTensor::Order::bhsd;
  std::int64_t row_gap = 0;
  Options options{};
  std::optional<float> scale{};
};

struct BackwardCall {
  OwnedTensor q, k, v, out, lse, dout, dq, dk, dv, bias, dbias;
  std::vector<std::int32_t> cu_q, cu_kv;
  std::array<std::vector<std::int32_t>, 4> seqlens;
  std::vector<std::uint8_t> mask;
  std::vector<float> slopes, sinks, dsinks;
  BackwardArguments arguments{};
  Options options{};

  explicit BackwardCall(const BackwardCase& c) : options(c.options) {
    const std::array<std::int64_t, 4> of_q{c.batch, c.heads_q, c.seqlen_q, c.head_dim};
    const std::array<std::int64_t, 4> of_kv{c.batch, c.heads_kv, c.seqlen_kv, c.head_dim};
    for (OwnedTensor* t : {&q, &out, &dout, &dq})
      *t = OwnedTensor(c.dtype, of_q, c.order, c.row_gap);
    for (OwnedTensor* t : {&k, &v, &dk, &dv}) *t = OwnedTensor(c.dtype, of_kv, c.order, c.row_gap);
    lse = OwnedTensor(DType::f32, {c.batch, c.heads_q, c.seqlen_q, 1}, c.order, 2);
    std::uint64_t stream = 1;
    for (OwnedTensor* t : {&q, &k, &v, &dout}) t->fill(stream++);
    arguments.q = q.view, arguments.k = k.view, arguments.v = v.view;
    arguments.out = out.view, arguments.lse = lse.view, arguments.dout = dout.view;
    arguments.dq = dq.view, arguments.dk = dk.view, arguments.dv = dv.view;
    arguments.scale = c.scale;
  }

  // Divides the tokens of a batch of one into sequences that end at these tokens.
  void make_varlen(std::vector<std::int32_t> starts_q, std::vector<std::int32_t> starts_kv,
                   std::int64_t max_q, std::int64_t max_kv) {
    cu_q = std::move(starts_q), cu_kv = std::move(starts_kv);
    arguments.cu_seqlens_q = cu_q.data();
    arguments.cu_seqlens_kv = cu_kv.data();
    arguments.sequences = static_cast<std::int64_t>(cu_q.size()) - 1;
    arguments.max_seqlen_q = max_q;
    arguments.max_seqlen_kv = max_kv;
  }

  // Rows [leftpad, leftpad + seqlens) of each batch entry belong to its sequence; empty: null.
  void make_padded(std::vector<std::int32_t> of_q, std::vector<std::int32_t> of_kv,
                   std::vector<std::int32_t> left_q, std::vector<std::int32_t> left_kv) {
    seqlens = {std::move(of_q), std::move(of_kv), std::move(left_q), std::move(left_kv)};
    const auto data = [](const std::vector<std::int32_t>& x) {
      return x.empty() ? nullptr : x.data();
    };
    arguments.seqlens_q = data(seqlens[0]), arguments.seqlens_kv = data(seqlens[1]);
    arguments.leftpad_q = data(seqlens[2]), arguments.leftpad_kv = data(seqlens[3]);
  }
  // A bias whose gradient is computed too, in `gradient_dtype`.
  void add_bias(DType dtype, const std::array<std::int64_t, 4>& shape, DType gradient_dtype) {
    bias = OwnedTensor(dtype, shape, OwnedTensor::Order::bhsd, 3);
    bias.fill(21);
    dbias = OwnedTensor(gradient_dtype, shape, OwnedTensor::Order::bhsd, 1);
    arguments.bias = bias.view, arguments.dbias = dbias.view;
  }
  // One bias for all keys of a row.
  void set_bias_row(std::int64_t row, float value) {
    for (std::int64_t b = 0; b < bias.view.shape[0]; ++b)
      for (std::int64_t head = 0; head < bias.view.shape[1]; ++head)
        for (std::int64_t key = 0; key < bias.view.shape[3]; ++key)
          store_element(bias.view.dtype, bias.view.data, bias.at(b, head, row, key), value);
  }
  // Without dO a row has no gradients.
  void clear_dout_row(std::int64_t row) {
    for (std::int64_t b = 0; b < dout.view.shape[0]; ++b)
      for (std::int64_t head = 0; head < dout.view.shape[1]; ++head)
        for (std::int64_t c = 0; c < dout.view.shape[3]; ++c)
          store_element(dout.view.dtype, dout.view.data, dout.at(b, head, row, c), 0);
  }
  // Hides about a third of the keys of each row.
  void add_mask(const std::array<std::int64_t, 4>& shape) {
    mask.resize(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = random_below(5, 0, i, 3) != 0;
    arguments.mask =
        ConstTensor::bhsd(mask.data(), DType::boolean, shape[0], shape[1], shape[2], shape[3]);
  }
  void add_alibi() {
    const std::int64_t heads = q.view.shape[1];
    for (std::int64_t i = 0; i < q.view.shape[0] * heads; ++i)
      slopes.push_back(0.4f / static_cast<float>(1 + i));
    arguments.alibi_slopes = slopes.data();
    arguments.alibi_batch_stride = heads;
  }
  void add_sinks() {
    for (std::int64_t head = 0; head < q.view.shape[1]; ++head)
      sinks.push_back(static_cast<float>(head % 3) - 0.5f);
    dsinks.assign(sinks.size(), -7.0f);
    arguments.sinks = sinks.data(), arguments.dsinks = dsinks.data();
  }

  // Fills out and lse.
  Status run_forward() {
    const Arguments a = forward_arguments(arguments);
    const Result<Problem> problem = problem_of(a, options);
    if (!problem.ok()) return problem.status();
    std::vector<std::uint8_t> workspace(workspace_bytes(*problem, 2));
    return attention(*problem, a, {workspace.data(), workspace.size()});
  }

  Status run_backward(int threads = 2) {
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    const BackwardSlicing slicing = backward_slicing(*problem);
    std::vector<std::uint8_t> workspace(
        backward_workspace_bytes(slicing, *problem, &arguments, threads), guard_byte());
    return attention_backward(slicing, *problem, arguments, {workspace.data(), workspace.size()});
  }

  static std::vector<float> values(const OwnedTensor& t) {
    std::vector<float> found;
    t.for_each([&](std::int64_t at, std::int64_t) {
      found.push_back(load_element(t.view.dtype, t.view.data, at));
    });
    return found;
  }

  struct Expected {
    std::vector<double> dq, dk, dv, dbias, dsinks;
  };
  Expected expected() const {
    Expected e{std::vector<double>(values(dq).size()), std::vector<double>(values(dk).size()),
               std::vector<double>(values(dv).size()), std::vector<double>(values(dbias).size()),
               std::vector<double>(dsinks.size())};
    EXPECT_EQ(reference_backward(arguments, options,
                                 {e.dq.data(), e.dk.data(), e.dv.data(),
                                  arguments.dbias.data == nullptr ? nullptr : e.dbias.data(),
                                  arguments.dsinks == nullptr ? nullptr : e.dsinks.data()})
                  .message(),
              "");
    return e;
  }

  // Compares with fp64, relative to the largest magnitude of each gradient: its elements are sums
  // of terms of both signs. `skips` tells which elements are not written.
  template <class Skips>
  void expect_matches_reference(double tolerance, Skips skips) {
    ASSERT_EQ(run_forward().message(), "");
    ASSERT_EQ(run_backward().message(), "");
    const Expected e = expected();
    const double root = std::sqrt(static_cast<double>(q.view.shape[3]));
    const double terms = std::max(1.0, std::abs(arguments.scale.value_or(0)) * root);
    expect_near(values(dq), e.dq, tolerance, terms, "dq", skips);
    expect_near(values(dk), e.dk, tolerance, terms, "dk", skips);
    expect_near(values(dv), e.dv, tolerance, terms, "dv", skips);
    if (arguments.dbias.data != nullptr) {
      expect_near(values(dbias), e.dbias, tolerance, terms, "dbias", skips);
      EXPECT_EQ(dbias.touched_guards(), 0);
    }
    expect_near(dsinks, e.dsinks, tolerance, terms, "dsinks", skips);
    for (const OwnedTensor* t : {&dq, &dk, &dv}) EXPECT_EQ(t->touched_guards(), 0);
  }
  void expect_matches_reference(double tolerance) {
    expect_matches_reference(tolerance, [](const char*, std::size_t) { return false; });
  }

  template <class Skips>
  static void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                          double tolerance, double terms, const char* what, Skips skips) {
    double largest = 0;
    for (const double y : expected)
      if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double x = found[i], y = expected[i];
      if (skips(what, i)) {
        ASSERT_TRUE(std::isnan(x)) << what << "[" << i << "] was written: " << x;
        continue;
      }
      const bool same =
          std::isfinite(y) ? std::abs(x - y) <= tolerance * (largest + terms) : !std::isfinite(x);
      ASSERT_TRUE(same) << what << "[" << i << "] is " << x << ", expected " << y << " of "
                        << largest;
    }
  }
};

// Relative to the largest element of a gradient: rounding of out, which enters through delta, and
// of the gradients.
inline double backward_tolerance(DType dtype) {
  return dtype == DType::f32 ? 4e-6 : dtype == DType::f16 ? 1.5e-3 : 1.2e-2;
}

}  // namespace octavo::cpu
