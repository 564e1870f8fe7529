// SPDX-License-Identifier: Apache-2.0
// Calls with softcap, bias, ALiBi, a mask tensor, sinks and padding, in any combination, for tests
// that compare with the fp64 reference. Padding and what masks hide is NaN, and the outputs lie
// between guards.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo::modified {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

enum Feature : unsigned {
  kSoftcap = 1,
  kBias = 2,
  kMask = 4,
  kAlibi = 8,
  kSinks = 16,
  kPadded = 32,
  kEvery = 63,
};

struct Shape {
  std::int64_t batch = 3, heads_q = 4, heads_kv = 2, rows = 45, keys = 71, head_dim = 64;
};

// Memory of one element type between guards; views are contiguous, or have an odd row length.
class Values {
 public:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::uint8_t kGuardByte = 0xA5;

  Values(DType dtype, std::array<std::int64_t, 4> shape, std::int64_t row_gap = 0)
      : dtype_(dtype), shape_(shape), row_(shape[3] + row_gap) {
    const std::int64_t elements = shape[0] * shape[1] * shape[2] * row_;
    bytes_.assign(static_cast<std::size_t>(elements) * size_bytes(dtype) + 2 * kGuard, kGuardByte);
  }
  Tensor view() {
    return {bytes_.data() + kGuard,
            dtype_,
            shape_,
            {shape_[1] * shape_[2] * row_, shape_[2] * row_, row_, 1}};
  }
  std::int64_t index(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
    return ((b * shape_[1] + h) * shape_[2] + r) * row_ + c;
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c, float x) {
    if (dtype_ == DType::boolean)
      bytes_[kGuard + static_cast<std::size_t>(index(b, h, r, c))] = x != 0 ? 1 : 0;
    else
      store_element(dtype_, bytes_.data() + kGuard, index(b, h, r, c), x);
  }
  double get(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c) const {
    return load_element(dtype_, bytes_.data() + kGuard, index(b, h, r, c));
  }
  template <class F>  // float(b, h, r, c)
  void fill(F value) {
    for (std::int64_t b = 0; b < shape_[0]; ++b)
      for (std::int64_t h = 0; h < shape_[1]; ++h)
        for (std::int64_t r = 0; r < shape_[2]; ++r)
          for (std::int64_t c = 0; c < shape_[3]; ++c) set(b, h, r, c, value(b, h, r, c));
  }
  void fill_normal_values(std::uint64_t seed, std::uint64_t stream) {
    fill([&, i = std::uint64_t{0}](auto...) mutable {
      return random_normal_value(seed, stream, i++);
    });
  }
  bool guards_intact() const {
    for (std::size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != kGuardByte || bytes_[bytes_.size() - 1 - i] != kGuardByte) return false;
    return true;
  }
  const std::array<std::int64_t, 4>& shape() const { return shape_; }

 private:
  DType dtype_;
  std::array<std::int64_t, 4> shape_;
  std::int64_t row_;
  std::vector<std::uint8_t> bytes_;
};

// One call with its memory. `number` rotates what is not a feature: masks, dtypes, broadcasts.
class Call {
 public:
  Call(DType dtype, const Shape& s, unsigned features, std::uint64_t number)
      : s_(s),
        features_(features),
        number_(number),
        q_(dtype, {s.batch, s.heads_q, s.rows, s.head_dim}),
        k_(dtype, {s.batch, s.heads_kv, s.keys, s.head_dim}),
        v_(dtype, {s.batch, s.heads_kv, s.keys, s.head_dim}),
        out_(dtype, {s.batch, s.heads_q, s.rows, s.head_dim}),
        lse_(DType::f32, {s.batch, s.heads_q, s.rows, 1}),
        bias_(bias_type(),
              {number % 2 == 0 ? s.batch : 1, number % 3 == 0 ? 1 : s.heads_q,
               number % 5 == 1 ? 1 : s.rows, number % 7 == 3 ? 1 : s.keys},
              number % 2 == 0 ? s.keys % 2 : 0),
        mask_(DType::boolean,
              {number % 3 == 1 ? 1 : s.batch, 1, number % 4 == 2 ? 1 : s.rows, s.keys},
              number % 2 == 1 ? s.keys % 2 : 0) {
    q_.fill_normal_values(number, 1);
    k_.fill_normal_values(number, 2);
    v_.fill_normal_values(number, 3);
    out_.fill([](auto...) { return kNan; });
    lse_.fill([](auto...) { return kNan; });
    arguments_.q = q_.view();
    arguments_.k = k_.view();
    arguments_.v = v_.view();
    arguments_.out = out_.view();
    arguments_.lse = lse_.view();
    set_interval();
    if (features & kPadded) add_padding();
    if (features & kSoftcap) options_.softcap = number % 2 == 0 ? 1.5f : 30.0f;
    if (features & kBias) add_bias();
    if (features & kMask) add_mask();
    add_per_head();
  }

