// SPDX-License-Identifier: Apache-2.0
// The memory layout and the values of a case.
#include "evidence/cases/inputs.h"

#include <algorithm>
#include <cmath>

#include "attention/mask.h"
#include "base/error.h"
#include "evidence/cases/block_mask_cases.h"
#include "evidence/cases/paged_inputs.h"
#include "gpu/forward/sm80_forward.h"
#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "numeric/random.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

// The value of unused places in a scale array. Not NaN: the API refuses such scales anywhere.
constexpr float kUnusedScale = 1e6F;

// Random streams for the sequence lengths of a varlen batch.
constexpr std::uint64_t kQuerySpans = 1001, kKeySpans = 1002;
// Random streams of the modifiers: of their kinds, and of their values.
constexpr std::uint64_t kKinds = 1003, kBiasValues = 1004, kMaskValues = 1005, kHeadValues = 1006;
constexpr std::uint64_t kDraftBits = 1012;
constexpr std::int64_t kTokensBeforeQueries = 2, kTokensBeforeKeys = 1;
constexpr std::int64_t kTokensOverMaximum = 3;  // of a sequence that is cut

std::array<std::int64_t, 4> strides_of(Layout layout, const std::array<std::int64_t, 4>& n) {
  switch (layout) {
    case Layout::bhsd:
      return Tensor::bhsd(nullptr, DType::f32, n[0], n[1], n[2], n[3]).stride;
    case Layout::bshd:
    case Layout::varlen:
      return Tensor::bshd(nullptr, DType::f32, n[0], n[1], n[2], n[3]).stride;
    case Layout::gaps:
    case Layout::aligned_gaps:
      break;
  }
  // Rows three elements apart (no vector load is aligned) or 16 (every one is), two rows between
  // heads, one head between batch entries.
  const std::int64_t row = n[3] + (layout == Layout::gaps ? 3 : 16);
  const std::int64_t head = (n[2] + 2) * row;
  return {(n[1] + 1) * head, head, row, 1};
}

// Rows of a padded batch: padding on the right, on the left, or on both sides, as the case has it.
enum class Padding : std::uint8_t { right, left, both };
Padding padding_of(const Case& c) {
  return static_cast<Padding>(random_below(c.seed, kKinds, 0, 3));
}
std::vector<Span> padded_spans(const Case& c, std::int64_t rows, std::uint64_t stream) {
  std::vector<Span> spans;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto draw = [&](std::int64_t n, std::int64_t most) {
      return static_cast<std::int64_t>(random_below(c.seed, stream,
                                                    static_cast<std::uint64_t>(2 * b + n),
                                                    static_cast<std::uint64_t>(most) + 1));
    };
    // A quarter of the rows is padding on average, and one batch entry in eight has nothing else.
    const bool empty = draw(0, 7) == 0;
    std::int64_t padding = empty ? rows : draw(1, rows / 2);
    std::int64_t left = padding_of(c) == Padding::left ? padding : 0;
    if (padding_of(c) == Padding::both) left = padding / 3;
    spans.push_back({b, left, rows - padding});
  }
  return spans;
}

// Sequence lengths of a varlen batch: the first has the maximum, the others any length down to
// zero.
std::vector<Span> make_spans(const Case& c, std::int64_t max_len, std::uint64_t stream,
                             std::int64_t slack) {
  if (c.padded) return padded_spans(c, max_len, stream);
  std::vector<Span> spans;
  if (c.layout != Layout::varlen) {
    for (std::int64_t b = 0; b < c.batch; ++b) spans.push_back({b, 0, max_len});
    return spans;
  }
  const bool hostile = c.seqlens != Seqlens::plain;
  std::int64_t begin = hostile ? 0 : slack;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto shorter = static_cast<std::int64_t>(random_below(
        c.seed, stream, static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(max_len) + 1));
    const std::int64_t of_hostile[kHostileSequences] = {max_len, max_len, 0, 0, max_len / 3 + 1};
    const std::int64_t length = hostile ? of_hostile[b] : b == 0 ? max_len : shorter;
    spans.push_back({0, begin, length});
    begin += length;
    if (hostile && b == 1) begin += kTokensOverMaximum;
  }
  return spans;
}

