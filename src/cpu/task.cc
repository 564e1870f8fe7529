// SPDX-License-Identifier: Apache-2.0
// The steps of a task: load the queries, loop over key blocks, store the rows.
#include "cpu/task.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "attention/mask.h"
#include "attention/operand_scales.h"
#include "cpu/panel_modifiers.h"
#include "numeric/formats.h"

namespace octavo::cpu {
namespace {

// Q^T and O^T of a task must fit into L2 together with the K and V block.
constexpr std::int64_t kTaskBytes = 400 * 1024;
constexpr std::int64_t kTaskRows = 768;
constexpr std::int64_t kMaxPanels = 64;  // of the narrowest vectors: 768 / (3 * 4)

void encode_values(DType format, const float* x, std::int64_t count, float inverse, std::byte* to) {
  const auto encode = [&](auto one) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = std::byte{one(x[i] * inverse)};
  };
  if (format == DType::e4m3) return encode([](float y) { return e4m3_from_f32(y); });
  if (format == DType::e5m2) return encode([](float y) { return e5m2_from_f32(y); });
  encode([](float y) { return int8_from_f32(y); });
}

// The largest finite magnitude; as integers, finite magnitudes are smaller than Inf and NaN.
float finite_amax(const float* x, std::int64_t count) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF;
    if (magnitude < kF32Infinity) most = std::max(most, magnitude);
  }
  return std::bit_cast<float>(most);
}

// An atomic maximum, because tasks of one head run concurrently.
void raise(float& amax, float x) {
  std::atomic_ref<float> shared(amax);
  float there = shared.load(std::memory_order_relaxed);
  while (x > there && !shared.compare_exchange_weak(there, x, std::memory_order_relaxed)) {
  }
}

// The keys that the queries of one panel attend to.
struct PanelKeys {
  std::int64_t begin = 0, end = 0;          // keys that at least one query attends to
  std::int64_t all_begin = 0, all_end = 0;  // keys that every query attends to
  std::int64_t vectors = 0;
};

struct Scratch {
  float* q;        // Q^T, panel after panel
  float* o;        // O^T, likewise
  float* k;        // the K block
  float* v;        // the V block
  float* s;        // S^T and then P^T of one panel
  float* row;      // one row that is loaded or stored
  float* factors;  // of the loaders of Q, K and V
  float* max;      // per query, from here on
  float* sum;
  double* group_o;    // O^T and the sum of the groups before this one, at the maximum they had:
  double* group_sum;  // only where there are several
  float* group_max;
  double* group_factor;  // per query of one panel
  float* lse_shift;      // what smoothing subtracted from the scores
  float* rescale;        // per query of one panel, from here on
  float* begin;
  float* end;
  ModifierScratch modifiers;
  std::int64_t floats;
};

Scratch carve(const Tiling& t, float* base) {
  std::int64_t used = 0;
  const auto take = [&](std::int64_t floats) {
    float* at = base == nullptr ? nullptr : base + used;  // null: computes only the size
    used += round_up(floats, static_cast<std::int64_t>(kScratchAlignment / sizeof(float)));
    return at;
  };
  const std::int64_t queries = t.max_panels * t.panel;
  Scratch s{};
  const std::int64_t row = padded_row(std::max(t.head_dim, t.head_dim_v));
  s.q = take(queries * t.head_dim);
  s.o = take(queries * t.head_dim_v);
  s.k = take(kKeyRows * t.pitch + kRowPadding);
  s.v = take(kKeyRows * t.pitch_v + kRowPadding);
  s.s = take(kKeyRows * t.panel);
  s.row = take(row);
  s.factors = take(6 * row);
  s.max = take(queries);
  s.sum = take(queries);
  if (t.has_groups) {
    const auto take_doubles = [&take](std::int64_t n) {
      return reinterpret_cast<double*>(take(2 * n));
    };
    s.group_o = take_doubles(queries * t.head_dim_v);
    s.group_sum = take_doubles(queries);
    s.group_max = take(queries);
    s.group_factor = take_doubles(t.panel);
  }
  s.lse_shift = take(queries);
  s.rescale = take(t.panel);
  s.begin = take(t.panel);
  s.end = take(t.panel);
  s.modifiers = carve_modifiers(t.has_additions, t.has_alibi, t.panel, take);
  s.floats = used;
  return s;
}

