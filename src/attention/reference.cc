// SPDX-License-Identifier: Apache-2.0
// Attention by its formula, in fp64: for every row of Q
//
//   s_j = scale * q . k_j          for the keys j that the mask allows, with the modifiers
//   p_j = exp(s_j - max s) / sum   o = sum_j p_j v_j      lse = max s + log(sum exp(s_j - max s))
//
// A sink is one more term of the sum, and of max s. The gradients follow, with delta = dout . o and
// x_j = scale * q . k_j, the score before the modifiers:
//
//   dp_j = dout . v_j         ds_j = p_j (dp_j - delta)         dx_j = ds_j * (ds/dx)
//   dq = scale * sum_j dx_j k_j         dk_j += scale * dx_j q         dv_j += p_j dout
//   dbias_j += ds_j                     dsink -= exp(sink - lse) delta
//
// This code has no tiles, tricks or threads, because everything else is compared with it.
#include "attention/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/backward_arguments.h"
#include "attention/element_offsets.h"
#include "attention/int4_rows.h"
#include "attention/mask.h"
#include "attention/operand_scales.h"
#include "attention/score_modifiers.h"
#include "attention/sequence.h"
#include "attention/validate.h"
#include "base/error.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

constexpr double kDoubleInfinity = std::numeric_limits<double>::infinity();

// One query row of one head.
struct Row {
  std::vector<double> scores;      // of the visible keys, scaled and modified
  double sink = -kDoubleInfinity;  // a score without a key
  const double* values = nullptr;  // V of the first visible key; rows of `head_dim_v`
  std::int64_t first_key = 0;
  std::int64_t head_dim_v = 0;
};

// The rows of one head of one sequence as fp64; 8-bit values are dequantized.
std::vector<double> load_rows(const Arguments& a, const ConstTensor& t, const Scales& scales,
                              std::int64_t max_len, const HeadOfSequence& of, std::int64_t rows,
                              VLayout layout = VLayout::rows, const GroupScales& groups = {}) {
  const std::int64_t columns = row_channels(t);
  std::vector<double> values(static_cast<std::size_t>(rows * columns));
  OperandScales steps;
  if (is_8bit(t.dtype)) steps = operand_scales(a, t, scales, max_len);
  const ElementOffsets places(t, layout, is_varlen(a), of);
  if (t.dtype == DType::int4) {
    std::vector<float> row(static_cast<std::size_t>(columns));
    for (std::int64_t r = 0; r < rows; ++r) {
      load_int4(t, groups_of(t, groups), places, of, r, row.data());
      std::copy(row.begin(), row.end(), values.begin() + r * columns);
    }
    return values;
  }
  const auto value_at = [&](std::int64_t index) {
    if (layout == VLayout::rows) return load_element(t.dtype, t.data, index);
    const std::uint8_t byte = static_cast<const std::uint8_t*>(t.data)[index];
    const std::uint8_t code = byte ^ flipped_bits(t.dtype);
    return load_element(t.dtype, &code, 0);
  };
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      double x = value_at(places.at(r, c));
      if (is_8bit(t.dtype)) x *= steps.step(of, r, c);
      values[static_cast<std::size_t>(r * columns + c)] = x;
    }
  }
  return values;
}

void add_weighted_value(double weight, const double* value, std::int64_t columns, double* out) {
  for (std::int64_t c = 0; c < columns; ++c) out[c] += weight * value[c];
}

// A matrix by its columns. Its products with a vector grow side by side, each as a sum in the order
// of its terms, which is faster than one after another.
class Columns {
 public:
  Columns(const std::vector<double>& by_rows, std::int64_t rows, std::int64_t columns)
      : values_(by_rows.size()), rows_(rows), columns_(columns) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        values_[static_cast<std::size_t>(c * rows + r)] =
            by_rows[static_cast<std::size_t>(r * columns + c)];
  }

  // The dot products of x and the rows of these keys.
  std::vector<double> dots(const double* x, const KeyRange& keys) const {
    const std::int64_t count = keys.end - keys.begin;
    std::vector<double> sums(static_cast<std::size_t>(count), 0.0);
    for (std::int64_t c = 0; c < columns_; ++c)
      add_weighted_value(x[c], values_.data() + c * rows_ + keys.begin, count, sums.data());
    return sums;
  }

 private:
  std::vector<double> values_;
  std::int64_t rows_, columns_;
};

