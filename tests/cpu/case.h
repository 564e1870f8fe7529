// SPDX-License-Identifier: Apache-2.0
// A call of the CPU backend on random tensors that own their memory, and its comparison with the
// fp64 oracle. NaN guard elements surround every buffer.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/operand.h"
#include "cpu/attention.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "numeric/scale.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The bits of NaN in every dtype that has one; otherwise the largest byte.
inline std::uint8_t guard_byte() { return 0xFF; }

// A tensor with guard elements before, behind and between its rows.
struct OwnedTensor {
  std::vector<std::uint8_t> bytes;
  Tensor view{};

  enum class Order { bhsd, bshd };

  OwnedTensor() = default;
  OwnedTensor(DType dtype, std::array<std::int64_t, 4> shape, Order order = Order::bhsd,
              std::int64_t row_gap = 0) {
    const auto [b, h, s, d] = shape;
    const std::int64_t row = d + row_gap;
    std::array<std::int64_t, 4> stride{h * s * row, s * row, row, 1};
    if (order == Order::bshd) stride = {s * h * row, row, h * row, 1};
    const auto size = static_cast<std::int64_t>(size_bytes(dtype));
    constexpr std::int64_t kGuard = 64;
    bytes.assign(static_cast<std::size_t>((b * h * s * row + 2 * kGuard) * size), guard_byte());
    view = Tensor(bytes.data() + kGuard * size, dtype, shape, stride);
  }

  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) const {
    return b * view.stride[0] + h * view.stride[1] + s * view.stride[2] + d;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    std::int64_t n = 0;
    for (std::int64_t b = 0; b < view.shape[0]; ++b)
      for (std::int64_t h = 0; h < view.shape[1]; ++h)
        for (std::int64_t s = 0; s < view.shape[2]; ++s)
          for (std::int64_t d = 0; d < view.shape[3]; ++d) visit(at(b, h, s, d), n++);
  }
  // Normal values; 8-bit tensors hold a normal value times `unit`, quantized.
  void fill(std::uint64_t stream, float unit = 1) {
    for_each([&](std::int64_t at, std::int64_t n) {
      const float x = random_normal_value(7, stream, static_cast<std::uint64_t>(n));
      if (is_8bit(view.dtype))
        static_cast<std::uint8_t*>(view.data)[at] = encode_8bit(view.dtype, x * unit);
      else
        store_element(view.dtype, view.data, at, x);
    });
  }
  // The number of elements outside the view that have changed.
  std::int64_t touched_guards() const {
    std::vector<std::uint8_t> expected = bytes;
    const auto size = size_bytes(view.dtype);
    const auto first = static_cast<const std::uint8_t*>(view.data) - bytes.data();
    for_each([&](std::int64_t at, std::int64_t) {
      std::memset(expected.data() + first + at * static_cast<std::int64_t>(size), guard_byte(),
                  size);
    });
    std::int64_t touched = 0;
    for (const std::uint8_t byte : expected) touched += byte != guard_byte();
    return touched;
  }
};

struct Case {
  std::int64_t batch = 1, heads_q = 2, heads_kv = 2, seqlen_q = 5, seqlen_kv = 7, head_dim = 16;
  std::int64_t head_dim_v = 0;  // 0: head_dim
  DType q = DType::f32, k = DType::f32, v = DType::f32, out = DType::f32;
  OwnedTensor::Order order = OwnedTensor::Order::bhsd;
  std::int64_t row_gap = 0;
  Options options{};
  std::optional<float> scale{};
  bool lse = true;
};

struct Call {
  OwnedTensor q, k, v, out, lse;
  std::vector<float> q_scales, k_scales, v_scales;
  Arguments arguments{};
  Options options{};

