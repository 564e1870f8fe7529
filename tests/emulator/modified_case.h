// SPDX-License-Identifier: Apache-2.0
// A small problem with any of the score modifiers and padding, in host memory: what must not
// influence results is NaN, and what must not be written is checked.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "evidence/cases/emulated_cases.h"
#include "numeric/formats.h"
#include "numeric/random.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {

struct ModifiedProblem {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64;
  DType dtype = DType::f16;
  Causal causal = Causal::none;
  std::int64_t window_left = -1;
  std::optional<float> scale{};
  float softcap = 0;
  std::optional<DType> bias{};
  bool mask = false, alibi = false, sinks = false;
  bool left = false, right = false;  // padding
  bool varlen = false;
  // Sizes of bias and mask along (batch, head, row, column); 0: as the scores.
  std::array<std::int64_t, 4> broadcast{};
  std::int64_t row_gap = 0;  // columns between the rows of bias and mask
  bool steep = false;        // slopes of ALiBi so large that each block raises the maximum
  std::uint64_t seed = 1;
};

class ModifiedCase {
 public:
  explicit ModifiedCase(const ModifiedProblem& problem) : p_(problem) {
    set_operands();
    set_lengths();
    set_mask();
    set_bias();
    for (std::int64_t i = 0; i < p_.batch * p_.heads_q; ++i)
      slopes_.push_back((p_.steep ? 3.0f : 0.02f) * static_cast<float>(1 + i % 5));
    for (std::int64_t i = 0; i < p_.heads_q; ++i)
      sinks_.push_back(i % 3 == 2 ? -std::numeric_limits<float>::infinity()
                                  : static_cast<float>(i) * 1.5f - 1);
    if (p_.alibi) {
      arguments_.alibi_slopes = slopes_.data();
      arguments_.alibi_batch_stride = p_.seed % 2 == 0 ? 0 : p_.heads_q;
    }
    if (p_.sinks) arguments_.sinks = sinks_.data();
    arguments_.scale = p_.scale;
    options_.causal = p_.causal;
    options_.window_left = p_.window_left;
    options_.softcap = p_.softcap;
  }
  ModifiedCase(const ModifiedCase&) = delete;
  ModifiedCase& operator=(const ModifiedCase&) = delete;

  const Arguments& arguments() const { return arguments_; }
  const Options& options() const { return options_; }

  // A query of the first head, times a factor.
  void multiply_query(std::int64_t row, float factor) {
    auto* const data = static_cast<std::uint16_t*>(const_cast<void*>(arguments_.q.data));
    for (std::int64_t i = row * p_.head_dim; i < (row + 1) * p_.head_dim; ++i)
      store_element(p_.dtype, data, i, factor * load_element(p_.dtype, data, i));
  }
  // Row `row` of the first head of the output.
  std::vector<std::uint16_t> output_row(std::int64_t row) const {
    const auto* const data = static_cast<const std::uint16_t*>(out_begin()) + row * out_stride_;
    return {data, data + p_.head_dim};
  }

