// SPDX-License-Identifier: Apache-2.0
// Computes the truth of a case: fp64 attention on the inputs, and on the inputs as the mode
// quantizes them.
#include "evidence/oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "attention/mask.h"
#include "attention/operand.h"
#include "attention/reference.h"
#include "attention/score_modifiers.h"
#include "base/error.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

bool rounds(const Case& c) {
  return c.kv || is_8bit(c.input) || c.options.precision != Precision::native;
}

double scale_of(const Case& c) {
  return c.scale ? *c.scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
}

// The options for the oracle: only the mask and the softcap, as precision and quantization are
// applied before the oracle runs.
Options mask_of(const Options& options) {
  Options mask;
  mask.softcap = options.softcap;
  mask.causal = options.causal;
  mask.window_left = options.window_left;
  mask.window_right = options.window_right;
  return mask;
}

// The keys that query i of a head sees in sequence b.
std::int64_t count_keys(const Case& c, const Inputs& in, std::size_t b, std::int64_t head,
                        std::int64_t i) {
  const Span &q = in.spans_q[b], &kv = in.spans_kv[b];
  const KeyRange keys = visible_keys(c.options, i, q.length, kv.length);
  if (!c.bias && !c.mask && c.block_mask == 0 && !c.draft_tree) return keys.end - keys.begin;
  const Sequence at{q.batch, q.begin, q.length, kv.begin, kv.length};
  const RowModifiers modifiers(in.original, c.options, at, static_cast<std::int64_t>(b), head, i);
  std::int64_t count = 0;
  for (std::int64_t j = keys.begin; j < keys.end; ++j)
    count += modifiers.apply(0, j) == -HUGE_VAL ? 0 : 1;
  return count;
}

std::vector<JudgedRow> judged_rows(const Case& c, const Inputs& in) {
  std::vector<JudgedRow> rows;
  for (std::size_t b = 0; b < in.spans_q.size(); ++b) {
    const Span& q = in.spans_q[b];
    std::vector<std::int64_t> chosen =
        spread_rows(q.length, c.sampled_rows > 0 ? c.sampled_rows : q.length);
    for (std::int64_t head = 0; head < c.heads_q; ++head)
      for (const std::int64_t i : chosen)
        rows.push_back({q.batch, head, q.begin + i, count_keys(c, in, b, head, i)});
    if (!c.padded) continue;
    for (std::int64_t head = 0; head < c.heads_q; ++head)
      for (std::int64_t row = 0; row < c.seqlen_q; ++row)
        if (row < q.begin || row >= q.begin + q.length) rows.push_back({q.batch, head, row, 0});
  }
  return rows;
}

// Runs the oracle on the judged rows of a case, in their order.
Status evaluate(const Oracle& oracle, const Case& c, const Arguments& a, const Options& mask,
                std::optional<DType> rounding, const std::vector<JudgedRow>& rows,
                std::vector<double>& out, std::vector<double>& lse) {
  const auto columns = static_cast<std::size_t>(c.v_columns());
  out.assign(rows.size() * columns, 0);
  lse.assign(rows.size(), 0);
  if (rows.empty()) return {};
  if (c.sampled_rows > 0) {
    const std::vector<std::int64_t> sampled = spread_rows(c.seqlen_q, c.sampled_rows);
    return oracle(a, mask, rounding, &sampled, out.data(), lse.data());
  }
  const std::array<std::int64_t, 4>& n = a.q.shape;
  std::vector<double> all(static_cast<std::size_t>(n[0] * n[1] * n[2]) * columns);
  std::vector<double> all_lse(static_cast<std::size_t>(n[0] * n[1] * n[2]));
  OCTAVO_RETURN_IF_ERROR(oracle(a, mask, rounding, nullptr, all.data(), all_lse.data()));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto place =
        static_cast<std::size_t>((rows[r].batch * n[1] + rows[r].head) * n[2] + rows[r].row);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(place * columns), columns,
                out.begin() + static_cast<std::ptrdiff_t>(r * columns));
    lse[r] = all_lse[place];
  }
  return {};
}

// One operand as the mode quantizes it; `memory` owns the data.
struct Rounded {
  TensorMemory wide;
  QuantizedOperand narrow;
};