// Calls finish(row, out, lse) for every row, or for the chosen rows of every head. `out` points to
// head_dim_v zeros and `lse` to -infinity. `finish` is not called for a row that has neither keys
// nor a sink.
template <class Finish>
Status for_each_row(const Arguments& a, const Options& options,
                    const std::vector<std::int64_t>* chosen, double* out, double* lse,
                    const Finish& finish) {
  const Result<Problem> run_problem = problem_of(a, options);
  if (!run_problem.ok()) return run_problem.status();
  if (out == nullptr) return invalid("out", "null", "an array of doubles");
  OCTAVO_RETURN_IF_ERROR(validate_lengths(a));
  const Problem& p = *run_problem;
  const double scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(p.head_dim));
  if (chosen != nullptr && (is_varlen(a) || is_padded(a) || is_paged(a)))
    return invalid("rows", "a subset in a varlen or padded batch or of a paged cache", "all rows");
  const std::int64_t rows_of_head =
      chosen == nullptr ? a.q.shape[2] : static_cast<std::int64_t>(chosen->size());
  const std::int64_t all_rows = a.q.shape[0] * p.heads_q * rows_of_head;
  std::fill(out, out + all_rows * p.head_dim_v, 0.0);
  if (lse != nullptr) std::fill(lse, lse + all_rows, -kDoubleInfinity);

  Row row;
  row.head_dim_v = p.head_dim_v;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence at = sequence(a, b);
    for (std::int64_t head = 0; head < p.heads_q; ++head) {
      const std::int64_t head_kv = head / (p.heads_q / p.heads_kv);
      const HeadOfSequence of_q{b, at.batch, at.q_begin, head, {}};
      const HeadOfSequence of_kv{b, at.batch, at.kv_begin, head_kv, PageTable(a)};
      const auto q = load_rows(a, a.q, a.q_scales, p.seqlen_q, of_q, at.seqlen_q);
      const Columns k(load_rows(a, a.k, a.k_scales, p.seqlen_kv, of_kv, at.seqlen_kv, VLayout::rows,
                                a.k_groups),
                      at.seqlen_kv, p.head_dim);
      const auto v = load_rows(a, v_by_rows(a), a.v_scales, p.seqlen_kv, of_kv, at.seqlen_kv,
                               a.v_layout, a.v_groups);
      const std::int64_t count = chosen == nullptr ? at.seqlen_q : rows_of_head;
      for (std::int64_t n = 0; n < count; ++n) {
        const std::int64_t i = chosen == nullptr ? n : (*chosen)[static_cast<std::size_t>(n)];
        const KeyRange keys = visible_keys(options, i, at.seqlen_q, at.seqlen_kv);
        if (keys.begin == keys.end && a.sinks == nullptr) continue;
        const RowModifiers modifiers(a, options, at, b, head, i);
        if (a.sinks != nullptr) row.sink = a.sinks[head];
        row.scores = k.dots(q.data() + i * p.head_dim, keys);
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          double& score = row.scores[static_cast<std::size_t>(j - keys.begin)];
          score = modifiers.apply(scale * score, j);
        }
        row.values = v.data() + keys.begin * p.head_dim_v;
        row.first_key = keys.begin;
        const std::int64_t place = (at.batch * p.heads_q + head) * rows_of_head + at.q_begin + n;
        finish(row, out + place * p.head_dim_v, lse == nullptr ? nullptr : lse + place);
      }
    }
  }
  return {};
}