// Entries that kernels must clamp to the same spans. The first entry is below 0, and the last one
// beyond the tensor. One entry decreases: the third sequence ends before it begins, and the fourth
// begins inside the second, so that both are empty; otherwise the fourth would include tokens of no
// sequence. The second sequence is longer than the maximum.
std::vector<std::int32_t> hostile_entries(std::vector<std::int32_t> cu) {
  cu.front() -= 5;
  cu[3] = cu[1] + 1;
  cu.back() += 1000;
  return cu;
}

std::vector<std::int32_t> cumulative(const std::vector<Span>& spans) {
  std::vector<std::int32_t> cu;
  for (const Span& span : spans) cu.push_back(static_cast<std::int32_t>(span.begin));
  if (!spans.empty())
    cu.push_back(static_cast<std::int32_t>(spans.back().begin + spans.back().length));
  return cu;
}

std::array<std::int64_t, 4> tensor_shape(const Case& c, std::int64_t heads, std::int64_t length,
                                         std::int64_t columns, const std::vector<Span>& spans) {
  if (c.layout != Layout::varlen) return {c.batch, heads, length, columns};
  const std::int64_t tail = c.seqlens == Seqlens::plain ? 3 : 0;  // tokens after the last sequence
  return {1, heads, spans.back().begin + spans.back().length + tail, columns};
}

// All rows that belong to sequences, as one view: in a varlen batch they are contiguous.
template <class Void>
BasicTensor<Void> live_rows(const BasicTensor<Void>& t, const std::vector<Span>& spans,
                            Layout layout) {
  if (layout != Layout::varlen) return t;
  const std::int64_t begin = spans.front().begin;
  return rows_of(t, begin, spans.back().begin + spans.back().length - begin);
}

// Fills the tokens before the first sequence with large finite values, which a maximum that
// includes them would pick up. (It would skip NaN, which follows the last sequence.)
void fill_first_tokens(const Tensor& t, std::int64_t tokens) {
  constexpr float kLarge = 30000;
  for (std::int64_t h = 0; h < t.shape[1]; ++h)
    for (std::int64_t s = 0; s < tokens; ++s)
      for (std::int64_t d = 0; d < t.shape[3]; ++d)
        store_element(t.dtype, t.data, h * t.stride[1] + s * t.stride[2] + d, kLarge);
}

// Makes one channel ten times as large, which is hard for 8-bit scales and occurs in trained
// models.
void add_outliers(const Tensor& t, std::int64_t channel) {
  constexpr float kOutlier = 10;
  for (std::int64_t b = 0; b < t.shape[0]; ++b)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < t.shape[2]; ++s) {
        const std::int64_t at = b * t.stride[0] + h * t.stride[1] + s * t.stride[2] + channel;
        store_element(t.dtype, t.data, at, kOutlier * load_element(t.dtype, t.data, at));
      }
}

// Shapes Q and K for InputValues::low_tail: makes them positive, and keys after the first 64 so
// much smaller that with the usual scale their scores are 3, 5 or 7 log2 units lower, by the seed.
void lower_tail(const Case& c, const Tensor& t, const std::vector<Span>& spans,
                std::uint64_t stream) {
  constexpr std::int64_t kHighKeys = 64;
  constexpr float kMeanProduct = 0.6366f, kLn2 = 0.6931f;  // of the magnitudes of two normal values
  const auto lower_log2 = static_cast<float>(3 + 2 * (c.seed % 3));
  const float factor =
      1 - lower_log2 * kLn2 / (kMeanProduct * std::sqrt(static_cast<float>(c.head_dim)));
  for (const Span& span : spans)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < span.length; ++s)
        for (std::int64_t d = 0; d < t.shape[3]; ++d) {
          const std::int64_t at =
              span.batch * t.stride[0] + h * t.stride[1] + (span.begin + s) * t.stride[2] + d;
          const float x = std::abs(load_element(t.dtype, t.data, at));
          store_element(t.dtype, t.data, at, stream == 1 && s >= kHighKeys ? x * factor : x);
        }
}