  Arguments& arguments() { return arguments_; }
  Options& options() { return options_; }
  Values& q() { return q_; }
  Values& k() { return k_; }
  Values& bias() { return bias_; }
  Values& mask() { return mask_; }
  const Values& out() const { return out_; }
  const Values& lse() const { return lse_; }
  std::vector<float>& sinks() { return sinks_; }

  std::string name() const {
    return fmt::format("features {} number {} {}", features_, number_,
                       describe(problem_of(arguments_, options_).value()));
  }

  // Runs the emulator and compares with the reference.
  void check(Device device, double tolerance, double lse_tolerance = 1e-4) {
    const Status status = attention(arguments_, options_, device);
    ASSERT_TRUE(status.ok()) << name() << ": " << status.message();
    EXPECT_TRUE(out_.guards_intact() && lse_.guards_intact()) << name();
    const auto rows = static_cast<std::size_t>(s_.batch * s_.heads_q * s_.rows);
    std::vector<double> out(rows * static_cast<std::size_t>(s_.head_dim)), lse(rows);
    const Status wanted = reference(arguments_, options_, out.data(), lse.data());
    ASSERT_TRUE(wanted.ok()) << wanted.message();
    int reported = 0;
    for (std::size_t i = 0; i < out.size() && reported < 3; ++i) {
      const std::size_t row = i / static_cast<std::size_t>(s_.head_dim);
      const auto r = static_cast<std::int64_t>(row) % s_.rows;
      const auto h = static_cast<std::int64_t>(row) / s_.rows % s_.heads_q;
      const auto b = static_cast<std::int64_t>(row) / s_.rows / s_.heads_q;
      const auto c = static_cast<std::int64_t>(i) % s_.head_dim;
      const double o = out_.get(b, h, r, c), l = lse_.get(b, h, r, 0);
      const bool same = std::isnan(out[i]) ? std::isnan(o) : std::abs(o - out[i]) <= tolerance;
      const bool zero = lse[row] != -kInf || o == 0;  // no tolerance without keys
      const bool lse_same = std::isnan(lse[row])   ? std::isnan(l)
                            : std::isinf(lse[row]) ? l == lse[row]
                                                   : std::abs(l - lse[row]) <=
                                                         lse_tolerance * (1 + std::abs(lse[row]));
      if (same && zero && lse_same) continue;
      ++reported;
      ADD_FAILURE() << name()
                    << fmt::format(
                           ": b={} h={} row={} column={}: out {} wanted {}, lse {} "
                           "wanted {}",
                           b, h, r, c, o, out[i], l, lse[row]);
    }
  }

 private:
  DType bias_type() const {
    constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
    return kTypes[number_ / 2 % 3];
  }

  void set_interval() {
    switch (number_ % 6) {
      case 1:
        options_.causal = Causal::top_left;
        break;
      case 2:
        options_.causal = Causal::bottom_right;
        break;
      case 3:
        options_.window_left = 9;
        options_.window_right = 4;
        break;
      case 4:
        options_.causal = Causal::bottom_right;
        options_.window_left = 20;
        break;
      default:
        break;
    }
  }

  // Padding on both sides, on the left only, and a sequence without keys; all of it is NaN.
  void add_padding() {
    const auto rows = static_cast<std::int32_t>(s_.rows), keys = static_cast<std::int32_t>(s_.keys);
    leftpad_q_ = {std::min(3, rows), 0, std::min(7, rows)};
    seqlens_q_ = {std::max(rows - 12, 0), rows, std::min(5, rows - leftpad_q_[2])};
    leftpad_kv_ = {4, 1, 2};
    seqlens_kv_ = {keys - 9, keys - 1, 0};
    if (number_ % 4 == 1) {  // only lengths
      leftpad_q_ = leftpad_kv_ = {0, 0, 0};
      seqlens_q_[2] = 0;
    }
    if (number_ % 4 != 1) {
      arguments_.leftpad_q = leftpad_q_.data();
      arguments_.leftpad_kv = leftpad_kv_.data();
    }
    if (number_ % 4 == 2) {  // only padding on the left
      seqlens_q_ = {rows - leftpad_q_[0], rows, rows - leftpad_q_[2]};
      seqlens_kv_ = {keys - 4, keys - 1, keys - 2};
    } else {
      arguments_.seqlens_q = seqlens_q_.data();
      arguments_.seqlens_kv = seqlens_kv_.data();
    }
    const auto clear = [](Values& x, const std::vector<std::int32_t>& begin,
                          const std::vector<std::int32_t>& length) {
      for (std::int64_t b = 0; b < x.shape()[0]; ++b)
        for (std::int64_t h = 0; h < x.shape()[1]; ++h)
          for (std::int64_t r = 0; r < x.shape()[2]; ++r) {
            const auto i = static_cast<std::size_t>(b);
            if (r >= begin[i] && r < begin[i] + length[i]) continue;
            for (std::int64_t c = 0; c < x.shape()[3]; ++c) x.set(b, h, r, c, kNan);
          }
    };
    clear(q_, leftpad_q_, seqlens_q_);
    clear(k_, leftpad_kv_, seqlens_kv_);
    clear(v_, leftpad_kv_, seqlens_kv_);
  }