Status round_operand(const Case& c, const OperandFormat& format, const std::vector<Span>& spans,
                     std::int64_t max_len, ConstTensor& tensor, Scales& scales, Rounded& memory) {
  if (!format.rounded) return {};
  if (!is_8bit(*format.rounded)) {
    memory.wide = make_memory(c.layout, *format.rounded, tensor.shape);
    // The poison of unused elements stays poison. The oracle does not read it.
    OCTAVO_RETURN_IF_ERROR(convert(tensor, memory.wide.view));
    tensor = memory.wide.view;
    return {};
  }
  QuantizeOptions options;
  options.granularity = format.granularity;
  options.block_rows = c.options.quantization.block_rows;
  options.rule = c.options.quantization.rule;
  // One scale for a whole varlen batch is from amax, whatever the rule: no search spans sequences.
  if (c.layout == Layout::varlen && options.granularity == Granularity::tensor)
    options.rule = ScaleRule::amax;
  options.smooth = format.smooth;
  options.hadamard = format.hadamard;
  auto quantized = quantize_operand(tensor, *format.rounded, format.max_quantized, options,
                                    c.layout, spans, max_len);
  if (!quantized.ok()) return quantized.status();
  memory.narrow = std::move(quantized).value();
  tensor = memory.narrow.values.view;
  scales = memory.narrow.view;
  return {};
}

// Smoothing K shifts a row of scores by scale * q . mean; this adds it back to the LSE.
void restore_mean(const Case& c, const Inputs& in, const std::vector<float>& mean, Truth& truth) {
  const ConstTensor q = in.original.q;
  for (std::size_t r = 0; r < truth.rows.size(); ++r) {
    const JudgedRow& row = truth.rows[r];
    std::int64_t sequence = row.batch;
    if (c.layout == Layout::varlen)
      for (sequence = 0; row.row >= in.cu_q[static_cast<std::size_t>(sequence) + 1];) ++sequence;
    const std::int64_t head_kv = row.head / (c.heads_q / c.heads_kv);
    const float* m = mean.data() + (sequence * c.heads_kv + head_kv) * c.head_dim;
    const std::int64_t first =
        row.batch * q.stride[0] + row.head * q.stride[1] + row.row * q.stride[2];
    double dot = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d)
      dot += static_cast<double>(load_element(q.dtype, q.data, first + d)) * m[d];
    truth.quantized_lse[r] += scale_of(c) * dot;
  }
}

// The type of the unfused attention with which a result is compared: that of the output, or that of
// P if the backend rounds P to a coarser type. None for f32, for 8-bit V, and for scores that FP8
// tensor cores truncate.
std::optional<DType> gate_type(const Case& c, const OperandFormats& formats, bool p_is_rounded) {
  const DType q = formats.q.rounded.value_or(formats.q.stored);
  const DType v = formats.v.rounded.value_or(formats.v.stored);
  const bool fp8_scores = q == DType::e4m3 || q == DType::e5m2;
  if (is_8bit(v) || v == DType::int4 || (fp8_scores && p_is_rounded)) return std::nullopt;
  const DType p = p_is_rounded ? v : DType::f32;
  if (p == DType::bf16 || c.out == DType::bf16) return DType::bf16;
  if (p == DType::f16 || c.out == DType::f16) return DType::f16;
  return std::nullopt;
}

// A call with its operands as the mode quantizes them.
struct RoundedCall {
  OperandFormats formats;
  Arguments arguments;
  Rounded q, k, v;
};

Status round_call(const Case& c, const Inputs& in, RoundedCall& call) {
  const Result<Problem> problem = problem_of(in.given, c.options);
  if (!problem.ok()) return problem.status();
  const OperandFormats& formats = call.formats = operand_formats(*problem);
  Arguments& a = call.arguments = in.dense;
  OCTAVO_RETURN_IF_ERROR(
      round_operand(c, formats.q, in.spans_q, c.seqlen_q, a.q, a.q_scales, call.q));
  OCTAVO_RETURN_IF_ERROR(
      round_operand(c, formats.k, in.spans_kv, c.seqlen_kv, a.k, a.k_scales, call.k));
  return round_operand(c, formats.v, in.spans_kv, c.seqlen_kv, a.v, a.v_scales, call.v);
}

Status quantized_truth(const Case& c, const Inputs& in, const Oracle& oracle,
                       const RoundedCall& call, Truth& truth) {
  if (rounds(c)) {
    OCTAVO_RETURN_IF_ERROR(evaluate(oracle, c, call.arguments, mask_of(c.options), std::nullopt,
                                    truth.rows, truth.quantized, truth.quantized_lse));
  } else {
    truth.quantized = truth.original;
    truth.quantized_lse = truth.original_lse;
  }
  if (call.formats.k.smooth) restore_mean(c, in, call.k.narrow.mean, truth);
  return {};
}