// Changes the values of Q (stream 0), K (1) or V (2) as c.values says. With equal_keys all rows of
// a sequence become its first row.
void shape_values(const Case& c, const Tensor& t, const std::vector<Span>& spans,
                  std::uint64_t stream) {
  if (c.values == InputValues::low_tail) {
    if (stream < 2) lower_tail(c, t, spans, stream);
    return;
  }
  if (c.values == InputValues::normal || stream == 0) return;
  if (c.values == InputValues::positive && stream != 2) return;
  for (const Span& span : spans)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = span.begin; s < span.begin + span.length; ++s)
        for (std::int64_t d = 0; d < t.shape[3]; ++d) {
          const std::int64_t head = span.batch * t.stride[0] + h * t.stride[1] + d;
          const std::int64_t at = head + s * t.stride[2];
          const float x = c.values == InputValues::positive
                              ? std::abs(load_element(t.dtype, t.data, at))
                              : load_element(t.dtype, t.data, head + span.begin * t.stride[2]);
          store_element(t.dtype, t.data, at, x);
        }
}

// Fills the rows of padding with NaN.
void poison_padding(TensorMemory& memory, const std::vector<Span>& spans) {
  const Tensor& t = memory.view;
  for (const Span& span : spans)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = 0; s < t.shape[2]; ++s) {
        if (s >= span.begin && s < span.begin + span.length) continue;
        const std::int64_t at = span.batch * t.stride[0] + h * t.stride[1] + s * t.stride[2];
        std::fill_n(static_cast<std::byte*>(t.data) + at * static_cast<int>(size_bytes(t.dtype)),
                    t.shape[3] * static_cast<int>(size_bytes(t.dtype)), kPoison);
      }
}

// Lays out the scales of one operand and allocates them.
void lay_out_scales(QuantizedOperand& operand, const QuantizeOptions& options, Layout layout,
                    std::int64_t sequences, std::int64_t max_len) {
  const std::array<std::int64_t, 4>& shape = operand.values.view.shape;
  operand.view.granularity = options.granularity;
  operand.view.block_rows = options.block_rows;
  const bool by_token = layout == Layout::varlen && options.granularity == Granularity::row;
  const std::array<std::int64_t, 4> counted = {by_token ? 1 : sequences, shape[1],
                                               by_token ? shape[2] : max_len, shape[3]};
  const std::array<std::int64_t, 4> one = {1, 1, counted[2], counted[3]};
  const std::int64_t hole = layout == Layout::gaps ? 1 : 0;
  const std::int64_t per_head = scale_count(one, options.granularity, options.block_rows) + hole;
  operand.scales.assign(static_cast<std::size_t>(counted[0] * counted[1] * per_head + 1),
                        kUnusedScale);
  if (options.granularity != Granularity::tensor && layout != Layout::bhsd)
    operand.view.stride = std::array{counted[1] * per_head, per_head, std::int64_t{1}};
  operand.view.data = operand.scales.data();
}

// Copies contiguous scales of a part, (parts, heads, n), to their places in the view.
void place_scales(QuantizedOperand& operand, const std::vector<float>& scales, std::int64_t parts,
                  std::int64_t first_part, std::int64_t first_index) {
  if (operand.view.granularity == Granularity::tensor) {
    operand.scales[0] = scales[0];
    return;
  }
  const std::int64_t heads = operand.values.view.shape[1];
  const std::int64_t n =
      static_cast<std::int64_t>(scales.size()) / std::max<std::int64_t>(parts * heads, 1);
  const auto stride = operand.view.stride.value_or(std::array{heads * n, n, std::int64_t{1}});
  for (std::int64_t p = 0; p < parts; ++p)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < n; ++i)
        operand.scales[static_cast<std::size_t>((first_part + p) * stride[0] + h * stride[1] +
                                                (first_index + i) * stride[2])] =
            scales[static_cast<std::size_t>((p * heads + h) * n + i)];
}