class TaskRunner {
 public:
  TaskRunner(const TaskContext& context, const Task& task, float* scratch)
      : c_(context),
        t_(context.tiling),
        task_(task),
        s_(carve(context.tiling, scratch)),
        modifiers_(context.kernels, context.problem, context.arguments, task, s_.modifiers) {}

  void run() {
    load_queries();
    attend();
    store_rows();
  }

 private:
  QueryRow query(std::int64_t index) const { return task_.query(index); }
  KeyRange keys_of(std::int64_t index) const {
    return visible_keys(c_.problem.options, query(index).row, task_.sequence.seqlen_q,
                        task_.sequence.seqlen_kv);
  }
  std::int64_t panels() const { return (task_.rows + t_.panel - 1) / t_.panel; }
  std::int64_t rows_of(std::int64_t panel) const {
    return std::min(t_.panel, task_.rows - panel * t_.panel);
  }
  PanelKeys find_panel_keys(std::int64_t panel) const;

  void load_queries();
  void attend();
  void attend_panel(std::int64_t panel, std::int64_t from, std::int64_t to);
  void clear_groups();
  void finish_group(std::int64_t panel);
  const LaneLimits* lane_limits(std::int64_t panel, std::int64_t begin, std::int64_t end,
                                LaneLimits& limits) const;
  // The factor by which a row's O is multiplied at the end, and the row's LSE.
  struct RowEnd {
    float factor, lse;
  };
  RowEnd end_of_row(std::int64_t index, float sum) const;
  void store_rows();
  void store_row(const QueryRow& at, std::byte* to) const;

  const TaskContext& c_;
  const Tiling& t_;
  const Task& task_;
  const Scratch s_;
  const PanelModifiers modifiers_;
  std::array<PanelKeys, kMaxPanels> panel_keys_;
  bool has_finished_group_ = false;  // group_o and group_sum hold something
};

PanelKeys TaskRunner::find_panel_keys(std::int64_t panel) const {
  const std::int64_t rows = rows_of(panel);
  PanelKeys keys;
  keys.vectors = (rows + c_.kernels.lanes - 1) / c_.kernels.lanes;
  keys.begin = task_.sequence.seqlen_kv;
  keys.all_end = task_.sequence.seqlen_kv;
  for (std::int64_t i = 0; i < rows; ++i) {
    const KeyRange row = keys_of(panel * t_.panel + i);
    if (row.begin < row.end) {
      keys.begin = std::min(keys.begin, row.begin);
      keys.end = std::max(keys.end, row.end);
    }
    keys.all_begin = std::max(keys.all_begin, row.begin);
    keys.all_end = std::min(keys.all_end, row.end);
  }
  return keys;
}

// Loads Q^T multiplied by the scale and log2(e), and initialises the softmax state. Lanes without a
// query hold zeros, and their results are not read.
void TaskRunner::load_queries() {
  const auto to_log2 = static_cast<float>(c_.scale * std::numbers::log2e);
  const float* mean = c_.operands.k.mean(task_.number, task_.kv_head);
  for (std::int64_t p = 0; p < panels(); ++p) {
    const std::int64_t rows = rows_of(p);
    const std::int64_t width = round_up(rows, c_.kernels.lanes);
    float* q = s_.q + p * t_.panel * t_.head_dim;
    if (rows < width) std::fill_n(q, width * t_.head_dim, 0.0f);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t index = p * t_.panel + i;
      const QueryRow at = query(index);
      const RowLoader loader(
          c_.kernels, c_.operands.q,
          {task_.number, task_.sequence.batch, task_.sequence.q_begin, at.head, {}}, s_.factors);
      loader.load_values(at.row, s_.row);
      double shift = 0;
      if (mean != nullptr)
        for (std::int64_t c = 0; c < t_.head_dim; ++c)
          shift += static_cast<double>(s_.row[c]) * static_cast<double>(mean[c]);
      s_.lse_shift[index] = static_cast<float>(c_.scale * shift);
      loader.transform(s_.row);
      loader.round(at.row, s_.row);
      for (std::int64_t c = 0; c < t_.head_dim; ++c) q[c * width + i] = s_.row[c] * to_log2;
    }
  }
  const std::int64_t queries = panels() * t_.panel;
  std::fill_n(s_.o, queries * t_.head_dim_v, 0.0f);
  std::fill_n(s_.max, queries, -kInfinity);
  std::fill_n(s_.sum, queries, 0.0f);
}