// A hidden key has the score -infinity. Its V is ignored, even if it is not finite.
bool is_hidden(double score) { return score == -kDoubleInfinity; }

struct Softmax {
  std::vector<double> p;  // normalised
  double lse = 0;
};

// Without a visible key and without a sink, p is 0 and lse -infinity.
Softmax softmax(const std::vector<double>& scores, double sink = -kDoubleInfinity) {
  double largest = sink;
  for (const double s : scores) largest = std::max(largest, s);
  Softmax result{std::vector<double>(scores.size()), -kDoubleInfinity};
  if (is_hidden(sink) && std::all_of(scores.begin(), scores.end(), is_hidden)) return result;
  double sum = std::exp(sink - largest);
  for (std::size_t j = 0; j < scores.size(); ++j)
    sum += result.p[j] = std::exp(scores[j] - largest);
  for (double& p : result.p) p /= sum;
  result.lse = largest + std::log(sum);
  return result;
}

double rounded(DType dtype, double x) {
  if (is_8bit(dtype)) return decode_8bit(dtype, encode_8bit(dtype, static_cast<float>(x)));
  if (dtype == DType::f16) return f32_from_f16(f16_from_f32(static_cast<float>(x)));
  if (dtype == DType::bf16) return f32_from_bf16(bf16_from_f32(static_cast<float>(x)));
  return static_cast<float>(x);
}

}  // namespace

namespace {

void finish_exact(const Row& row, double* o, double* l) {
  const Softmax s = softmax(row.scores, row.sink);
  for (std::size_t j = 0; j < s.p.size(); ++j)
    if (!is_hidden(row.scores[j]))
      add_weighted_value(s.p[j], row.values + j * row.head_dim_v, row.head_dim_v, o);
  if (l != nullptr) *l = s.lse;
}

}  // namespace

Status reference(const Arguments& arguments, const Options& options, double* out, double* lse) {
  return without_exceptions([&]() -> Status {
    return for_each_row(arguments, options, nullptr, out, lse, finish_exact);
  });
}

Status reference_of_rows(const Arguments& arguments, const Options& options,
                         const std::vector<std::int64_t>& rows, double* out, double* lse) {
  return for_each_row(arguments, options, &rows, out, lse, finish_exact);
}

namespace {

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

// The gradients of one query head of one sequence in fp64. dk and dv belong to its KV head; this
// head adds to them.
struct HeadGradients {
  const double *q, *k, *v, *dout;
  const Columns &k_columns, &v_columns;
  double *dq, *dk, *dv;
  std::int64_t head_dim;
  double scale;
  double sink;    // -infinity: none
  double* dsink;  // null: not wanted

  // add_dbias(key, ds) receives the gradients of the modified scores.
  template <class AddDbias>
  void add_row(std::int64_t i, const KeyRange& keys, const RowModifiers& modifiers,
               const AddDbias& add_dbias) const {
    std::vector<double> raw = k_columns.dots(q + i * head_dim, keys), scores;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      double& x = raw[static_cast<std::size_t>(j - keys.begin)];
      x *= scale;
      scores.push_back(modifiers.apply(x, j));
    }
    const Softmax s = softmax(scores, sink);
    std::vector<double> out(static_cast<std::size_t>(head_dim), 0.0);
    for (std::size_t n = 0; n < s.p.size(); ++n)
      if (!is_hidden(scores[n]))
        add_weighted_value(s.p[n], v + (keys.begin + static_cast<std::int64_t>(n)) * head_dim,
                           head_dim, out.data());
    const double* dout_row = dout + i * head_dim;
    if (s.lse == -kDoubleInfinity) return;
    const std::vector<double> dp = v_columns.dots(dout_row, keys);
    const double delta = dot(dout_row, out.data(), head_dim);
    if (dsink != nullptr) *dsink -= std::exp(sink - s.lse) * delta;
    for (std::size_t n = 0; n < s.p.size(); ++n) {
      if (is_hidden(scores[n])) continue;
      const std::int64_t key = keys.begin + static_cast<std::int64_t>(n), at = key * head_dim;
      const double ds = s.p[n] * (dp[n] - delta);
      const double dx = ds * modifiers.derivative(raw[n]);
      add_dbias(key, ds);
      add_weighted_value(scale * dx, k + at, head_dim, dq + i * head_dim);
      add_weighted_value(scale * dx, q + i * head_dim, head_dim, dk + at);
      add_weighted_value(s.p[n], dout_row, head_dim, dv + at);
    }
  }
};

