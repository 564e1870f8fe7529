// SPDX-License-Identifier: Apache-2.0
// A backward problem on the host: random inputs in strided tensors, the forward pass in fp64, and
// the gradients in fp64 by plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "attention/mask.h"
#include "numeric/formats.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct BackwardShape {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 64, seqlen_kv = 64, head_dim = 64;
  Options options{};
  std::optional<float> scale{};
  DType dtype = DType::f16;
  std::int64_t row_gap = 0;  // elements between rows, which hold NaN
  std::int64_t offset = 0;   // elements before the first row
  // A varlen batch of these cu_seqlens; the tensors have seqlen_q and seqlen_kv tokens.
  std::vector<std::int32_t> cu_q{}, cu_kv{};
  std::int64_t max_q = 0, max_kv = 0;
};

// A 16-bit tensor (B, H, S, D) with gaps between its rows.
class HostTensor {
 public:
  HostTensor(const BackwardShape& shape, std::int64_t heads, std::int64_t rows)
      : shape_(shape), heads_(heads), rows_(rows) {
    const std::int64_t count = shape.batch * heads * rows;
    data_.assign(static_cast<std::size_t>(shape.offset + count * stride()), kNan);
  }
  std::int64_t stride() const { return shape_.head_dim + shape_.row_gap; }
  std::uint16_t& bits(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
    return data_[static_cast<std::size_t>(shape_.offset +
                                          ((b * heads_ + h) * rows_ + s) * stride() + d)];
  }
  double at(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
    const std::uint16_t x = bits(b, h, s, d);
    return shape_.dtype == DType::f16 ? f32_from_f16(x) : f32_from_bf16(x);
  }
  // All values as (B, H, S, D) without gaps.
  std::vector<double> values() {
    std::vector<double> all;
    all.reserve(static_cast<std::size_t>(shape_.batch * heads_ * rows_ * shape_.head_dim));
    for (std::int64_t row = 0; row < shape_.batch * heads_ * rows_; ++row)
      for (std::int64_t d = 0; d < shape_.head_dim; ++d) all.push_back(at(0, 0, row, d));
    return all;
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d, double x) {
    const float value = static_cast<float>(x);
    bits(b, h, s, d) = shape_.dtype == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value);
  }
  Tensor view() {
    Tensor t;
    t.data = data_.data() + shape_.offset;
    t.dtype = shape_.dtype;
    t.shape = {shape_.batch, heads_, rows_, shape_.head_dim};
    t.stride = {heads_ * rows_ * stride(), rows_ * stride(), stride(), 1};
    return t;
  }
  const std::vector<std::uint16_t>& data() const { return data_; }

  static constexpr std::uint16_t kNan = 0x7fff;  // in f16 and bf16

 private:
  BackwardShape shape_;
  std::int64_t heads_, rows_;
  std::vector<std::uint16_t> data_;
};

// One sequence of the batch.
struct HostSpan {
  std::int64_t batch = 0, q_begin = 0, seqlen_q = 0, kv_begin = 0, seqlen_kv = 0;
};

class BackwardCase {
 public:
  explicit BackwardCase(const BackwardShape& given, unsigned seed = 1)
      : shape(given),
        q(given, given.heads_q, given.seqlen_q),
        k(given, given.heads_kv, given.seqlen_kv),
        v(k),
        out(q),
        dout(q),
        dq(q),
        dk(k),
        dv(k),
        lse(static_cast<std::size_t>(given.batch * given.heads_q * given.seqlen_q),
            std::numeric_limits<float>::quiet_NaN()) {
    // Tokens that no sequence holds stay NaN.
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (const HostSpan& s : spans()) {
      const auto fill = [&](HostTensor& t, std::int64_t heads, std::int64_t begin,
                            std::int64_t rows) {
        for (std::int64_t h = 0; h < heads; ++h)
          for (std::int64_t i = begin; i < begin + rows; ++i)
            for (std::int64_t d = 0; d < shape.head_dim; ++d)
              t.set(s.batch, h, i, d, normal(random));
      };
      fill(q, shape.heads_q, s.q_begin, s.seqlen_q);
      fill(dout, shape.heads_q, s.q_begin, s.seqlen_q);
      fill(k, shape.heads_kv, s.kv_begin, s.seqlen_kv);
      fill(v, shape.heads_kv, s.kv_begin, s.seqlen_kv);
    }
    decode_inputs();
    for (const HostSpan& s : spans())
      for (std::int64_t h = 0; h < shape.heads_q; ++h)
        for (std::int64_t i = 0; i < s.seqlen_q; ++i) forward_row(s, h, i);
  }

  bool varlen() const { return !shape.cu_q.empty(); }
  double scale() const {
    return shape.scale ? *shape.scale : 1 / std::sqrt(static_cast<double>(shape.head_dim));
  }