Status quantize_part(QuantizedOperand& operand, const ConstTensor& x, const Tensor& quantized,
                     const QuantizeOptions& options, float max_quantized, std::int64_t first_part,
                     std::int64_t first_index) {
  std::vector<float> scales(
      static_cast<std::size_t>(scale_count(x.shape, options.granularity, options.block_rows)));
  std::vector<float> mean(
      options.smooth ? static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[3]) : 0);
  OCTAVO_RETURN_IF_ERROR(quantize_to(max_quantized, x, options, quantized, scales.data(),
                                     options.smooth ? mean.data() : nullptr));
  place_scales(operand, scales, x.shape[0], first_part, first_index);
  operand.mean.insert(operand.mean.end(), mean.begin(), mean.end());
  return {};
}

}  // namespace

TensorMemory make_memory(Layout layout, DType dtype, const std::array<std::int64_t, 4>& shape) {
  TensorMemory memory;
  const std::array<std::int64_t, 4> stride = strides_of(layout, shape);
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < 4; ++i) elements += std::max<std::int64_t>(shape[i], 1) * stride[i];
  memory.bytes.assign(static_cast<std::size_t>(elements) * size_bytes(dtype) + 2 * kGuardBytes,
                      kPoison);
  memory.view = {memory.bytes.data() + kGuardBytes, dtype, shape, stride};
  return memory;
}

Result<QuantizedOperand> quantize_operand(const ConstTensor& x, DType format, float max_quantized,
                                          const QuantizeOptions& options, Layout layout,
                                          const std::vector<Span>& sequences,
                                          std::int64_t max_len) {
  QuantizedOperand operand;
  operand.values = make_memory(layout, format, x.shape);
  lay_out_scales(operand, options, layout, static_cast<std::int64_t>(sequences.size()), max_len);
  const Tensor quantized = operand.values.view;
  const bool whole = layout != Layout::varlen || options.granularity == Granularity::tensor;
  if (whole) {
    OCTAVO_RETURN_IF_ERROR(quantize_part(operand, live_rows(x, sequences, layout),
                                         live_rows(quantized, sequences, layout), options,
                                         max_quantized, 0, 0));
    return operand;
  }
  const bool by_token = options.granularity == Granularity::row;
  for (std::size_t b = 0; b < sequences.size(); ++b) {
    const Span& span = sequences[b];
    OCTAVO_RETURN_IF_ERROR(quantize_part(operand, rows_of(x, span.begin, span.length),
                                         rows_of(quantized, span.begin, span.length), options,
                                         max_quantized, by_token ? 0 : static_cast<std::int64_t>(b),
                                         by_token ? span.begin : 0));
  }
  return operand;
}

namespace {

constexpr std::uint64_t kStreamOfV = 2;  // of random values; Q's is 0 and K's 1

Status make_operand(const Case& c, DType given, std::int64_t heads, std::int64_t length,
                    const std::vector<Span>& spans, Granularity granularity, std::uint64_t stream,
                    Inputs::Operand& operand) {
  const std::int64_t columns = stream == kStreamOfV ? c.v_columns() : c.head_dim;
  const DType wide = is_8bit(given) || given == DType::int4 ? DType::f32 : given;
  operand.wide = make_memory(c.layout, wide, tensor_shape(c, heads, length, columns, spans));
  const Tensor live = live_rows(operand.wide.view, spans, c.layout);
  if (c.layout == Layout::varlen) fill_first_tokens(operand.wide.view, spans.front().begin);
  OCTAVO_RETURN_IF_ERROR(random_normal(live, c.seed, stream));
  shape_values(c, operand.wide.view, spans, stream);
  if (c.outliers) add_outliers(live, static_cast<std::int64_t>(c.seed) % columns);
  const bool is_paged = c.page_size > 0 && stream != 0;
  if (is_paged) share_prefix(c, operand.wide.view, spans);
  if (c.padded || is_paged) poison_padding(operand.wide, spans);
  if (!is_8bit(given) || is_paged) return {};
  QuantizeOptions options;
  options.granularity = granularity;
  options.block_rows = c.options.quantization.block_rows;
  auto quantized =
      quantize_operand(operand.wide.view, given, largest(given), options, c.layout, spans, length);
  if (!quantized.ok()) return quantized.status();
  operand.quantized = std::move(quantized).value();
  return {};
}

// The shape of a bias or mask. The bits of `kind` say which dimensions are 1; the others are those
// of the scores.
std::array<std::int64_t, 4> score_shape(const Case& c, std::uint64_t kind) {
  std::array<std::int64_t, 4> shape = {c.batch, c.heads_q, c.seqlen_q, c.seqlen_kv};
  for (std::size_t i = 0; i < 4; ++i)
    if ((kind >> i & 1) != 0) shape[i] = 1;
  return shape;
}

std::int64_t place_in(const ConstTensor& t, const std::array<std::int64_t, 4>& index) {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < 4; ++i) at += t.shape[i] == 1 ? 0 : index[i] * t.stride[i];
  return at;
}