Status gate_truth(const Case& c, const TruthOptions& options, const RoundedCall& call,
                  Truth& truth) {
  truth.gate = gate_type(c, call.formats, options.p_is_rounded);
  if (!truth.gate) return {};
  std::vector<double> no_lse;
  return evaluate(options.oracle, c, call.arguments, mask_of(c.options), truth.gate, truth.rows,
                  truth.reference16, no_lse);
}

Status original_truth(const Case& c, const Inputs& in, const Oracle& oracle, Truth& truth) {
  truth.rows = judged_rows(c, in);
  return evaluate(oracle, c, in.original, mask_of(c.options), std::nullopt, truth.rows,
                  truth.original, truth.original_lse);
}

struct Range {
  double amax = 0, rms = 0, longest_row = 0;
};

Range range_of(const ConstTensor& t, const std::vector<Span>& spans) {
  Range range;
  double squares = 0;
  double count = 0;
  for (const Span& span : spans)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = span.begin; s < span.begin + span.length; ++s) {
        double row = 0;
        for (std::int64_t d = 0; d < t.shape[3]; ++d) {
          const double x = load_element(
              t.dtype, t.data, span.batch * t.stride[0] + h * t.stride[1] + s * t.stride[2] + d);
          range.amax = std::max(range.amax, std::abs(x));
          row += x * x;
        }
        range.longest_row = std::max(range.longest_row, std::sqrt(row));
        squares += row;
        count += static_cast<double>(t.shape[3]);
      }
  range.rms = count > 0 ? std::sqrt(squares / count) : 0;
  return range;
}

double crest(const Range& range) { return range.rms > 0 ? range.amax / range.rms : 1; }

// The arguments and options of a call with twice the scores, and without sinks.
struct TwiceTheScores {
  Arguments arguments;
  Options mask;
  TensorMemory bias;
  std::vector<float> slopes;

  TwiceTheScores(const Case& c, const Inputs& in)
      : arguments(in.original), mask(mask_of(c.options)), slopes(in.slopes) {
    arguments.scale = static_cast<float>(2 * scale_of(c));
    arguments.sinks = nullptr;
    mask.softcap *= 2;
    for (float& slope : slopes) slope *= 2;
    if (c.alibi) arguments.alibi_slopes = slopes.data();
    if (!c.bias) return;
    const Tensor& from = in.bias.view;
    bias = make_memory(c.layout, DType::f32, from.shape);
    const auto n = static_cast<std::int64_t>(bias.bytes.size() - 2 * kGuardBytes) / 4;
    for (std::int64_t i = 0; i < n; ++i)  // the layouts are the same, gaps included
      store_element(DType::f32, bias.view.data, i, 2 * load_element(from.dtype, from.data, i));
    arguments.bias = bias.view;
  }
};

// kappa^2 = sum p^2 = exp(lse(2 s) - 2 lse(s)), from the oracle at twice the scores. A sink is part
// of lse(s) alone.
Status measure_kappa(const Case& c, const Inputs& in, const Oracle& oracle, Truth& truth) {
  const TwiceTheScores twice(c, in);
  std::vector<double> out, lse;
  OCTAVO_RETURN_IF_ERROR(
      evaluate(oracle, c, twice.arguments, twice.mask, std::nullopt, truth.rows, out, lse));
  double sum = 0;
  Magnitudes& m = truth.magnitudes;
  for (std::size_t r = 0; r < truth.rows.size(); ++r) {
    if (truth.rows[r].keys == 0) continue;
    const double squares = std::min(std::exp(lse[r] - 2 * truth.original_lse[r]), 1.0);
    m.kappa_max = std::max(m.kappa_max, std::sqrt(squares));
    sum += squares;
  }
  m.kappa_rms = m.rows > 0 ? std::sqrt(sum / static_cast<double>(m.rows)) : 0;
  return {};
}