  void add_bias() {
    bias_.fill_normal_values(number_, 4);
    // A key with -infinity is hidden, here from every third row.
    for (std::int64_t r = 0; r < bias_.shape()[2]; r += 3)
      bias_.set(0, 0, r, bias_.shape()[3] / 2, -std::numeric_limits<float>::infinity());
    arguments_.bias = bias_.view();
  }

  // Hides a quarter of the keys, one of them from all rows: there, K and the bias are NaN. One row
  // sees no key.
  void add_mask() {
    mask_.fill([&](std::int64_t b, std::int64_t, std::int64_t r, std::int64_t c) {
      const auto at = static_cast<std::uint64_t>((b * 1000 + r) * 1000 + c);
      if (c == 13 || (r == 6 && mask_.shape()[2] > 1)) return 0.0f;
      return random_below(number_, 5, at, 4) == 0 ? 0.0f : 1.0f;
    });
    arguments_.mask = mask_.view();
    for (std::int64_t b = 0; b < s_.batch; ++b)
      for (std::int64_t h = 0; h < s_.heads_kv; ++h)
        for (std::int64_t c = 0; c < s_.head_dim; ++c) k_.set(b, h, 13, c, kNan);
    if ((features_ & kBias) == 0 || bias_.shape()[3] == 1) return;
    for (std::int64_t b = 0; b < bias_.shape()[0]; ++b)
      for (std::int64_t h = 0; h < bias_.shape()[1]; ++h)
        for (std::int64_t r = 0; r < bias_.shape()[2]; ++r) bias_.set(b, h, r, 13, kNan);
  }

  void add_per_head() {
    const std::int64_t stride = number_ % 2 == 0 ? 0 : s_.heads_q + 1;
    for (std::int64_t i = 0; i < s_.batch * (s_.heads_q + 1); ++i) {
      slopes_.push_back(0.05f + 0.02f * static_cast<float>(i));
      sinks_.push_back(0.5f * static_cast<float>(i) - 1);
    }
    if (features_ & kAlibi) {
      arguments_.alibi_slopes = slopes_.data();
      arguments_.alibi_batch_stride = stride;
    }
    if (features_ & kSinks) arguments_.sinks = sinks_.data();
  }

  Shape s_;
  unsigned features_;
  std::uint64_t number_;
  Values q_, k_, v_, out_, lse_, bias_, mask_;
  std::vector<float> slopes_, sinks_;
  std::vector<std::int32_t> seqlens_q_, seqlens_kv_, leftpad_q_, leftpad_kv_;
  Arguments arguments_;
  Options options_;
};

// The inputs of a call, quantized by the caller.
struct QuantizedInputs {
  std::vector<std::uint8_t> q, k, v;
  std::vector<float> q_scales, k_scales, v_scales;

  static void quantize_one(const ConstTensor& x, DType format, Granularity granularity,
                           std::vector<std::uint8_t>& codes, std::vector<float>& scales,
                           ConstTensor& to, Scales& view) {
    codes.resize(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]));
    scales.resize(static_cast<std::size_t>(scale_count(x.shape, granularity)));
    const Tensor out =
        Tensor::bhsd(codes.data(), format, x.shape[0], x.shape[1], x.shape[2], x.shape[3]);
    const Status status = quantize(x, {.granularity = granularity}, out, scales.data());
    ASSERT_TRUE(status.ok()) << status.message();
    to = out;
    view.data = scales.data();
    view.granularity = granularity;
  }
  QuantizedInputs(Arguments& a, DType format, Granularity of_qk) {
    quantize_one(ConstTensor(a.q), format, of_qk, q, q_scales, a.q, a.q_scales);
    quantize_one(ConstTensor(a.k), format, of_qk, k, k_scales, a.k, a.k_scales);
    quantize_one(ConstTensor(a.v), format, Granularity::head, v, v_scales, a.v, a.v_scales);
  }
};

// Rounding P to the input type and the output: a few units in the last place of the largest |V|.
inline double tolerance_of(DType dtype) { return dtype == DType::f16 ? 5e-3 : 4e-2; }

}  // namespace octavo::modified
