// SPDX-License-Identifier: Apache-2.0
// The checks that judge a result. Each rejects a plausible fault; tests/evidence plants these
// faults.
#include "evidence/oracle/judge.h"

#include <fmt/format.h>

#include <cmath>

#include "evidence/oracle/bounds.h"
#include "numeric/formats.h"

namespace octavo::evidence {
namespace {

struct Error {
  double max = 0;
  double squares = 0;
  std::int64_t count = 0;
  void add(double error) {
    max = std::max(max, std::abs(error));
    squares += error * error;
    ++count;
  }
  double rms() const { return count > 0 ? std::sqrt(squares / static_cast<double>(count)) : 0; }
};

double rounded_to(DType dtype, double x) {
  const auto f = static_cast<float>(x);
  return dtype == DType::f16 ? f32_from_f16(f16_from_f32(f)) : f32_from_bf16(bf16_from_f32(f));
}

// The cost of one rounding at the size of the data: adds and subtracts 0.3 in the output's type.
double rounding_of(DType dtype, double reference) {
  const double x = rounded_to(dtype, reference);
  return rounded_to(dtype, rounded_to(dtype, x + 0.3) - 0.3) - x;
}

class Judge {
 public:
  Judge(const Case& c, const Inputs& in, const Truth& truth) : c_(c), in_(in), truth_(truth) {}

  Verdict run(Device::Kind kind) {
    check_memory();
    compare_rows();
    Bounds b = bounds(mode(), is_8bit(c_.out) ? DType::f32 : c_.out, kind != Device::Kind::cpu,
                      truth_.magnitudes);
    check_amax(b);
    if (is_8bit(c_.out)) {
      const double rounding = half_output_step();
      b.kernel_max += rounding;
      b.total_max += rounding;
      b.total_rmse += rounding;
    }
    check_dead_rows(b);
    expect_within("kernel error", kernel_.max, b.kernel_max);
    if (rounds()) {
      expect_within("total error", total_.max, b.total_max);
      expect_within("total rmse", total_.rms(), b.total_rmse);
    }
    check_mission();
    check_16bit_gate(b);
    check_lse(b);
    check_not_too_exact();
    verdict_.total_max = total_.max;
    verdict_.total_rmse = total_.rms();
    verdict_.kernel_max = kernel_.max;
    return std::move(verdict_);
  }

 private:
  ModeBound mode() const {
    if (c_.kv) return mode_bound_over(c_.input, *c_.kv);
    return mode_bound(c_.input, c_.options.precision, c_.v_type());
  }
  bool rounds() const {
    return c_.kv || is_8bit(c_.input) || c_.options.precision != Precision::native;
  }