// Calls visit(index) for each score of a visible interval of keys, as rows and columns of tensors.
template <class Visit>
void for_each_score(const Case& c, const Inputs& in, const Visit& visit) {
  for (std::size_t b = 0; b < in.spans_q.size(); ++b) {
    const Span &q = in.spans_q[b], &kv = in.spans_kv[b];
    for (std::int64_t h = 0; h < c.heads_q; ++h)
      for (std::int64_t i = 0; i < q.length; ++i) {
        const KeyRange keys = visible_keys(c.options, i, q.length, kv.length);
        for (std::int64_t j = keys.begin; j < keys.end; ++j)
          visit(std::array{q.batch, h, q.begin + i, kv.begin + j});
      }
  }
}

// Half of the keys are visible: by chance, or by blocks of 64, whole tiles of which are hidden. One
// row in seven sees nothing.
void make_mask(const Case& c, Inputs& in) {
  constexpr std::int64_t kBlock = 64, kDeadRow = 3, kRows = 7;
  const std::uint64_t kind = random_below(c.seed, kKinds, 1, 32);
  const bool by_blocks = (kind & 16) != 0;
  in.mask = make_memory(c.layout, DType::boolean, score_shape(c, kind));
  const Tensor& t = in.mask.view;
  auto* const bytes = static_cast<std::uint8_t*>(t.data);
  const std::array<std::int64_t, 4>& n = t.shape;
  for (std::int64_t row = 0; row < n[0] * n[1] * n[2]; ++row)
    for (std::int64_t j = 0; j < n[3]; ++j) {
      const std::array index = {row / n[2] / n[1], row / n[2] % n[1], row % n[2], j};
      const auto number =
          static_cast<std::uint64_t>(by_blocks ? row / kBlock * n[3] + j / kBlock : row * n[3] + j);
      const bool dead = n[2] > 1 && index[2] % kRows == kDeadRow;
      bytes[place_in(t, index)] = dead || random_below(c.seed, kMaskValues, number, 2) == 0 ? 0 : 1;
    }
}

// Elements of keys that their row does not see remain NaN. Every other bias hides one key in eight.
void make_bias(const Case& c, Inputs& in) {
  const std::uint64_t kind = random_below(c.seed, kKinds, 2, 32);
  const bool hides = (kind & 16) != 0;
  in.bias = make_memory(c.layout, *c.bias, score_shape(c, kind));
  const Tensor& t = in.bias.view;
  for_each_score(c, in, [&](const std::array<std::int64_t, 4>& index) {
    const Tensor& m = in.mask.view;
    if (c.mask && static_cast<const std::uint8_t*>(m.data)[place_in(m, index)] == 0) return;
    const std::int64_t at = place_in(t, index);
    const auto number = static_cast<std::uint64_t>(at);
    const bool hidden = hides && random_below(c.seed, kBiasValues + 1000, number, 8) == 0;
    store_element(t.dtype, t.data, at,
                  hidden ? -HUGE_VALF : random_normal_value(c.seed, kBiasValues, number));
  });
}