void TaskRunner::attend() {
  const Sequence& sequence = task_.sequence;
  std::int64_t begin = sequence.seqlen_kv, end = 0;
  for (std::int64_t p = 0; p < panels(); ++p) {
    const PanelKeys& keys = panel_keys_[static_cast<std::size_t>(p)] = find_panel_keys(p);
    begin = std::min(begin, keys.begin);
    end = std::max(end, keys.end);
  }
  const HeadOfSequence head{task_.number, sequence.batch, sequence.kv_begin, task_.kv_head,
                            PageTable(c_.arguments)};
  const std::int64_t factors = 2 * padded_row(std::max(t_.head_dim, t_.head_dim_v));
  const RowLoader k_rows(c_.kernels, c_.operands.k, head, s_.factors + factors);
  const RowLoader v_rows(c_.kernels, c_.operands.v, head, s_.factors + 2 * factors);
  for (std::int64_t block = begin / kKeyRows * kKeyRows; block < end; block += kKeyRows) {
    const std::int64_t from = std::max(block, begin);
    const std::int64_t to = std::min(block + kKeyRows, end);
    if (modifiers_.sees_block(0, task_.rows, from)) {
      k_rows.load_block(from, to, s_.k, t_.pitch);
      v_rows.load_block(from, to, s_.v, t_.pitch_v);
      for (std::int64_t p = 0; p < panels(); ++p) attend_panel(p, from, to);
    }
    // The last block also ends its group if there was a group before, as store_rows then reads the
    // finished groups.
    const bool ends_group = to == end ? has_finished_group_ : to % kGroupKeys == 0;
    if (!ends_group) continue;
    if (!has_finished_group_) clear_groups();
    for (std::int64_t p = 0; p < panels(); ++p) finish_group(p);
    has_finished_group_ = true;
  }
}

void TaskRunner::clear_groups() {
  const std::int64_t queries = panels() * t_.panel;
  std::fill_n(s_.group_o, queries * t_.head_dim_v, 0.0);
  std::fill_n(s_.group_sum, queries, 0.0);
  std::fill_n(s_.group_max, queries, -kInfinity);
}

// Adds `o` and `sum` of the current group to those of the previous groups, and clears both. The
// factor is computed from the two maxima, so the roundings of successive rescale factors do not add
// up.
void TaskRunner::finish_group(std::int64_t panel) {
  const std::int64_t first = panel * t_.panel;
  const std::int64_t width = round_up(rows_of(panel), c_.kernels.lanes);
  double* factor = s_.group_factor;
  for (std::int64_t i = 0; i < width; ++i) {
    const std::int64_t query = first + i;
    const auto old_max = static_cast<double>(s_.group_max[query]);
    factor[i] = s_.group_max[query] == -kInfinity
                    ? 0.0
                    : std::exp2(old_max - static_cast<double>(s_.max[query]));
    s_.group_sum[query] = s_.group_sum[query] * factor[i] + static_cast<double>(s_.sum[query]);
    s_.group_max[query] = s_.max[query];
    s_.sum[query] = 0;
  }
  for (std::int64_t c = 0; c < t_.head_dim_v; ++c) {
    float* o = s_.o + first * t_.head_dim_v + c * width;
    double* groups = s_.group_o + first * t_.head_dim_v + c * width;
    for (std::int64_t i = 0; i < width; ++i)
      groups[i] = groups[i] * factor[i] + static_cast<double>(o[i]);
    std::fill_n(o, width, 0.0f);
  }
}