  explicit Call(const Case& c) : options(c.options) {
    q = OwnedTensor(c.q, {c.batch, c.heads_q, c.seqlen_q, c.head_dim}, c.order, c.row_gap);
    k = OwnedTensor(c.k, {c.batch, c.heads_kv, c.seqlen_kv, c.head_dim}, c.order, c.row_gap);
    const std::int64_t columns = c.head_dim_v == 0 ? c.head_dim : c.head_dim_v;
    v = OwnedTensor(c.v, {c.batch, c.heads_kv, c.seqlen_kv, columns}, c.order, c.row_gap);
    out = OwnedTensor(c.out, {c.batch, c.heads_q, c.seqlen_q, columns}, c.order, c.row_gap);
    q.fill(1, 20), k.fill(2, 20), v.fill(3, 20);
    arguments.q = q.view, arguments.k = k.view, arguments.v = v.view, arguments.out = out.view;
    if (c.lse) {
      lse = OwnedTensor(DType::f32, {c.batch, c.heads_q, c.seqlen_q, 1}, c.order, 2);
      arguments.lse = lse.view;
    }
    arguments.scale = c.scale;
    scales(Granularity::head, arguments.q, q_scales, arguments.q_scales);
    scales(Granularity::head, arguments.k, k_scales, arguments.k_scales);
    scales(Granularity::head, arguments.v, v_scales, arguments.v_scales);
  }

  // Positive scales that differ from group to group; dequantized values are about N(0, 1).
  static void scales(Granularity granularity, const ConstTensor& tensor, std::vector<float>& data,
                     Scales& scales, std::int64_t sequences = 0, std::int64_t max_len = 0) {
    std::array<std::int64_t, 4> shape = tensor.shape;
    if (sequences > 0 && granularity != Granularity::row)
      shape = {sequences, shape[1], max_len, shape[3]};
    scales.granularity = granularity;
    scales.block_rows = 3;
    data.resize(static_cast<std::size_t>(scale_count(shape, granularity, scales.block_rows)));
    const float unit = tensor.dtype == DType::sim8 ? 127.0f / 20 : 1.0f / 20;
    for (std::size_t i = 0; i < data.size(); ++i)
      data[i] = unit * (1 + 0.05f * static_cast<float>(i % 11));
    scales.data = data.data();
  }

  Status run(int threads = 2) {
    const Result<Problem> problem = problem_of(arguments, options);
    if (!problem.ok()) return problem.status();
    std::vector<std::uint8_t> workspace(workspace_bytes(*problem, threads));
    return attention(*problem, arguments, {workspace.data(), workspace.size()});
  }

  std::vector<float> values(const OwnedTensor& t) const {
    std::vector<float> found;
    t.for_each([&](std::int64_t at, std::int64_t) {
      found.push_back(load_element(t.view.dtype, t.view.data, at));
    });
    return found;
  }

  // Runs, and compares out and LSE with fp64 attention on the same inputs.
  void expect_matches_reference(double tolerance) {
    ASSERT_EQ(run().message(), "");
    std::vector<double> expected(values(out).size());
    std::vector<double> expected_lse(expected.size());
    Options exact = options;
    exact.precision = Precision::native;
    ASSERT_EQ(reference(arguments, exact, expected.data(), expected_lse.data()).message(), "");
    expect_near(values(out), expected, tolerance, "out");
    if (arguments.lse.data != nullptr) expect_near(values(lse), expected_lse, tolerance, "lse");
    EXPECT_EQ(out.touched_guards(), 0);
    if (arguments.lse.data != nullptr) {
      EXPECT_EQ(lse.touched_guards(), 0);
    }
  }

  static void expect_near(const std::vector<float>& found, const std::vector<double>& expected,
                          double tolerance, const char* what) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double x = found[i], y = expected[i];
      const bool same = std::isfinite(y) ? std::abs(x - y) <= tolerance * (1 + std::abs(y))
                                         : (std::isnan(y) ? std::isnan(x) : x == y);
      ASSERT_TRUE(same) << what << "[" << i << "] is " << x << ", expected " << y;
    }
  }
};

// Tolerance of an output type against fp64.
inline double tolerance(DType out) {
  return out == DType::f32 ? 4e-6 : out == DType::f16 ? 1e-3 : 8e-3;
}

}  // namespace octavo::cpu