  template <class... Args>
  void fail(fmt::format_string<Args...> text, Args&&... args) {
    verdict_.failures.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void expect_within(std::string_view gate, double value, double bound) {
    const double ratio = value == 0 ? 0 : bound > 0 ? value / bound : HUGE_VAL;
    verdict_.bound_ratio = std::max(verdict_.bound_ratio, ratio);
    if (!(value <= bound)) fail("{} {:.3e} exceeds its bound {:.3e}", gate, value, bound);
  }

  double out_at(const JudgedRow& row, std::int64_t d) const {
    const Tensor& t = in_.out.view;
    const double x =
        load_element(t.dtype, t.data,
                     row.batch * t.stride[0] + row.head * t.stride[1] + row.row * t.stride[2] + d);
    return is_8bit(c_.out) ? x * in_.out_scales[head_number(row)] : x;
  }
  // The index of the row's head, counted over all sequences.
  std::size_t head_number(const JudgedRow& row) const {
    std::size_t sequence = 0;
    while (row.batch != in_.spans_q[sequence].batch ||
           row.row >= in_.spans_q[sequence].begin + in_.spans_q[sequence].length)
      ++sequence;
    return sequence * static_cast<std::size_t>(c_.heads_q) + static_cast<std::size_t>(row.head);
  }
  // Half of the widest step between quantized values that the outputs reach.
  double half_output_step() const {
    const float scale = *std::max_element(in_.out_scales.begin(), in_.out_scales.end());
    if (c_.out == DType::int8) return 0.5 * scale;
    const bool e4m3 = c_.out == DType::e4m3;
    return (e4m3 ? 0x1p-4 : 0x1p-3) * truth_.magnitudes.out_amax +
           (e4m3 ? 0x1p-10 : 0x1p-17) * scale;
  }

  // Checks amax within the bound of the outputs before rounding; it is 0 if there is no row.
  void check_amax(const Bounds& b) {
    const std::int64_t stray =
        stray_bytes(in_.amax, c_.amax ? all_of(in_.amax.view) : std::vector<Span>{});
    if (stray > 0) fail("out_amax: {} bytes outside it were overwritten", stray);
    if (!c_.amax || c_.sampled_rows > 0) return;
    std::vector<double> truth(is_8bit(c_.out) ? in_.out_scales.size() : 1);
    const auto columns = static_cast<std::size_t>(c_.v_columns());
    for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
      if (truth_.rows[r].keys == 0) continue;
      double& most = truth[is_8bit(c_.out) ? head_number(truth_.rows[r]) : 0];
      for (std::size_t i = r * columns; i < (r + 1) * columns; ++i)
        most = std::max(most, std::abs(truth_.quantized[i]));
    }
    const auto* const found = static_cast<const float*>(in_.amax.view.data);
    for (std::size_t i = 0; i < truth.size(); ++i)
      expect_within("error of out_amax", std::abs(found[i] - truth[i]),
                    truth[i] == 0 ? 0 : b.kernel_max);
  }
  static std::vector<Span> all_of(const Tensor& t) {
    std::vector<Span> spans;
    for (std::int64_t batch = 0; batch < t.shape[0]; ++batch)
      spans.push_back({batch, 0, t.shape[2]});
    return spans;
  }

  double lse_at(const JudgedRow& row) const {
    const Tensor& t = in_.lse.view;
    return load_element(t.dtype, t.data,
                        row.batch * t.stride[0] + row.head * t.stride[1] + row.row * t.stride[2]);
  }

  // Nothing outside the rows may change; every row must, sampled or not. The poison is a NaN, and
  // no case has NaN among its values, so a value that is not finite was not written or is wrong.
  void check_memory() {
    if (const std::int64_t stray = stray_bytes(in_.out, in_.written_q); stray > 0)
      fail("out: {} bytes outside its rows were overwritten", stray);
    if (const std::int64_t stray =
            stray_bytes(in_.lse, c_.lse ? in_.written_q : std::vector<Span>{});
        stray > 0)
      fail("lse: {} bytes outside its rows were overwritten", stray);
    std::int64_t bad = 0, bad_lse = 0;
    for (const Span& span : in_.written_q)
      for (std::int64_t h = 0; h < c_.heads_q; ++h)
        for (std::int64_t s = span.begin; s < span.begin + span.length; ++s) {
          const JudgedRow row{span.batch, h, s, 0};
          for (std::int64_t d = 0; d < c_.v_columns(); ++d)
            bad += std::isfinite(out_at(row, d)) ? 0 : 1;
          if (c_.lse) bad_lse += std::isnan(lse_at(row)) ? 1 : 0;
        }
    if (bad > 0) fail("out: {} elements not written or not finite", bad);
    if (bad_lse > 0) fail("lse: {} elements not written or NaN", bad_lse);
  }

  void compare_rows() {
    std::size_t at = 0;
    for (const JudgedRow& row : truth_.rows)
      for (std::int64_t d = 0; d < c_.v_columns(); ++d, ++at) {
        const double x = out_at(row, d);
        if (row.keys == 0 || !std::isfinite(x)) continue;
        total_.add(x - truth_.original[at]);
        kernel_.add(x - truth_.quantized[at]);
        by_quantization_.add(truth_.quantized[at] - truth_.original[at]);
      }
  }

  // Checks the declared error of the mode, at the shape for which it is declared.
  void check_mission() {
    Case mission;
    mission.heads_q = mission.heads_kv = 8;
    mission.seqlen_q = mission.seqlen_kv = 512;
    mission.input = c_.input;
    mission.v = c_.v;
    mission.kv = c_.kv;
    mission.out = c_.out;
    mission.options.precision = c_.options.precision;
    mission.sampled_rows = c_.sampled_rows;
    mission.seed = c_.seed;
    mission.lse = c_.lse;
    if (c_.name() != mission.name()) return;
    expect_within("total error at the mission shape", total_.max, mode().mission_max);
    expect_within("total rmse at the mission shape", total_.rms(), mode().mission_rmse);
  }