  // Every second row of the bias: a single value.
  void set_bias_rows(float value) {
    const std::int64_t row_elements = arguments_.bias.stride[2];
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(score_count()); ++i)
      if (i / row_elements % 2 == 1)
        store_element(*p_.bias, const_cast<void*>(arguments_.bias.data), i, value);
  }

  // Gives the first half of the keys one bias and the others another.
  void set_bias_columns(float first, float second) {
    const std::int64_t row_elements = arguments_.bias.stride[2], keys = score_shape()[3];
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(score_count()); ++i)
      if (i % row_elements < keys)
        store_element(*p_.bias, const_cast<void*>(arguments_.bias.data), i,
                      i % row_elements < keys / 2 ? first : second);
  }

  // Lengths that end with the tensor, and then end so far beyond it; padding that begins as far
  // before it.
  void widen_lengths(std::int32_t by) {
    for (auto* leftpad : {&leftpad_q_, &leftpad_kv_}) leftpad->front() = -by;
    leftpad_kv_.back() = static_cast<std::int32_t>(p_.seqlen_kv) + by;
    seqlens_q_.front() = static_cast<std::int32_t>(p_.seqlen_q) + by;
    seqlens_kv_.front() = static_cast<std::int32_t>(p_.seqlen_kv) + by;
    seqlens_q_.back() = -by;
  }

  void poison_outputs() {
    std::fill(out_.begin(), out_.end(), kPoison);
    std::fill(lse_.begin(), lse_.end(), std::numeric_limits<float>::quiet_NaN());
  }
  std::vector<std::byte> outputs() const {
    std::vector<std::byte> bytes(out_.size() * 2 + lse_.size() * 4);
    std::memcpy(bytes.data(), out_.data(), out_.size() * 2);
    std::memcpy(bytes.data() + out_.size() * 2, lse_.data(), lse_.size() * 4);
    return bytes;
  }

  // Compares with the oracle; empty if all is right.
  std::string judge(bool with_lse = true) const {
    const std::int64_t rows = p_.varlen ? tokens_q_ : p_.batch * p_.seqlen_q;
    const auto count = static_cast<std::size_t>(rows * p_.heads_q * p_.head_dim);
    std::vector<double> out(count), lse(count / static_cast<std::size_t>(p_.head_dim));
    const Status status = reference(arguments_, options_, out.data(), lse.data());
    if (!status.ok()) return status.message();
    const double most = p_.dtype == DType::f16 ? 2e-3 : 1.2e-2;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at =
          i / static_cast<std::size_t>(p_.head_dim) * static_cast<std::size_t>(out_stride_) +
          i % static_cast<std::size_t>(p_.head_dim);
      const double got = load_element(p_.dtype, out_begin(), static_cast<std::int64_t>(at));
      if (!(std::abs(got - out[i]) <= most * (1 + std::abs(out[i]))) && is_written(i))
        return wrong("out", i, got, out[i]);
    }
    for (std::size_t i = 0; with_lse && i < lse.size(); ++i) {
      const double got = lse_[i];
      const bool same = got == lse[i] || std::abs(got - lse[i]) <= 1e-3 * (1 + std::abs(lse[i]));
      if (!same && is_written(i * static_cast<std::size_t>(p_.head_dim)))
        return wrong("lse", i, got, lse[i]);
    }
    return gaps_are_untouched() ? "" : "columns beyond head_dim were written";
  }

 private:
  static constexpr std::uint16_t kPoison = 0x7fff;  // NaN in both 16-bit types
  static constexpr std::int64_t kGap = 8;           // columns between rows of out

  // In a varlen batch tokens of no sequence are not written.
  bool is_written(std::size_t i) const {
    if (!p_.varlen) return true;
    const std::int64_t token = static_cast<std::int64_t>(i) / p_.head_dim % tokens_q_;
    return token >= cu_q_.front() && token < cu_q_.back();
  }
  static std::string wrong(const char* what, std::size_t i, double got, double expected) {
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got) + ", not " +
           std::to_string(expected);
  }
  bool gaps_are_untouched() const {
    const auto* const at = static_cast<const std::uint16_t*>(out_begin());
    for (std::int64_t row = 0; row < rows_of_out_; ++row)
      for (std::int64_t c = p_.head_dim; c < out_stride_; ++c)
        if (at[row * out_stride_ + c] != kPoison) return false;
    return true;
  }

  // 16-bit memory whose first element TMA can address.
  static std::uint16_t* aligned(std::vector<std::uint16_t>& memory, std::int64_t count) {
    memory.assign(static_cast<std::size_t>(count + 8), kPoison);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (16 - address % 16) % 16 / 2;
  }
  const void* out_begin() const { return arguments_.out.data; }

  void set_operands() {
    tokens_q_ = p_.varlen ? p_.batch * p_.seqlen_q + 3 : p_.seqlen_q;
    tokens_kv_ = p_.varlen ? p_.batch * p_.seqlen_kv + 3 : p_.seqlen_kv;
    const std::int64_t batch = p_.varlen ? 1 : p_.batch;
    std::uint64_t stream = 0;
    const auto make = [&](std::vector<std::uint16_t>& memory, std::int64_t heads,
                          std::int64_t rows) {
      const std::int64_t count = batch * heads * rows * p_.head_dim;
      std::uint16_t* const data = aligned(memory, count);
      ++stream;
      for (std::int64_t i = 0; i < count; ++i)
        store_element(p_.dtype, data, i,
                      random_normal_value(p_.seed, stream, static_cast<std::uint64_t>(i)));
      return Tensor::bhsd(data, p_.dtype, batch, heads, rows, p_.head_dim);
    };
    arguments_.q = make(q_, p_.heads_q, tokens_q_);
    arguments_.k = make(k_, p_.heads_kv, tokens_kv_);
    arguments_.v = make(v_, p_.heads_kv, tokens_kv_);
    out_stride_ = p_.head_dim + kGap;
    rows_of_out_ = batch * p_.heads_q * tokens_q_;
    std::uint16_t* const out = aligned(out_, rows_of_out_ * out_stride_);
    arguments_.out = Tensor::bhsd(out, p_.dtype, batch, p_.heads_q, tokens_q_, out_stride_);
    arguments_.out.shape[3] = p_.head_dim;
    lse_.resize(static_cast<std::size_t>(rows_of_out_));
    arguments_.lse = Tensor::bhsd(lse_.data(), DType::f32, batch, p_.heads_q, tokens_q_, 1);
  }

  void clear_rows(const ConstTensor& t, std::int64_t b, std::int64_t begin, std::int64_t end) {
    auto* const data = static_cast<std::uint16_t*>(const_cast<void*>(t.data));
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t row = 0; row < t.shape[2]; ++row)
        if (row < begin || row >= end)
          std::fill_n(data + b * t.stride[0] + h * t.stride[1] + row * t.stride[2], t.shape[3],
                      kPoison);
  }
  // The rows of a sequence, and NaN in the padding around them. Some sequences have no rows.
  void set_lengths() {
    if (p_.varlen) {
      for (std::int64_t b = 0; b <= p_.batch; ++b) {
        cu_q_.push_back(static_cast<std::int32_t>(1 + b * p_.seqlen_q - (b == 1 ? 1 : 0)));
        cu_kv_.push_back(static_cast<std::int32_t>(2 + b * p_.seqlen_kv - (b == 1 ? 3 : 0)));
      }
      clear_rows(arguments_.k, 0, cu_kv_.front(), cu_kv_.back());
      clear_rows(arguments_.v, 0, cu_kv_.front(), cu_kv_.back());
      arguments_.cu_seqlens_q = cu_q_.data();
      arguments_.cu_seqlens_kv = cu_kv_.data();
      arguments_.sequences = p_.batch;
      arguments_.max_seqlen_q = p_.seqlen_q + 1;
      arguments_.max_seqlen_kv = p_.seqlen_kv + 3;
      return;
    }
    std::uint64_t index = 0;
    const auto draw = [&](std::int64_t below) {
      return static_cast<std::int32_t>(
          random_below(p_.seed, 99, index++, static_cast<std::uint64_t>(below)));
    };
    for (std::int64_t b = 0; b < p_.batch; ++b)
      for (const bool of_keys : {false, true}) {
        const std::int64_t rows = of_keys ? p_.seqlen_kv : p_.seqlen_q;
        const std::int32_t begin = p_.left ? draw(rows / 2 + 1) : 0;
        const bool none = b == 2;
        const auto length = static_cast<std::int32_t>(rows - begin);
        const std::int32_t used =
            p_.right ? (none && !of_keys ? 0 : std::max(1, length - draw(length / 2 + 1))) : length;
        (of_keys ? leftpad_kv_ : leftpad_q_).push_back(begin);
        (of_keys ? seqlens_kv_ : seqlens_q_).push_back(of_keys && none && p_.left ? 0 : used);
        const std::int32_t end = begin + (of_keys ? seqlens_kv_ : seqlens_q_).back();
        if (!of_keys && (p_.left || p_.right)) clear_rows(arguments_.q, b, begin, end);
        if (of_keys && (p_.left || p_.right)) {
          clear_rows(arguments_.k, b, begin, end);
          clear_rows(arguments_.v, b, begin, end);
        }
      }
    if (!p_.left && !p_.right) return;
    if (p_.left) {
      arguments_.leftpad_q = leftpad_q_.data();
      arguments_.leftpad_kv = leftpad_kv_.data();
    }
    arguments_.seqlens_q = seqlens_q_.data();
    arguments_.seqlens_kv = seqlens_kv_.data();
  }

  std::array<std::int64_t, 4> score_shape() const {
    std::array<std::int64_t, 4> shape = {p_.batch, p_.heads_q, p_.seqlen_q, p_.seqlen_kv};
    for (std::size_t i = 0; i < 4; ++i)
      if (p_.broadcast[i] != 0) shape[i] = p_.broadcast[i];
    return shape;
  }
  ConstTensor score_tensor(const void* data, DType dtype) const {
    const std::array<std::int64_t, 4> s = score_shape();
    const std::int64_t row = s[3] + p_.row_gap;
    return {data, dtype, s, {s[1] * s[2] * row, s[2] * row, row, 1}};
  }
  std::size_t score_count() const {
    const std::array<std::int64_t, 4> s = score_shape();
    return static_cast<std::size_t>(s[0] * s[1] * s[2] * (s[3] + p_.row_gap));
  }

  // A mask that hides two keys of five, every seventh row completely, and one key everywhere, which
  // is NaN in K.
  void set_mask() {
    if (!p_.mask) return;
    const std::array<std::int64_t, 4> s = score_shape();
    mask_.assign(score_count(), 0);
    const std::int64_t row_elements = s[3] + p_.row_gap;
    for (std::size_t i = 0; i < mask_.size(); ++i) {
      const std::int64_t column = static_cast<std::int64_t>(i) % row_elements;
      const std::int64_t row = static_cast<std::int64_t>(i) / row_elements;
      const bool hidden_everywhere = s[3] > 5 && column == 5;
      mask_[i] = random_below(p_.seed, 50, i, 5) >= 2 && row % 7 != 6 && !hidden_everywhere ? 1 : 0;
    }
    if (s[3] > 5)
      for (std::int64_t h = 0; h < p_.heads_kv * p_.batch; ++h)
        std::fill_n(static_cast<std::uint16_t*>(const_cast<void*>(arguments_.k.data)) +
                        (h * p_.seqlen_kv + 5) * p_.head_dim,
                    p_.head_dim, kPoison);
    arguments_.mask = score_tensor(mask_.data(), DType::boolean);
  }
  // Some elements are -infinity, those behind the mask NaN, and the gaps too.
  void set_bias() {
    if (!p_.bias) return;
    const std::int64_t row_elements = score_shape()[3] + p_.row_gap;
    bias_.assign(score_count() * (size_bytes(*p_.bias) / 2) + 8, kPoison);
    auto* const data = reinterpret_cast<std::uint16_t*>(
        (reinterpret_cast<std::uintptr_t>(bias_.data()) + 15) / 16 * 16);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(score_count()); ++i) {
      const auto index = static_cast<std::uint64_t>(i);
      float x = random_normal_value(p_.seed, 60, index);
      if (random_below(p_.seed, 61, index, 9) == 0) x = -std::numeric_limits<float>::infinity();
      const bool in_gap = i % row_elements >= score_shape()[3];
      const bool hidden = p_.mask && mask_[static_cast<std::size_t>(i)] == 0;
      if (in_gap || hidden) x = std::numeric_limits<float>::quiet_NaN();
      store_element(*p_.bias, data, i, x);
    }
    arguments_.bias = score_tensor(data, *p_.bias);
  }

  ModifiedProblem p_;
  Arguments arguments_;
  Options options_;
  std::vector<std::uint16_t> q_, k_, v_, out_, bias_;
  std::vector<std::uint8_t> mask_;
  std::vector<float> lse_, slopes_, sinks_;
  std::vector<std::int32_t> seqlens_q_, seqlens_kv_, leftpad_q_, leftpad_kv_, cu_q_, cu_kv_;
  std::int64_t tokens_q_ = 0, tokens_kv_ = 0, out_stride_ = 0, rows_of_out_ = 0;
};

}  // namespace octavo::evidence