// Every query sees itself and, at random, other queries; one query in five sees none. in.mask hides
// the same keys, for the oracles.
void make_draft_tree(const Case& c, Inputs& in) {
  in.draft_tree.assign(static_cast<std::size_t>(c.batch * c.seqlen_q), 0);
  in.mask = make_memory(Layout::bhsd, DType::boolean, {c.batch, 1, c.seqlen_q, c.seqlen_kv});
  auto* const seen = static_cast<std::uint8_t*>(in.mask.view.data);
  std::fill_n(seen, c.batch * c.seqlen_q * c.seqlen_kv, std::uint8_t{1});
  for (std::size_t b = 0; b < in.spans_q.size(); ++b) {
    const Span &q = in.spans_q[b], &kv = in.spans_kv[b];
    for (std::int64_t i = 0; i < q.length; ++i) {
      const std::int64_t row = q.batch * c.seqlen_q + q.begin + i;
      const auto drawn = static_cast<std::uint32_t>(
          random_below(c.seed, kDraftBits, static_cast<std::uint64_t>(row), 1ULL << 32));
      const std::uint32_t bits = drawn % 5 == 0 ? 0 : drawn | 1u << i;
      in.draft_tree[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(bits);
      for (std::int64_t j = 0; j < q.length; ++j)
        if (const std::int64_t key = kv.length - q.length + j; key >= 0 && (bits >> j & 1) == 0)
          seen[row * c.seqlen_kv + kv.begin + key] = 0;
    }
  }
}

void make_modifiers(const Case& c, Inputs& in) {
  if (c.mask) make_mask(c, in);
  if (c.draft_tree) make_draft_tree(c, in);
  if (c.bias) make_bias(c, in);
  // One set of slopes for all sequences, or one for each.
  const std::int64_t sets = random_below(c.seed, kKinds, 3, 2) == 0 ? 1 : c.batch;
  if (c.alibi)
    for (std::int64_t i = 0; i < sets * c.heads_q; ++i)
      in.slopes.push_back(std::exp2(-1.0F - static_cast<float>(i % 8)));
  if (c.sinks)
    for (std::int64_t h = 0; h < c.heads_q; ++h)
      in.sinks.push_back(2 *
                         random_normal_value(c.seed, kHeadValues, static_cast<std::uint64_t>(h)));
  Arguments& a = in.original;
  if (c.mask || c.draft_tree) a.mask = in.mask.view;
  if (c.bias) a.bias = in.bias.view;
  if (c.alibi) a.alibi_slopes = in.slopes.data();
  if (c.alibi && sets > 1) a.alibi_batch_stride = c.heads_q;
  if (c.sinks) a.sinks = in.sinks.data();
  if (c.block_mask != 0) a.block_mask = make_block_mask(c, in.block_mask);
}

void set_padding(const Case& c, Inputs& in) {
  in.written_q = in.spans_q;
  Arguments& a = in.original;
  if (c.page_size > 0) a.seqlens_kv = in.cache.dense_lengths.data();
  if (!c.padded) return;
  for (Span& span : in.written_q) span = {span.batch, 0, c.seqlen_q};
  for (std::size_t b = 0; b < in.spans_q.size(); ++b) {
    in.leftpad_q.push_back(static_cast<std::int32_t>(in.spans_q[b].begin));
    in.leftpad_kv.push_back(static_cast<std::int32_t>(in.spans_kv[b].begin));
    in.seqlens_q.push_back(static_cast<std::int32_t>(in.spans_q[b].length));
    in.seqlens_kv.push_back(static_cast<std::int32_t>(in.spans_kv[b].length));
  }
  // Arrays that would change nothing are left out.
  const bool pads_keys = c.page_size == 0;
  if (padding_of(c) != Padding::left) {
    a.seqlens_q = in.seqlens_q.data();
    if (pads_keys) a.seqlens_kv = in.seqlens_kv.data();
  }
  if (padding_of(c) != Padding::right) {
    a.leftpad_q = in.leftpad_q.data();
    if (pads_keys) a.leftpad_kv = in.leftpad_kv.data();
  }
}

// An average of V is at most V's largest magnitude, which becomes the largest quantized value, or
// one smaller by the ratio between heads.
std::vector<float> make_out_scales(const Case& c, const Inputs& in) {
  if (!is_8bit(c.out)) return {};
  constexpr float kHeadsDiffer = 0.125;
  const Tensor& v = in.v.wide.view;
  float amax = 0;
  for (const Span& span : in.spans_kv)
    for (std::int64_t h = 0; h < c.heads_kv; ++h)
      for (std::int64_t s = span.begin; s < span.begin + span.length; ++s)
        for (std::int64_t d = 0; d < c.v_columns(); ++d)
          amax = std::max(amax, std::abs(load_element(v.dtype, v.data,
                                                      span.batch * v.stride[0] + h * v.stride[1] +
                                                          s * v.stride[2] + d)));
  std::vector<float> scales(static_cast<std::size_t>(c.batch * c.heads_q));
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] =
        std::max(amax, 1.0f) / largest(c.out) * (1 + kHeadsDiffer * static_cast<float>(i % 7));
  return scales;
}