  // Checks rows without keys: the output is 0, and the LSE -inf, or the sink unless the row is
  // padding.
  void check_dead_rows(const Bounds& b) {
    std::int64_t wrong = 0, wrong_lse = 0;
    for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
      const JudgedRow& row = truth_.rows[r];
      if (row.keys > 0) continue;
      for (std::int64_t d = 0; d < c_.v_columns(); ++d) wrong += out_at(row, d) == 0 ? 0 : 1;
      if (!c_.lse) continue;
      const double expected = truth_.quantized_lse[r], found = lse_at(row);
      const bool close = std::isfinite(expected) &&
                         std::abs(found - expected) <= b.kernel_lse + 0x1p-23 * std::abs(expected);
      wrong_lse += found == expected || close ? 0 : 1;
    }
    if (wrong > 0) fail("out: {} elements of rows without keys are not 0", wrong);
    if (wrong_lse > 0)
      fail("lse: {} rows without keys are not {}", wrong_lse, c_.sinks ? "the sink" : "-inf");
  }

  // |out - ref| <= 2 |reference16 - ref| + 2 |(ref + 0.3 - 0.3) - ref|, on max and on rms, in the
  // type of the output, or in P's type if a backend rounds P to a coarser one; and what FP32 costs.
  // A few values of V that rows take as they are may have no rounding error at all.
  void check_16bit_gate(const Bounds& b) {
    if (!truth_.gate || is_8bit(c_.out)) return;
    Error unfused, rounding;
    const auto columns = static_cast<std::size_t>(c_.v_columns());
    for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
      if (truth_.rows[r].keys == 0) continue;
      for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) {
        unfused.add(truth_.reference16[i] - truth_.quantized[i]);
        rounding.add(rounding_of(*truth_.gate, truth_.quantized[i]));
      }
    }
    expect_within("16-bit gate, max", kernel_.max, 2 * unfused.max + 2 * rounding.max + b.fp32);
    expect_within("16-bit gate, rms", kernel_.rms(),
                  2 * unfused.rms() + 2 * rounding.rms() + b.fp32);
  }

  void check_lse(const Bounds& b) {
    if (!c_.lse) return;
    Error kernel, total;
    double largest = 0;
    for (std::size_t r = 0; r < truth_.rows.size(); ++r) {
      const double x = lse_at(truth_.rows[r]);
      if (truth_.rows[r].keys == 0 || std::isnan(x)) continue;
      kernel.add(x - truth_.quantized_lse[r]);
      total.add(x - truth_.original_lse[r]);
      largest = std::max(largest, std::abs(truth_.quantized_lse[r]));
    }
    const double rounding = 0x1p-23 * largest;
    expect_within("lse kernel error", kernel.max, b.kernel_lse + rounding);
    if (rounds()) expect_within("lse total error", total.max, b.total_lse + rounding);
  }

  // Checks that rounding is visible. An error of zero, or far below that of the mode's quantization
  // alone, means that something was compared with itself or not computed.
  void check_not_too_exact() {
    std::int64_t mixed = 0;  // elements that are averages of several keys, so not exact in any type
    for (const JudgedRow& row : truth_.rows) mixed += row.keys >= 2 ? c_.v_columns() : 0;
    if (mixed < 64) return;
    // The average of equal rows of V is that row, so the output may have no error.
    if (kernel_.max == 0 && c_.values != InputValues::equal_keys)
      fail("kernel error is exactly 0, although rounding must be visible");
    if (total_.rms() < 0.5 * by_quantization_.rms())
      fail("total rmse {:.3e} is below half of {:.3e}, the error of the quantization alone",
           total_.rms(), by_quantization_.rms());
  }

  const Case& c_;
  const Inputs& in_;
  const Truth& truth_;
  Error total_, kernel_, by_quantization_;
  Verdict verdict_;
};

}  // namespace

Verdict judge(const Case& c, const Inputs& inputs, const Truth& truth, Device::Kind kind) {
  return Judge(c, inputs, truth).run(kind);
}

}  // namespace octavo::evidence