  std::vector<HostSpan> spans() const {
    std::vector<HostSpan> all;
    if (!varlen()) {
      for (std::int64_t b = 0; b < shape.batch; ++b)
        all.push_back({b, 0, shape.seqlen_q, 0, shape.seqlen_kv});
      return all;
    }
    for (std::size_t b = 0; b + 1 < shape.cu_q.size(); ++b) {
      HostSpan s;
      clamp(shape.cu_q, b, shape.seqlen_q, shape.max_q, s.q_begin, s.seqlen_q);
      clamp(shape.cu_kv, b, shape.seqlen_kv, shape.max_kv, s.kv_begin, s.seqlen_kv);
      all.push_back(s);
    }
    return all;
  }

  Problem problem() const {
    Problem p;
    p.batch = varlen() ? static_cast<std::int64_t>(shape.cu_q.size()) - 1 : shape.batch;
    p.heads_q = shape.heads_q;
    p.heads_kv = shape.heads_kv;
    p.seqlen_q = varlen() ? shape.max_q : shape.seqlen_q;
    p.seqlen_kv = varlen() ? shape.max_kv : shape.seqlen_kv;
    p.head_dim = p.head_dim_v = shape.head_dim;
    p.q = p.k = p.v = p.out = shape.dtype;
    p.lse = true;
    p.varlen = varlen();
    p.options = shape.options;
    return p;
  }

  BackwardArguments arguments() {
    BackwardArguments a;
    a.q = q.view();
    a.k = k.view();
    a.v = v.view();
    a.out = out.view();
    a.dout = dout.view();
    a.dq = dq.view();
    a.dk = dk.view();
    a.dv = dv.view();
    a.lse =
        ConstTensor::bhsd(lse.data(), DType::f32, shape.batch, shape.heads_q, shape.seqlen_q, 1);
    a.scale = shape.scale;
    if (varlen()) {
      a.cu_seqlens_q = shape.cu_q.data();
      a.cu_seqlens_kv = shape.cu_kv.data();
      a.sequences = static_cast<std::int64_t>(shape.cu_q.size()) - 1;
      a.max_seqlen_q = shape.max_q;
      a.max_seqlen_kv = shape.max_kv;
    }
    return a;
  }