void set_arguments(const Case& c, Inputs& in) {
  Arguments& a = in.original;
  a.q = in.q.wide.view;
  a.k = in.k.wide.view;
  a.v = in.v.wide.view;
  a.out = in.out.view;
  if (c.lse) a.lse = in.lse.view;
  if (is_8bit(c.out)) {
    a.out_scales.data = in.out_scales.data();
    a.out_scales.granularity = Granularity::head;
  }
  if (c.amax) a.out_amax = static_cast<float*>(in.amax.view.data);
  a.scale = c.scale;
  if (c.layout == Layout::varlen) {
    a.cu_seqlens_q = in.cu_q.data();
    a.cu_seqlens_kv = in.cu_kv.data();
    a.sequences = c.batch;
    a.max_seqlen_q = c.seqlen_q;
    a.max_seqlen_kv = c.seqlen_kv;
  }
  set_padding(c, in);
  make_modifiers(c, in);
  in.given = a;
  in.given.q = in.q.given();
  in.given.k = in.k.given();
  in.given.v = in.v.given();
  if (c.seqlens == Seqlens::hostile && c.layout == Layout::varlen) {
    in.hostile_cu_q = hostile_entries(in.cu_q);
    in.hostile_cu_kv = hostile_entries(in.cu_kv);
    in.given.cu_seqlens_q = in.hostile_cu_q.data();
    in.given.cu_seqlens_kv = in.hostile_cu_kv.data();
  }
  if (in.q.quantized) in.given.q_scales = in.q.quantized->view;
  if (in.k.quantized) in.given.k_scales = in.k.quantized->view;
  if (in.v.quantized) in.given.v_scales = in.v.quantized->view;
  in.dense = in.given;
  if (c.page_size > 0) {
    in.dense = with_cached_values(in, in.given);
    in.given = with_cache(c, in, in.given);
  }
  if (!c.draft_tree) return;
  in.given.mask = {};
  in.given.draft_tree = in.draft_tree.data();
}

}  // namespace

Result<Inputs> make_inputs(const Case& c) {
  Inputs in;
  in.spans_q = make_spans(c, c.seqlen_q, kQuerySpans, kTokensBeforeQueries);
  in.spans_kv = make_spans(c, c.seqlen_kv, kKeySpans, kTokensBeforeKeys);
  if (c.page_size > 0) in.spans_kv = cache_spans(c);
  in.cu_q = cumulative(in.spans_q);
  in.cu_kv = cumulative(in.spans_kv);
  OCTAVO_RETURN_IF_ERROR(
      make_operand(c, c.input, c.heads_q, c.seqlen_q, in.spans_q, c.qk_scales, 0, in.q));
  OCTAVO_RETURN_IF_ERROR(
      make_operand(c, c.k_type(), c.heads_kv, c.seqlen_kv, in.spans_kv, c.qk_scales, 1, in.k));
  OCTAVO_RETURN_IF_ERROR(make_operand(c, c.v_type(), c.heads_kv, c.seqlen_kv, in.spans_kv,
                                      c.v_scales, kStreamOfV, in.v));
  if (c.page_size > 0) OCTAVO_RETURN_IF_ERROR(make_cache(c, in));
  std::array<std::int64_t, 4> shape = in.q.wide.view.shape;
  shape[3] = c.v_columns();
  in.out = make_memory(c.layout, c.out, shape);
  shape[3] = 1;
  in.lse = make_memory(c.layout, DType::f32, shape);
  const bool of_heads = is_8bit(c.out);
  in.amax = make_memory(Layout::bhsd, DType::f32,
                        {of_heads ? c.batch : 1, of_heads ? c.heads_q : 1, 1, 1});
  in.out_scales = make_out_scales(c, in);
  set_arguments(c, in);
  return in;
}