// The index of an element in a contiguous array of a shape that broadcasts to (B, Hq, Sq, Skv).
std::int64_t broadcast_index(const std::array<std::int64_t, 4>& shape,
                             const std::array<std::int64_t, 4>& at) {
  std::int64_t index = 0;
  for (std::size_t i = 0; i < 4; ++i) index = index * shape[i] + (shape[i] == 1 ? 0 : at[i]);
  return index;
}

// Zeroes the gradients that are wanted.
void clear(const BackwardArguments& a, const ReferenceGradients& g) {
  const auto zero = [](double* to, const std::array<std::int64_t, 4>& shape) {
    if (to != nullptr) std::fill_n(to, shape[0] * shape[1] * shape[2] * shape[3], 0.0);
  };
  zero(g.dq, a.q.shape);
  zero(g.dk, a.k.shape);
  zero(g.dv, a.k.shape);
  zero(g.dbias, a.bias.shape);
  zero(g.dsinks, {1, 1, 1, a.q.shape[1]});
}

}  // namespace

Status reference_backward(const BackwardArguments& arguments, const Options& options,
                          const ReferenceGradients& to) {
  return without_exceptions([&]() -> Status {
    const Result<Problem> run_problem = problem_of(arguments, options);
    if (!run_problem.ok()) return run_problem.status();
    const Problem& p = *run_problem;
    const Arguments a = forward_arguments(arguments);
    OCTAVO_RETURN_IF_ERROR(validate_lengths(a));
    const double scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(p.head_dim));
    clear(arguments, to);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence at = sequence(a, b);
      for (std::int64_t head = 0; head < p.heads_q; ++head) {
        const std::int64_t head_kv = head / (p.heads_q / p.heads_kv);
        const HeadOfSequence of_q{b, at.batch, at.q_begin, head, {}};
        const HeadOfSequence of_kv{b, at.batch, at.kv_begin, head_kv, {}};
        const auto q = load_rows(a, a.q, {}, p.seqlen_q, of_q, at.seqlen_q);
        const auto k = load_rows(a, a.k, {}, p.seqlen_kv, of_kv, at.seqlen_kv);
        const auto v = load_rows(a, a.v, {}, p.seqlen_kv, of_kv, at.seqlen_kv);
        const auto dout = load_rows(a, arguments.dout, {}, p.seqlen_q, of_q, at.seqlen_q);
        const std::int64_t row_q = (at.batch * p.heads_q + head) * a.q.shape[2] + at.q_begin;
        const std::int64_t row_kv = (at.batch * p.heads_kv + head_kv) * a.k.shape[2] + at.kv_begin;
        const Columns k_columns(k, at.seqlen_kv, p.head_dim),
            v_columns(v, at.seqlen_kv, p.head_dim);
        const HeadGradients gradients{q.data(),
                                      k.data(),
                                      v.data(),
                                      dout.data(),
                                      k_columns,
                                      v_columns,
                                      to.dq + row_q * p.head_dim,
                                      to.dk + row_kv * p.head_dim,
                                      to.dv + row_kv * p.head_dim,
                                      p.head_dim,
                                      scale,
                                      a.sinks == nullptr ? -kDoubleInfinity : a.sinks[head],
                                      to.dsinks == nullptr ? nullptr : to.dsinks + head};
        for (std::int64_t i = 0; i < at.seqlen_q; ++i)
          gradients.add_row(
              i, visible_keys(options, i, at.seqlen_q, at.seqlen_kv),
              RowModifiers(a, options, at, b, head, i), [&](std::int64_t key, double ds) {
                if (to.dbias == nullptr) return;
                to.dbias[broadcast_index(
                    a.bias.shape, {at.batch, head, at.q_begin + i, at.kv_begin + key})] += ds;
              });
      }
    }
    return {};
  });
}