// The largest |bias| that a row sees, plus the largest term of ALiBi.
double addition_amax(const Case& c, const Inputs& in) {
  double bias = 0, slope = 0, distance = 0;
  const ConstTensor& t = in.original.bias;
  const auto n = static_cast<std::int64_t>(in.bias.bytes.size()) - 2 * int{kGuardBytes};
  for (std::int64_t i = 0; c.bias && i < n / static_cast<int>(size_bytes(t.dtype)); ++i)
    if (const double x = std::abs(load_element(t.dtype, t.data, i)); std::isfinite(x))
      bias = std::max(bias, x);
  for (const float x : in.slopes) slope = std::max(slope, std::abs(double{x}));
  for (const std::vector<Span>* spans : {&in.spans_q, &in.spans_kv})
    for (const Span& span : *spans) distance = std::max(distance, static_cast<double>(span.length));
  return bias + slope * distance;
}

void measure_magnitudes(const Case& c, const Inputs& in, Truth& truth) {
  Magnitudes& m = truth.magnitudes;
  const Range q = range_of(in.original.q, in.spans_q);
  const Range k = range_of(in.original.k, in.spans_kv);
  const Range v = range_of(in.original.v, in.spans_kv);
  m.v_amax = v.amax;
  m.v_rms = v.rms;
  m.v_crest = crest(v);
  m.qk_crest = std::max(crest(q), crest(k));
  m.score_amax = std::abs(scale_of(c)) * q.longest_row * k.longest_row;
  m.addition_amax = addition_amax(c, in);
  m.softcap = c.options.softcap;
  m.head_dim = static_cast<double>(c.head_dim);
  m.tau = m.tau_peak = m.score_amax / std::sqrt(m.head_dim);
  if (c.outliers) {
    // One channel dominates the largest scores, so roundings do not average out over D: for the
    // largest scores not at all, over all rows by half an order of magnitude (measured: 0.14 of
    // score_amax).
    m.tau_peak = m.score_amax;
    m.tau = std::max(m.tau, m.score_amax / 4);
  }
  for (const double x : truth.original) m.out_amax = std::max(m.out_amax, std::abs(x));
  for (const double x : truth.quantized) m.out_amax = std::max(m.out_amax, std::abs(x));
  for (const JudgedRow& row : truth.rows) {
    m.rows += row.keys > 0 ? 1 : 0;
    m.keys = std::max(m.keys, static_cast<double>(row.keys));
  }
}

}  // namespace

std::vector<std::int64_t> spread_rows(std::int64_t length, std::int64_t count) {
  std::vector<std::int64_t> rows;
  const std::int64_t n = std::min(length, count);
  for (std::int64_t i = 0; i < n; ++i) rows.push_back(n == 1 ? 0 : i * (length - 1) / (n - 1));
  return rows;
}

Status cpu_oracle(const Arguments& a, const Options& mask, std::optional<DType> rounding,
                  const std::vector<std::int64_t>* rows, double* out, double* lse) {
  if (rounding) return reference_16bit(a, mask, *rounding, out, rows);
  return rows == nullptr ? reference(a, mask, out, lse)
                         : reference_of_rows(a, mask, *rows, out, lse);
}

Result<Truth> exact_truth(const Case& c, const Inputs& inputs, const Oracle& oracle,
                          const Truth* original) {
  Truth truth;
  if (original != nullptr) {
    truth.rows = original->rows;
    truth.original = original->original;
    truth.original_lse = original->original_lse;
  } else {
    OCTAVO_RETURN_IF_ERROR(original_truth(c, inputs, oracle, truth));
  }
  RoundedCall call;
  OCTAVO_RETURN_IF_ERROR(round_call(c, inputs, call));
  OCTAVO_RETURN_IF_ERROR(quantized_truth(c, inputs, oracle, call, truth));
  return truth;
}

Result<Truth> make_truth(const Case& c, const Inputs& inputs, const TruthOptions& options) {
  Truth truth;
  RoundedCall call;
  OCTAVO_RETURN_IF_ERROR(original_truth(c, inputs, options.oracle, truth));
  OCTAVO_RETURN_IF_ERROR(round_call(c, inputs, call));
  OCTAVO_RETURN_IF_ERROR(quantized_truth(c, inputs, options.oracle, call, truth));
  OCTAVO_RETURN_IF_ERROR(gate_truth(c, options, call, truth));
  measure_magnitudes(c, inputs, truth);
  if (rounds(c) || options.p_is_rounded)
    OCTAVO_RETURN_IF_ERROR(measure_kappa(c, inputs, options.oracle, truth));
  return truth;
}

}  // namespace octavo::evidence
