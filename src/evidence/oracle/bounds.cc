// SPDX-License-Identifier: Apache-2.0
// The table of error bounds and the rule that scales it. Measured numbers say where they come from.
#include "evidence/oracle/bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "numeric/fork_safe.h"

namespace octavo::evidence {
namespace {

constexpr double kHalfUlpF32 = 0x1p-24;

// Factors that multiply the rule to allow for what it neglects (peaked rows, errors that the
// elements of a row share, D below a few dozen). Measured over `all`, seed 42, without outliers:
// the largest error is at most 1.92 of the rule with amax(v) for rms(v), the rmse 0.80, an LSE
// 2.84.
constexpr double kMaxSlack = 2.5;
constexpr double kRmsSlack = 1.2;
constexpr double kLseSlack = 4;
// Products of 8-bit values with one scale, rounded to 16 bits, have few mantissas, so their errors
// have a mean that all channels share: at most so many times their spread (simulated over all
// scales: 1.36 for e5m2, 1.25 for e4m3, 1.05 for int8). It changes a score by a factor.
constexpr double kSharedRounding = 1.4;

// If each row has its own error, as when each row sees one key, the largest of n errors is near
// sqrt(2 ln n) times their spread, and rarely one spread above that.
double lse_slack(std::int64_t rows) {
  const double n = static_cast<double>(std::max<std::int64_t>(rows, 1));
  return std::max(kLseSlack, 1 + std::sqrt(2 * std::log(n)));
}

bool is_rounded(DType format) { return format != DType::f32; }

double half_ulp(DType out) {
  return out == DType::f16 ? 0x1p-11 : out == DType::bf16 ? 0x1p-8 : kHalfUlpF32;
}

}  // namespace

// Noise of P. E4M3: as for any operand (simulated: 0.023). 0.012 is for 255 steps, or 127 of the
// block's largest (simulated: 0.014 of the rule, within the declared errors), not for 127 plain
// steps (0.018). The value of fp8_fast is reserved, not measured.
const std::vector<ModeBound>& mode_bounds() {
  static constinit MadeOnce<std::vector<ModeBound>> made;
  return made.get([] {
    return std::vector<ModeBound>{
        {"native f32", DType::f32, DType::f32, 0, 5e-6, 2e-7},
        {"native f16", DType::f32, DType::f32, 2.0e-4, 5e-4, 4e-5},
        {"native bf16", DType::f32, DType::f32, 1.6e-3, 5e-3, 3e-4},
        {"fp16", DType::f16, DType::f16, 2.0e-4, 1e-3, 6e-5},
        {"bf16", DType::bf16, DType::bf16, 1.6e-3, 1e-2, 5e-4},
        {"fp8", DType::e4m3, DType::e4m3, 0.026, 6e-2, 4.5e-3},
        {"fp8_mixed", DType::e4m3, DType::f16, 2.0e-4, 5e-2, 3.2e-3},
        {"fp8_fast", DType::e4m3, DType::e4m3, 0.045, 8e-2, 6e-3},
        {"int8", DType::int8, DType::int8, 0.012, 3e-2, 1.4e-3},
        {"int8_mixed", DType::int8, DType::f16, 2.0e-4, 2e-2, 8e-4},
        {"sim8", DType::sim8, DType::sim8, 0.012, 4e-2, 1.8e-3},
        {"e4m3 input", DType::e4m3, DType::e4m3, 0.026, 7e-2, 4.5e-3},
        {"e5m2 input", DType::e5m2, DType::e5m2, 0.052, 1.6e-1, 9e-3},
        {"int8 input", DType::int8, DType::int8, 0.012, 4e-2, 1.8e-3},
        {"sim8 input", DType::sim8, DType::sim8, 0.012, 4e-2, 1.8e-3},
        {"int4 input", DType::int4, DType::int4, 0, 4e-1, 2.5e-2},
    };
  });
}

const ModeBound& mode_bound(DType input, Precision precision) {
  std::string mode(name(precision));
  if (is_8bit(input) || input == DType::int4) {
    mode = fmt::format("{} input", name(input));
  } else if (precision == Precision::native) {
    mode = fmt::format("native {}", name(input));
  }
  const auto& table = mode_bounds();
  return *std::find_if(table.begin(), table.end(),
                       [&mode](const ModeBound& row) { return row.mode == mode; });
}

ModeBound mode_bound(DType input, Precision precision, DType v) {
  ModeBound mode = mode_bound(input, precision);
  const bool mixed_mode = is_8bit(mode.qk) && !is_8bit(mode.v);
  const bool as_given = is_8bit(input) ? !is_8bit(v) : mixed_mode && v == DType::bf16;
  if (is_8bit(input) && is_8bit(v) && v != input) {
    const ModeBound& of_other = mode_bound(v, Precision::native);
    mode.v = v;
    mode.p_noise = std::max(mode.p_noise, of_other.p_noise);
    mode.mission_max = std::max(mode.mission_max, of_other.mission_max);
    mode.mission_rmse = std::max(mode.mission_rmse, of_other.mission_rmse);
  }
  if (!as_given) return mode;
  const ModeBound& of_v = mode_bound(v, Precision::native);
  mode.v = of_v.v;
  mode.p_noise = of_v.p_noise;
  mode.mission_max += of_v.mission_max;
  mode.mission_rmse = std::hypot(mode.mission_rmse, of_v.mission_rmse);
  return mode;
}

ModeBound mode_bound_over(DType input, DType kv) {
  ModeBound mode = mode_bound(kv, Precision::native);
  const ModeBound& of_q = mode_bound(input, Precision::native);
  mode.p_noise = of_q.p_noise;
  mode.mission_max += of_q.mission_max;
  mode.mission_rmse = std::hypot(mode.mission_rmse, of_q.mission_rmse);
  mode.decoded = input;
  return mode;
}

double format_noise(DType format, double crest) {
  // A rounding error is uniform over half a step of an m-bit mantissa. Averaged over a binade that
  // is 2^-m * 0.68 / sqrt(12), so 0.0245 for three bits; 0.026 allows for values below the normal
  // range of their scale. An integer step is amax / 127.
  switch (format) {
    case DType::f32:
      return 0;
    case DType::f16:
      return 0.026 * 0x1p-7;
    case DType::bf16:
      return 0.026 * 0x1p-4;
    case DType::e4m3:
      return 0.026;
    case DType::e5m2:
      return 0.052;
    case DType::int8:
    case DType::sim8:
      return crest / (127 * std::sqrt(12.0));
    case DType::int4:  // a group's range is at most twice the largest magnitude
      return 2 * crest / (15 * std::sqrt(12.0));
    case DType::boolean:
      break;
  }
  return 0;
}

// The error of scores on FP8 tensor cores, relative to the scores' spread. They add 32 products and
// the running sum with 13 bits below the leading bit of the largest, and truncate the rest of each.
// That is 33 errors, each uniform below 2^-13 of a number that is at most the largest score, four
// times the spread; D / 32 times.
double fp8_sum_noise(DType qk, double head_dim) {
  if (qk != DType::e4m3 && qk != DType::e5m2) return 0;
  return 4 * 0x1p-13 * std::sqrt(33.0 / 3 * head_dim / 32);
}

// The rounding errors of a sum of `keys` terms, in half ulps of the sum. When n equal terms are
// added, step k rounds to the last bit of a sum that is k/n of the whole; if all steps err to the
// same side, that adds up to n/3 half ulps. The CPU adds up blocks of 64 keys, then 32 of those,
// and continues in FP64. On a GPU the sums run over all keys: a lane adds a quarter of a row's
// weights, and tensor cores truncate once in 16 keys, by up to two half ulps.
double length_error(double keys, bool on_gpu) {
  constexpr double kKeysAdded = 64, kBlocksAdded = 32;
  if (on_gpu) return keys / 12;
  return (std::min(keys, kKeysAdded) + std::min(std::ceil(keys / kKeysAdded), kBlocksAdded)) / 3;
}

// The rounding errors of the modifiers of scores, in half ulps. A bias or a term of ALiBi is
// converted to base 2 with two roundings, and the sum is rounded. tanh has a relative error on the
// CPU and an absolute one on a GPU. There the polynomial of the Hopper kernel adds up to 2^-11 in
// log2 units: 3.4e-4, or 4.2e-5 of a softcap below 8.
double modifier_error(const Magnitudes& m, bool on_gpu) {
  const double polynomial = std::min(700 * m.softcap, 5700.0);
  const double capped =
      on_gpu ? 20 * m.softcap + polynomial : 8 * std::min(m.softcap, m.score_amax);
  return 4 * m.addition_amax + capped;
}

Bounds bounds(const ModeBound& mode, DType out, bool p_is_rounded, const Magnitudes& m) {
  // The errors of fp32 arithmetic, in half ulps. A weight has the error of its score; only the part
  // that the keys do not share reaches the output (measured: 0.5 (8 + score_amax), with outliers
  // 1.2). The LSE sees the whole error of a dot product of D terms, sqrt(D) roundings of the
  // largest score (measured: 1.9 (8 + score_amax) on normal inputs, 1.0 sqrt(D) score_amax with
  // outliers).
  const double modifiers = modifier_error(m, p_is_rounded);
  const double fp32 = kHalfUlpF32 * (16 + 2 * m.score_amax + modifiers);
  const double fp32_lse = kHalfUlpF32 * (16 + 2.5 * std::sqrt(m.head_dim) * m.tau_peak + modifiers);
  // The errors of O and of the row sum that divides it. Both are relative to the output, not to V.
  const double length = kHalfUlpF32 * length_error(m.keys, p_is_rounded);
  const double rounding = (half_ulp(out) + 2 * length) * m.out_amax;
  const double qk = format_noise(mode.qk, m.qk_crest);
  const double scores = std::sqrt(2.0) * qk * m.tau;
  const double values = format_noise(mode.v, m.v_crest);
  const bool decodes = mode.decoded != DType::f32;
  const double sums = p_is_rounded && !decodes ? fp8_sum_noise(mode.qk, m.head_dim) : 0;
  const double decoded = p_is_rounded ? format_noise(mode.decoded, 0) : 0;
  const double p_noise = p_is_rounded ? mode.p_noise : 0;
  const double weights = std::hypot(std::hypot(p_noise, decoded), (sums + decoded) * m.tau);
  const double noise = std::sqrt(scores * scores + values * values + weights * weights);
  const double few_rows = 1 + 3 / std::sqrt(static_cast<double>(std::max<std::int64_t>(m.rows, 1)));

  Bounds b;
  b.fp32 = fp32 * m.v_amax;
  b.kernel_max = b.fp32 + rounding + kMaxSlack * m.kappa_max * m.v_amax * weights;
  // An average of V is inside the range of V, so its error is at most that range, however wrong the
  // weights.
  b.total_max = b.fp32 + rounding + std::min(kMaxSlack * m.kappa_max * noise, 2.1) * m.v_amax;
  b.total_rmse = b.fp32 + rounding + kRmsSlack * few_rows * m.kappa_rms * m.v_rms * noise;
  // The largest scores are some kLseSlack spreads.
  const double decoded_lse = kLseSlack * (1 + kSharedRounding) * decoded;
  b.kernel_lse = fp32_lse + length + p_noise + (sums + decoded_lse) * m.tau_peak;
  b.total_lse = b.kernel_lse + lse_slack(m.rows) * std::sqrt(2.0) * qk * m.tau_peak;
  return b;
}

std::string bound_text(const ModeBound& mode, DType out) {
  std::string text = "fp32 arithmetic";
  if (out != DType::f32) text += fmt::format(" + half an ulp of {}, the 16-bit gate", name(out));
  if (is_rounded(mode.qk))
    text += fmt::format("; noise of {} in QK, {} in V", name(mode.qk), name(mode.v));
  return text;
}

}  // namespace octavo::evidence