Status reference_16bit(const Arguments& arguments, const Options& options, DType dtype, double* out,
                       const std::vector<std::int64_t>* rows) {
  return for_each_row(arguments, options, rows, out, nullptr,
                      [dtype](const Row& row, double* o, double*) {
                        const Softmax s = softmax(row.scores, row.sink);
                        for (std::size_t j = 0; j < s.p.size(); ++j)
                          if (!is_hidden(row.scores[j]))
                            add_weighted_value(rounded(dtype, s.p[j]),
                                               row.values + j * row.head_dim_v, row.head_dim_v, o);
                        for (std::int64_t c = 0; c < row.head_dim_v; ++c)
                          o[c] = rounded(dtype, o[c]);
                      });
}

namespace {

// Online softmax over blocks of keys, which start at multiples of the block size with any mask.
// The exponentials are relative to `reference_max`, which rises only when a block's maximum exceeds
// it by the threshold.
void finish_tiled(const Row& row, const TiledRounding& t, double* o) {
  const auto count = static_cast<std::int64_t>(row.scores.size());
  const std::int64_t first_block = row.first_key / t.block_keys;
  const std::int64_t last_block = (row.first_key + count - 1) / t.block_keys;
  double reference_max = row.sink;
  double sum = row.sink == -kDoubleInfinity ? 0 : 1;
  for (std::int64_t n = 0; n <= last_block - first_block; ++n) {
    const std::int64_t block = t.backwards ? last_block - n : first_block + n;
    const std::int64_t begin = std::max<std::int64_t>(block * t.block_keys - row.first_key, 0);
    const std::int64_t end = std::min((block + 1) * t.block_keys - row.first_key, count);
    double block_max = -kDoubleInfinity;
    for (std::int64_t j = begin; j < end; ++j)
      block_max = std::max(block_max, row.scores[static_cast<std::size_t>(j)]);
    if (block_max == -kDoubleInfinity) continue;  // the mask hides the whole block
    const double threshold = t.rescale_threshold_log2 * std::log(2.0);
    if (block_max > reference_max + threshold || reference_max == -kDoubleInfinity) {
      const double alpha = std::exp(reference_max - block_max);
      for (std::int64_t c = 0; c < row.head_dim_v; ++c) o[c] *= alpha;
      sum *= alpha;
      reference_max = block_max;
    }
    const double block_scale =
        t.p_scaled_by_block ? t.p_scale / std::exp(block_max - reference_max) : t.p_scale;
    for (std::int64_t j = begin; j < end; ++j) {
      const double score = row.scores[static_cast<std::size_t>(j)];
      if (is_hidden(score)) continue;
      const double p = std::exp(score - reference_max);
      sum += p;
      const double weight = t.p_format ? rounded(*t.p_format, p * block_scale) / block_scale : p;
      add_weighted_value(weight, row.values + j * row.head_dim_v, row.head_dim_v, o);
    }
  }
  if (sum == 0) return;
  for (std::int64_t c = 0; c < row.head_dim_v; ++c) o[c] /= sum;
}

}  // namespace

Status reference_tiled(const Arguments& arguments, const Options& options,
                       const TiledRounding& rounding, double* out) {
  if (rounding.block_keys < 1)
    return invalid("block_keys", fmt::format("{}", rounding.block_keys), "1 or more");
  return for_each_row(
      arguments, options, nullptr, out, nullptr,
      [&rounding](const Row& row, double* o, double*) { finish_tiled(row, rounding, o); });
}

}  // namespace octavo