// The limits of the panel's lanes; null if every lane attends to all of [begin, end).
const LaneLimits* TaskRunner::lane_limits(std::int64_t panel, std::int64_t begin, std::int64_t end,
                                          LaneLimits& limits) const {
  for (std::int64_t i = 0; i < t_.panel; ++i) {
    KeyRange keys{begin, begin};
    if (i < rows_of(panel)) keys = keys_of(panel * t_.panel + i);
    s_.begin[i] = static_cast<float>(std::clamp(keys.begin, begin, end) - begin);
    s_.end[i] = static_cast<float>(std::clamp(keys.end, begin, end) - begin);
  }
  limits = {s_.begin, s_.end};
  return &limits;
}

// Processes the loaded keys [from, to) that the panel attends to.
void TaskRunner::attend_panel(std::int64_t panel, std::int64_t from, std::int64_t to) {
  const PanelKeys& keys = panel_keys_[static_cast<std::size_t>(panel)];
  const std::int64_t begin = std::max(from, keys.begin);
  const std::int64_t end = std::min(to, keys.end);
  if (begin >= end) return;
  const std::int64_t count = end - begin;
  const std::int64_t skipped = begin - from;
  const std::int64_t query = panel * t_.panel;
  LaneLimits limits{};
  const bool all_seen = keys.all_begin <= begin && end <= keys.all_end;
  const LaneLimits* masked = all_seen ? nullptr : lane_limits(panel, begin, end, limits);
  TileModifiers modifiers;
  if (t_.modifies_scores && !modifiers_.load(query, rows_of(panel), keys.vectors * c_.kernels.lanes,
                                             begin, count, modifiers))
    return;  // p would be 0 everywhere
  c_.kernels.scores(s_.k + skipped * t_.pitch, t_.pitch, count, t_.head_dim,
                    s_.q + query * t_.head_dim, keys.vectors, s_.s);
  if (t_.modifies_scores) c_.kernels.modify_scores(s_.s, count, keys.vectors, modifiers);
  c_.kernels.softmax(s_.s, count, keys.vectors, masked, s_.max + query, s_.sum + query, s_.rescale);
  c_.kernels.accumulate(s_.v + skipped * t_.pitch_v, t_.pitch_v, count, t_.head_dim_v, s_.s,
                        keys.vectors, s_.rescale, s_.o + query * t_.head_dim_v);
}

// Stores the row in s_.row.
void TaskRunner::store_row(const QueryRow& at, std::byte* to) const {
  const Arguments& a = c_.arguments;
  if (a.out_amax != nullptr) {
    const bool of_heads = c_.problem.out_scales == Granularity::head;
    raise(a.out_amax[of_heads ? task_.number * c_.problem.heads_q + at.head : 0],
          finite_amax(s_.row, t_.head_dim_v));
  }
  if (!is_8bit(a.out.dtype)) return c_.kernels.from_f32(a.out.dtype, s_.row, t_.head_dim_v, to);
  const OperandScales scales = operand_scales(a, a.out, a.out_scales, c_.problem.seqlen_q);
  const float inverse = 1.0f / scales.step({task_.number, 0, 0, at.head, {}}, 0, 0);
  encode_values(a.out.dtype, s_.row, t_.head_dim_v, inverse, to);
}