CaseProblem problem_for(const Case& c) {
  CaseProblem run_problem;
  Problem& p = run_problem.problem;
  p.batch = c.batch;
  p.heads_q = c.heads_q;
  p.heads_kv = c.heads_kv;
  p.seqlen_q = c.seqlen_q;
  p.seqlen_kv = c.seqlen_kv;
  p.head_dim = c.head_dim;
  p.head_dim_v = c.v_columns();
  p.q = c.input;
  p.k = c.k_type();
  p.v = c.v_type();
  p.out = c.out;
  if (is_8bit(p.q)) p.q_scales = c.qk_scales;
  if (is_8bit(p.k)) {
    p.k_scales = c.qk_scales;
    if (c.qk_scales == Granularity::block) p.k_block_rows = c.options.quantization.block_rows;
  }
  if (is_8bit(p.v)) p.v_scales = c.v_scales;
  p.lse = c.lse;
  p.out_amax = c.amax;
  if (is_8bit(c.out)) p.out_scales = Granularity::head;
  p.varlen = c.layout == Layout::varlen;
  p.padded = c.padded;
  p.paged = c.page_size > 0;
  p.page_size = c.page_size;
  p.kv_group = c.kv_group;
  p.bias = c.bias;
  p.mask = c.mask;
  p.alibi = c.alibi;
  p.sinks = c.sinks;
  p.block_mask = c.block_mask;
  p.draft_tree = c.draft_tree;
  p.options = c.options;

  Arguments a;  // without memory: its pointers count as aligned, as those of vectors are
  const auto view = [&c](auto& t, DType dtype, std::int64_t heads, std::int64_t length,
                         std::int64_t columns, const std::vector<Span>& spans) {
    t.dtype = dtype;
    t.shape = tensor_shape(c, heads, length, columns, spans);
    t.stride = strides_of(c.layout, t.shape);
  };
  const std::vector<Span> spans_q = make_spans(c, c.seqlen_q, kQuerySpans, kTokensBeforeQueries);
  const std::vector<Span> spans_kv = make_spans(c, c.seqlen_kv, kKeySpans, kTokensBeforeKeys);
  view(a.q, c.input, c.heads_q, c.seqlen_q, c.head_dim, spans_q);
  view(a.k, p.k, c.heads_kv, c.seqlen_kv, c.head_dim, spans_kv);
  view(a.v, p.v, c.heads_kv, c.seqlen_kv, c.v_columns(), spans_kv);
  if (p.paged)
    for (ConstTensor* t : {&a.k, &a.v}) {
      t->shape = cache_shape(c, cache_pages(c, cache_spans(c)));
      t->stride = strides_of(c.layout, t->shape);
    }
  view(a.out, c.out, c.heads_q, c.seqlen_q, c.v_columns(), spans_q);
  run_problem.row_alignment = row_alignment(a);
  return run_problem;
}

void poison_outputs(Inputs& inputs) {
  std::fill(inputs.out.bytes.begin(), inputs.out.bytes.end(), kPoison);
  std::fill(inputs.lse.bytes.begin(), inputs.lse.bytes.end(), kPoison);
  std::fill(inputs.amax.bytes.begin(), inputs.amax.bytes.end(), kPoison);
}

std::int64_t stray_bytes(const TensorMemory& memory, const std::vector<Span>& live) {
  const Tensor& t = memory.view;
  std::vector<bool> may_change(memory.bytes.size(), false);
  const std::int64_t size = static_cast<std::int64_t>(size_bytes(t.dtype));
  for (const Span& span : live)
    for (std::int64_t h = 0; h < t.shape[1]; ++h)
      for (std::int64_t s = span.begin; s < span.begin + span.length; ++s) {
        const std::int64_t first =
            (span.batch * t.stride[0] + h * t.stride[1] + s * t.stride[2]) * size +
            static_cast<std::int64_t>(kGuardBytes);
        std::fill_n(may_change.begin() + first, t.shape[3] * size, true);
      }
  std::int64_t stray = 0;
  for (std::size_t i = 0; i < memory.bytes.size(); ++i)
    stray += !may_change[i] && memory.bytes[i] != kPoison ? 1 : 0;
  return stray;
}

}  // namespace octavo::evidence