  // The gradients in fp64, as (B, H, S, D) without gaps; NaN where no sequence is.
  struct Gradients {
    std::vector<double> dq, dk, dv;
  };
  Gradients reference() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const auto size = [this](std::int64_t heads, std::int64_t rows) {
      return static_cast<std::size_t>(shape.batch * heads * rows * shape.head_dim);
    };
    Gradients g{std::vector<double>(size(shape.heads_q, shape.seqlen_q), nan),
                std::vector<double>(size(shape.heads_kv, shape.seqlen_kv), nan),
                std::vector<double>(size(shape.heads_kv, shape.seqlen_kv), nan)};
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    decode_inputs();
    for (const HostSpan& s : spans()) {
      for (std::int64_t h = 0; h < shape.heads_kv; ++h)
        for (std::int64_t j = 0; j < s.seqlen_kv; ++j)
          for (std::int64_t d = 0; d < shape.head_dim; ++d)
            g.dk[index(s.batch, shape.heads_kv, h, shape.seqlen_kv, s.kv_begin + j, d)] =
                g.dv[index(s.batch, shape.heads_kv, h, shape.seqlen_kv, s.kv_begin + j, d)] = 0;
      for (std::int64_t h = 0; h < shape.heads_q; ++h)
        for (std::int64_t i = 0; i < s.seqlen_q; ++i) backward_row(g, s, h, h / group, i);
    }
    return g;
  }
  std::size_t index(std::int64_t b, std::int64_t heads, std::int64_t h, std::int64_t rows,
                    std::int64_t i, std::int64_t d) const {
    return static_cast<std::size_t>(((b * heads + h) * rows + i) * shape.head_dim + d);
  }

  BackwardShape shape;
  HostTensor q, k, v, out, dout, dq, dk, dv;
  std::vector<float> lse;

 private:
  // As the kernels clamp cu_seqlens: inside the tensor, no longer than the maximum, and empty if it
  // begins before an earlier entry.
  static void clamp(const std::vector<std::int32_t>& cu, std::size_t b, std::int64_t tokens,
                    std::int64_t longest, std::int64_t& begin, std::int64_t& length) {
    const auto inside = [&](std::size_t i) { return std::clamp<std::int64_t>(cu[i], 0, tokens); };
    begin = inside(b);
    length = std::min(std::max<std::int64_t>(inside(b + 1) - begin, 0), longest);
    for (std::size_t i = 0; i < b; ++i)
      if (inside(i) > begin) length = 0;
  }

  // The inputs in doubles: converting an element where it is used takes longer than its product.
  void decode_inputs() {
    q_ = q.values();
    k_ = k.values();
    v_ = v.values();
    dout_ = dout.values();
  }
  const double* q_row(const std::vector<double>& values, const HostSpan& s, std::int64_t h,
                      std::int64_t i) const {
    return values.data() + index(s.batch, shape.heads_q, h, shape.seqlen_q, s.q_begin + i, 0);
  }
  const double* kv_row(const std::vector<double>& values, const HostSpan& s, std::int64_t h_kv,
                       std::int64_t j) const {
    return values.data() + index(s.batch, shape.heads_kv, h_kv, shape.seqlen_kv, s.kv_begin + j, 0);
  }
  double dot(const double* x, const double* y) const {
    double sum = 0;
    for (std::int64_t d = 0; d < shape.head_dim; ++d) sum += x[d] * y[d];
    return sum;
  }

  // P of one row, and its LSE.
  std::vector<double> weights(const HostSpan& s, std::int64_t h, std::int64_t i,
                              double& log_sum) const {
    const std::int64_t h_kv = h / (shape.heads_q / shape.heads_kv);
    const KeyRange keys = visible_keys(shape.options, i, s.seqlen_q, s.seqlen_kv);
    std::vector<double> p(static_cast<std::size_t>(s.seqlen_kv), 0.0);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const double score = dot(q_row(q_, s, h, i), kv_row(k_, s, h_kv, j)) * scale();
      p[static_cast<std::size_t>(j)] = score;
      largest = std::max(largest, score);
    }
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      double& x = p[static_cast<std::size_t>(j)];
      sum += x = std::exp(x - largest);
    }
    for (double& x : p)
      if (sum > 0) x /= sum;
    log_sum = sum > 0 ? largest + std::log(sum) : -std::numeric_limits<double>::infinity();
    return p;
  }
  void forward_row(const HostSpan& s, std::int64_t h, std::int64_t i) {
    const std::int64_t h_kv = h / (shape.heads_q / shape.heads_kv);
    double log_sum = 0;
    const std::vector<double> p = weights(s, h, i, log_sum);
    lse[static_cast<std::size_t>((s.batch * shape.heads_q + h) * shape.seqlen_q + s.q_begin + i)] =
        static_cast<float>(log_sum);
    std::vector<double> o(static_cast<std::size_t>(shape.head_dim), 0.0);
    for (std::int64_t j = 0; j < s.seqlen_kv; ++j) {
      const double p_at = p[static_cast<std::size_t>(j)];
      const double* const v_at = kv_row(v_, s, h_kv, j);
      if (p_at != 0)
        for (std::size_t d = 0; d < o.size(); ++d) o[d] += p_at * v_at[d];
    }
    for (std::size_t d = 0; d < o.size(); ++d)
      out.set(s.batch, h, s.q_begin + i, static_cast<std::int64_t>(d), o[d]);
  }
  void backward_row(Gradients& g, const HostSpan& s, std::int64_t h, std::int64_t h_kv,
                    std::int64_t i) const {
    double log_sum = 0, delta = 0;
    const std::vector<double> p = weights(s, h, i, log_sum);
    std::vector<double> dp(p.size(), 0.0);
    const KeyRange keys = visible_keys(shape.options, i, s.seqlen_q, s.seqlen_kv);
    const double* const dout_at = q_row(dout_, s, h, i);
    const double* const q_at = q_row(q_, s, h, i);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      double& x = dp[static_cast<std::size_t>(j)];
      x = dot(dout_at, kv_row(v_, s, h_kv, j));
      delta += p[static_cast<std::size_t>(j)] * x;
    }
    double* const dq_at = &g.dq[index(s.batch, shape.heads_q, h, shape.seqlen_q, s.q_begin + i, 0)];
    std::fill_n(dq_at, shape.head_dim, 0.0);
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const double p_at = p[static_cast<std::size_t>(j)];
      const double ds = p_at * (dp[static_cast<std::size_t>(j)] - delta) * scale();
      const double* const k_at = kv_row(k_, s, h_kv, j);
      const std::size_t to =
          index(s.batch, shape.heads_kv, h_kv, shape.seqlen_kv, s.kv_begin + j, 0);
      double* const dk_at = &g.dk[to];
      double* const dv_at = &g.dv[to];
      for (std::int64_t d = 0; d < shape.head_dim; ++d) {
        dq_at[d] += ds * k_at[d];
        dk_at[d] += ds * q_at[d];
        dv_at[d] += p_at * dout_at[d];
      }
    }
  }

  std::vector<double> q_, k_, v_, dout_;
};

}  // namespace octavo