// Computes the factor and the LSE of a row from its sum, to which a sink adds one term. A row
// without a visible key has the sum 0: its output is 0, and its LSE is the sink or -infinity.
TaskRunner::RowEnd TaskRunner::end_of_row(std::int64_t index, float sum) const {
  const float* sinks = c_.arguments.sinks;
  const auto sink = sinks == nullptr ? -kInfinity : sinks[query(index).head];
  if (sum == 0) return {0.0f, sink};
  // A bias may overflow in log2 units. Such a maximum is replaced by the lowest float, which is
  // also the LSE.
  const float max_log2 = s_.max[index];
  const bool overflows = std::abs(max_log2) >= std::numeric_limits<float>::max();
  const double max = max_log2 * (overflows ? 1.0 : std::numbers::ln2);
  const double shift = s_.lse_shift[index];
  if (sinks == nullptr)
    return {1.0f / sum, static_cast<float>(max + std::log(static_cast<double>(sum)) + shift)};
  // Smoothing has subtracted `shift` from the scores, but not from the sink.
  const double sink_score = static_cast<double>(sink) - shift;
  const double top = std::max(max, sink_score);
  const double of_keys = std::exp(max - top);
  const double total = static_cast<double>(sum) * of_keys + std::exp(sink_score - top);
  return {static_cast<float>(of_keys / total), static_cast<float>(top + std::log(total) + shift)};
}

void TaskRunner::store_rows() {
  const Tensor& out = c_.arguments.out;
  const Tensor& lse = c_.arguments.lse;
  for (std::int64_t index = 0; index < task_.rows; ++index) {
    const std::int64_t panel = index / t_.panel, lane = index % t_.panel;
    const std::int64_t width = round_up(rows_of(panel), c_.kernels.lanes);
    const std::int64_t first = panel * t_.panel * t_.head_dim_v + lane;
    const auto sum = has_finished_group_ ? static_cast<float>(s_.group_sum[index]) : s_.sum[index];
    const RowEnd end = end_of_row(index, sum);
    for (std::int64_t c = 0; c < t_.head_dim_v; ++c) {
      const std::int64_t at = first + c * width;
      const auto o = has_finished_group_ ? static_cast<float>(s_.group_o[at]) : s_.o[at];
      s_.row[c] = o * end.factor;
    }
    if (sum == 0) std::fill_n(s_.row, t_.head_dim_v, 0.0f);

    const QueryRow at = query(index);
    const std::int64_t b = task_.sequence.batch, row = task_.sequence.q_begin + at.row;
    auto* bytes = static_cast<std::byte*>(out.data) +
                  (b * out.stride[0] + at.head * out.stride[1] + row * out.stride[2]) *
                      static_cast<std::int64_t>(size_bytes(out.dtype));
    store_row(at, bytes);
    if (lse.data == nullptr) continue;
    static_cast<float*>(
        lse.data)[b * lse.stride[0] + at.head * lse.stride[1] + row * lse.stride[2]] = end.lse;
  }
}

}  // namespace

Tiling make_tiling(const Kernels& kernels, const Problem& problem) {
  Tiling tiling;
  tiling.head_dim = problem.head_dim;
  tiling.head_dim_v = problem.head_dim_v;
  tiling.has_groups = problem.seqlen_kv > kGroupKeys;
  tiling.has_additions =
      problem.bias || problem.mask || problem.block_mask != 0 || problem.draft_tree;
  tiling.has_alibi = problem.alibi;
  tiling.modifies_scores = tiling.has_additions || tiling.has_alibi || problem.options.softcap != 0;
  tiling.panel = kernels.lanes * kernels.max_vectors;
  const std::int64_t panel_bytes = tiling.panel * (problem.head_dim + problem.head_dim_v) *
                                   static_cast<std::int64_t>(sizeof(float));
  tiling.max_panels = std::max<std::int64_t>(
      1, std::min({kTaskRows / tiling.panel, kTaskBytes / panel_bytes, kMaxPanels}));
  // An odd number of cache lines: rows of a power of two would map to a few sets of L1.
  const auto pitch_of = [](std::int64_t columns) { return (round_up(columns, 16) / 16 | 1) * 16; };
  tiling.pitch = pitch_of(problem.head_dim);
  tiling.pitch_v = pitch_of(problem.head_dim_v);
  return tiling;
}

std::int64_t scratch_floats(const Tiling& tiling) { return carve(tiling, nullptr).floats; }

void run_task(const TaskContext& context, const Task& task, float* scratch) {
  TaskRunner(context, task, scratch).run();
}

}  // namespace octavo::cpu
