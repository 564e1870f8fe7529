// SPDX-License-Identifier: Apache-2.0
// The steps of a backward task: load queries, loop over key blocks, store dQ.
#include "cpu/backward_task.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "attention/mask.h"
#include "attention/score_modifiers.h"
#include "cpu/load.h"
#include "cpu/panel_modifiers.h"
#include "cpu/task.h"
#include "numeric/formats.h"

namespace octavo::cpu {
namespace {

// The LSE that the scratch holds for a query that sees no key, and for a column without a query. It
// makes P zero.
constexpr float kNoKeys = std::numeric_limits<float>::infinity();
// From this magnitude on the last bit of an LSE is worth 16 or more, and P cannot be recomputed
// from it. Such a row is treated as a row without keys.
constexpr float kHugeLse = 0x1p27f;

// Queries of a tile. P and dS of 48 queries and 64 keys take 12 KB each.
constexpr std::int64_t kBlockRows = 48;
// Q, dO (each by rows and transposed) and dQ^T of the blocks in the scratch must fit into L2
// together with a block of K, V, dK and dV.
constexpr std::int64_t kResidentBytes = 400 * 1024;
constexpr std::int64_t kMaxBlocks = 16;

const std::byte* row_of(const ConstTensor& t, std::int64_t b, std::int64_t head, std::int64_t row) {
  return static_cast<const std::byte*>(t.data) +
         (b * t.stride[0] + head * t.stride[1] + row * t.stride[2]) *
             static_cast<std::int64_t>(size_bytes(t.dtype));
}

// Whether all of n floats are finite: as integers, finite magnitudes are smaller than Inf and NaN.
bool all_finite(const float* x, std::int64_t n) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < n; ++i)
    most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF);
  return most < kF32Infinity;
}

// The keys that the queries of one block attend to.
struct BlockKeys {
  std::int64_t begin = 0, end = 0;          // keys that at least one query attends to
  std::int64_t all_begin = 0, all_end = 0;  // keys that every query attends to
  bool finite = true;                       // no query has an Inf or NaN in Q or dO
};

// Matrices with queries as columns have rows of `block` floats, the others rows of `pitch`.
struct BackwardScratch {
  float *q, *dout;      // by rows, block after block
  float *q_t, *dout_t;  // transposed; Q^T is multiplied by the scale and log2(e)
  float* dq_t;
  float *k, *v;        // the key block
  float *s, *ds;       // S^T, then P^T, and dP^T, then dS^T, of one tile
  float* row;          // one row that is loaded or stored
  float* lse;          // per query, in base 2, or kNoKeys
  float* delta;        // per query: the sum of dO * O
  float *begin, *end;  // per query of one block
  float* derivative;   // of the softcap, of one tile
  ModifierScratch modifiers;
  std::int64_t floats;
};

BackwardScratch carve(const BackwardTiling& t, float* base) {
  std::int64_t used = 0;
  const auto take = [&](std::int64_t floats) {
    float* at = base == nullptr ? nullptr : base + used;  // null: computes only the size
    used += round_up(floats, static_cast<std::int64_t>(kScratchAlignment / sizeof(float)));
    return at;
  };
  BackwardScratch s{};
  for (float** rows : {&s.q, &s.dout}) *rows = take(t.rows() * t.pitch + kRowPadding);
  for (float** columns : {&s.q_t, &s.dout_t, &s.dq_t}) *columns = take(t.rows() * t.head_dim);
  for (float** rows : {&s.k, &s.v}) *rows = take(kKeyRows * t.pitch + kRowPadding);
  for (float** tile : {&s.s, &s.ds}) *tile = take(kKeyRows * t.block);
  s.row = take(padded_row(t.head_dim));
  for (float** per_query : {&s.lse, &s.delta}) *per_query = take(t.rows());
  for (float** limit : {&s.begin, &s.end}) *limit = take(t.block);
  if (t.has_softcap) s.derivative = take(kKeyRows * t.block);
  s.modifiers = carve_modifiers(t.has_additions, t.has_alibi, t.block, take);
  s.floats = used;
  return s;
}

class BackwardRunner {
 public:
  BackwardRunner(const BackwardContext& context, const Task& task, float* scratch)
      : c_(context),
        t_(context.tiling),
        task_(task),
        s_(carve(context.tiling, scratch)),
        modifiers_(context.kernels, context.problem, context.forward, task, s_.modifiers) {}

  void run(float* dk, float* dv) {
    dk_ = dk, dv_ = dv;
    const std::int64_t floats = task_.sequence.seqlen_kv * t_.pitch;
    std::fill_n(dk_, floats, 0.0f);
    std::fill_n(dv_, floats, 0.0f);
    for (first_ = 0; first_ < task_.rows; first_ += t_.rows()) {
      rows_ = std::min(t_.rows(), task_.rows - first_);
      for (std::int64_t n = 0; n < blocks(); ++n) load_block(n);
      attend();
      for (std::int64_t i = 0; i < rows_; ++i) store_dq(i);
    }
  }

  // Adds dS of at most a block of rows and a block of keys to `sums`; see add_score_gradients().
  void add_scores(std::int64_t begin, std::int64_t end, double* sums) {
    rows_ = task_.rows;
    if (!modifiers_.sees_block(0, rows_, begin)) return;
    load_block(0);
    load_rows(c_.arguments.k, begin, end, s_.k);
    load_rows(c_.arguments.v, begin, end, s_.v);
    const TileKeys tile = tile_keys(0, begin, end, keys_are_finite(end - begin));
    if (tile.begin >= tile.end) return;
    if (tile.one_by_one)
      for_each_pair(0, tile, begin, [&](std::int64_t i, std::int64_t key, const Pair& pair) {
        sums[(key - begin) * t_.block + i] += static_cast<double>(pair.ds);
      });
    else if (find_scores(0, tile, begin))
      for (std::int64_t key = tile.begin; key < tile.end; ++key)
        for (std::int64_t i = 0; i < rows_; ++i)
          sums[(key - begin) * t_.block + i] +=
              static_cast<double>(s_.ds[(key - tile.begin) * t_.block + i]);
  }

 private:
  // Keys [begin, end) of a loaded block of keys that at least one query of a block attends to.
  struct TileKeys {
    std::int64_t begin, end;
    bool all_seen;    // by every query, as far as causal masks and windows go
    bool one_by_one;  // some are hidden, and there is an Inf or NaN
  };
  // One query and one key that it sees. ds is the gradient of the score, dx that of scale * q k.
  struct Pair {
    float p, ds, dx;
  };

  QueryRow query(std::int64_t index) const { return task_.query(first_ + index); }
  KeyRange keys_of(std::int64_t index) const {
    return visible_keys(c_.problem.options, query(index).row, task_.sequence.seqlen_q,
                        task_.sequence.seqlen_kv);
  }
  std::int64_t blocks() const { return (rows_ + t_.block - 1) / t_.block; }
  std::int64_t rows_of(std::int64_t block) const {
    return std::min(t_.block, rows_ - block * t_.block);
  }
  std::int64_t vectors(std::int64_t floats) const {
    return (floats + c_.kernels.lanes - 1) / c_.kernels.lanes;
  }

  void load_block(std::int64_t block);
  void load_query(std::int64_t index);
  BlockKeys find_block_keys(std::int64_t block) const;
  void load_rows(const ConstTensor& t, std::int64_t from, std::int64_t to, float* target) const;
  void attend();
  void attend_block(std::int64_t block, std::int64_t from, std::int64_t to, bool keys_finite);
  bool hides_keys() const { return is_masked(c_.problem.options) || t_.has_additions; }
  bool keys_are_finite(std::int64_t count) const;
  TileKeys tile_keys(std::int64_t block, std::int64_t from, std::int64_t to,
                     bool keys_finite) const;
  bool find_scores(std::int64_t block, const TileKeys& tile, std::int64_t from);
  void multiply(std::int64_t block, const TileKeys& tile, std::int64_t from);
  template <class Use>
  void for_each_pair(std::int64_t block, const TileKeys& tile, std::int64_t from,
                     const Use& use) const;
  void add_one_by_one(std::int64_t block, const TileKeys& tile, std::int64_t from);
  const LaneLimits* lane_limits(std::int64_t block, std::int64_t begin, std::int64_t end,
                                LaneLimits& limits) const;
  void store_dq(std::int64_t index) const;

  const BackwardContext& c_;
  const BackwardTiling& t_;
  const Task& task_;
  const BackwardScratch s_;
  const PanelModifiers modifiers_;
  float *dk_ = nullptr, *dv_ = nullptr;
  std::int64_t first_ = 0;  // the rows of the task that are in the scratch
  std::int64_t rows_ = 0;
  std::array<BlockKeys, kMaxBlocks> block_keys_;
};

BlockKeys BackwardRunner::find_block_keys(std::int64_t block) const {
  BlockKeys keys;
  keys.begin = keys.all_end = task_.sequence.seqlen_kv;
  for (std::int64_t i = 0; i < rows_of(block); ++i) {
    const KeyRange row = keys_of(block * t_.block + i);
    if (row.begin < row.end) {
      keys.begin = std::min(keys.begin, row.begin);
      keys.end = std::max(keys.end, row.end);
    }
    keys.all_begin = std::max(keys.all_begin, row.begin);
    keys.all_end = std::min(keys.all_end, row.end);
  }
  const std::int64_t floats = rows_of(block) * t_.pitch;
  const std::int64_t first = block * t_.block * t_.pitch;
  if (hides_keys())
    keys.finite = all_finite(s_.q + first, floats) && all_finite(s_.dout + first, floats);
  return keys;
}

// Loads one query: by rows, transposed, and its LSE and delta.
void BackwardRunner::load_query(std::int64_t index) {
  const BackwardArguments& a = c_.arguments;
  const std::int64_t b = task_.sequence.batch, d = t_.head_dim;
  const QueryRow at = query(index);
  const std::int64_t row = task_.sequence.q_begin + at.row;
  float* const q = s_.q + index * t_.pitch;
  float* const dout = s_.dout + index * t_.pitch;
  c_.kernels.to_f32(a.q.dtype, row_of(a.q, b, at.head, row), 0, 1, d, q, 0);
  c_.kernels.to_f32(a.dout.dtype, row_of(a.dout, b, at.head, row), 0, 1, d, dout, 0);
  c_.kernels.to_f32(a.out.dtype, row_of(a.out, b, at.head, row), 0, 1, d, s_.row, 0);
  // Only the check for finite numbers reads the padding.
  std::fill_n(q + d, t_.pitch - d, 0.0f);
  std::fill_n(dout + d, t_.pitch - d, 0.0f);
  double delta = 0;
  for (std::int64_t c = 0; c < d; ++c)
    delta += static_cast<double>(dout[c]) * static_cast<double>(s_.row[c]);
  s_.delta[index] = static_cast<float>(delta);
  const float lse = *reinterpret_cast<const float*>(row_of(a.lse, b, at.head, row));
  s_.lse[index] = std::abs(lse) >= kHugeLse
                      ? kNoKeys
                      : static_cast<float>(static_cast<double>(lse) * std::numbers::log2e);
  const auto to_log2 = static_cast<float>(c_.scale * std::numbers::log2e);
  const std::int64_t block = index / t_.block * t_.block;
  const std::int64_t column = block * d + index - block;
  for (std::int64_t c = 0; c < d; ++c) {
    s_.q_t[column + c * t_.block] = q[c] * to_log2;
    s_.dout_t[column + c * t_.block] = dout[c];
  }
}

// Columns without a query hold zeros, and P is zero there.
void BackwardRunner::load_block(std::int64_t block) {
  const std::int64_t first = block * t_.block, rows = rows_of(block);
  const std::int64_t floats = t_.block * t_.head_dim;
  if (rows < t_.block) {
    std::fill_n(s_.q_t + first * t_.head_dim, floats, 0.0f);
    std::fill_n(s_.dout_t + first * t_.head_dim, floats, 0.0f);
    std::fill_n(s_.lse + first, t_.block, kNoKeys);
    std::fill_n(s_.delta + first, t_.block, 0.0f);
  }
  std::fill_n(s_.dq_t + first * t_.head_dim, floats, 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) load_query(first + i);
  block_keys_[static_cast<std::size_t>(block)] = find_block_keys(block);
}

// Rows [from, to) of K or V.
void BackwardRunner::load_rows(const ConstTensor& t, std::int64_t from, std::int64_t to,
                               float* target) const {
  const std::byte* first =
      row_of(t, task_.sequence.batch, task_.kv_head, task_.sequence.kv_begin + from);
  c_.kernels.to_f32(t.dtype, first, t.stride[2], to - from, t_.head_dim, target, t_.pitch);
}

void BackwardRunner::attend() {
  std::int64_t begin = task_.sequence.seqlen_kv, end = 0;
  for (std::int64_t n = 0; n < blocks(); ++n) {
    begin = std::min(begin, block_keys_[static_cast<std::size_t>(n)].begin);
    end = std::max(end, block_keys_[static_cast<std::size_t>(n)].end);
  }
  for (std::int64_t block = begin / kKeyRows * kKeyRows; block < end; block += kKeyRows) {
    const std::int64_t from = std::max(block, begin);
    const std::int64_t to = std::min(block + kKeyRows, end);
    if (!modifiers_.sees_block(first_, rows_, from)) continue;
    load_rows(c_.arguments.k, from, to, s_.k);
    load_rows(c_.arguments.v, from, to, s_.v);
    const bool finite = keys_are_finite(to - from);
    for (std::int64_t n = 0; n < blocks(); ++n) attend_block(n, from, to, finite);
  }
}

// Whether the block of K has only finite values; checked only if a mask may hide keys.
bool BackwardRunner::keys_are_finite(std::int64_t count) const {
  bool finite = true;
  if (hides_keys())
    for (std::int64_t key = 0; key < count; ++key)
      finite = finite && all_finite(s_.k + key * t_.pitch, t_.head_dim);
  return finite;
}

// If only some queries see a key, P and dS are zero for the others. An Inf or NaN times such a zero
// would spread to gradients that do not depend on it, so those tiles are computed pair by pair.
BackwardRunner::TileKeys BackwardRunner::tile_keys(std::int64_t block, std::int64_t from,
                                                   std::int64_t to, bool keys_finite) const {
  const BlockKeys& keys = block_keys_[static_cast<std::size_t>(block)];
  TileKeys tile{std::max(from, keys.begin), std::min(to, keys.end), false, false};
  tile.all_seen = keys.all_begin <= tile.begin && tile.end <= keys.all_end;
  tile.one_by_one = (!tile.all_seen || t_.has_additions) && !(keys_finite && keys.finite);
  return tile;
}

// Processes the loaded keys [from, to) that the block attends to.
void BackwardRunner::attend_block(std::int64_t block, std::int64_t from, std::int64_t to,
                                  bool keys_finite) {
  const TileKeys tile = tile_keys(block, from, to, keys_finite);
  if (tile.begin >= tile.end) return;
  if (!modifiers_.sees_block(first_ + block * t_.block, rows_of(block), from)) return;
  if (tile.one_by_one)
    add_one_by_one(block, tile, from);
  else
    multiply(block, tile, from);
}

// Computes P^T into s and dS^T into ds, with the modifiers. Returns false if all of P is zero.
bool BackwardRunner::find_scores(std::int64_t block, const TileKeys& tile, std::int64_t from) {
  const Kernels& kernels = c_.kernels;
  const std::int64_t count = tile.end - tile.begin, rows = rows_of(block);
  const std::int64_t d = t_.head_dim, b = t_.block, first = block * b, queries = vectors(rows);
  const bool is_modified = t_.has_softcap || t_.has_additions || t_.has_alibi;
  TileModifiers modifiers;
  if (is_modified && !modifiers_.load(first_ + first, rows, b, tile.begin, count, modifiers))
    return false;
  const float* const k = s_.k + (tile.begin - from) * t_.pitch;
  const float* const v = s_.v + (tile.begin - from) * t_.pitch;
  // S^T = K Q^T and dP^T = V dO^T.
  kernels.product({k, t_.pitch, false, s_.q_t + first * d, b, s_.s, b, count, d, queries, false});
  kernels.product(
      {v, t_.pitch, false, s_.dout_t + first * d, b, s_.ds, b, count, d, queries, false});
  if (is_modified) {
    modifiers.derivative = s_.derivative;
    kernels.modify_scores(s_.s, count, b / kernels.lanes, modifiers);
  }
  LaneLimits limits{};
  kernels.softmax_backward(
      s_.s, s_.ds, count, queries, b,
      tile.all_seen ? nullptr : lane_limits(block, tile.begin, tile.end, limits), s_.lse + first,
      s_.delta + first);
  return true;
}

// Computes the five products of a tile.
void BackwardRunner::multiply(std::int64_t block, const TileKeys& tile, std::int64_t from) {
  if (!find_scores(block, tile, from)) return;
  const Kernels& kernels = c_.kernels;
  const std::int64_t count = tile.end - tile.begin, rows = rows_of(block);
  const std::int64_t d = t_.head_dim, b = t_.block, first = block * b;
  const std::int64_t queries = vectors(rows), channels = vectors(d);
  if (t_.has_softcap) kernels.multiply_row(s_.ds, s_.derivative, count * b);
  const float* const k = s_.k + (tile.begin - from) * t_.pitch;
  // dV += P^T dO, dK += dS^T Q and dQ^T += K^T dS^T.
  kernels.product({s_.s, b, false, s_.dout + first * t_.pitch, t_.pitch,
                   dv_ + tile.begin * t_.pitch, t_.pitch, count, rows, channels, true});
  kernels.product({s_.ds, b, false, s_.q + first * t_.pitch, t_.pitch, dk_ + tile.begin * t_.pitch,
                   t_.pitch, count, rows, channels, true});
  kernels.product({k, t_.pitch, true, s_.ds, b, s_.dq_t + first * d, b, d, count, queries, true});
}

// Calls use(i, key, pair) for every query i of the block and every key of the tile that it sees.
template <class Use>
void BackwardRunner::for_each_pair(std::int64_t block, const TileKeys& tile, std::int64_t from,
                                   const Use& use) const {
  const std::int64_t d = t_.head_dim;
  for (std::int64_t i = block * t_.block; i < block * t_.block + rows_of(block); ++i) {
    const KeyRange keys = keys_of(i);
    const QueryRow at = query(i);
    const RowModifiers modifiers(c_.forward, c_.problem.options, task_.sequence, task_.number,
                                 at.head, at.row);
    const float* const q = s_.q + i * t_.pitch;
    const float* const dout = s_.dout + i * t_.pitch;
    for (std::int64_t j = std::max(tile.begin, keys.begin); j < std::min(tile.end, keys.end); ++j) {
      const float* const k = s_.k + (j - from) * t_.pitch;
      const float* const v = s_.v + (j - from) * t_.pitch;
      double x = 0, dp = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        x += static_cast<double>(q[c]) * static_cast<double>(k[c]);
        dp += static_cast<double>(dout[c]) * static_cast<double>(v[c]);
      }
      const double s = modifiers.apply(x * c_.scale, j);
      if (s == -std::numeric_limits<double>::infinity()) continue;
      Pair pair{};
      pair.p =
          static_cast<float>(std::exp2(s * std::numbers::log2e - static_cast<double>(s_.lse[i])));
      pair.ds = pair.p * (static_cast<float>(dp) - s_.delta[i]);
      pair.dx = pair.ds * static_cast<float>(modifiers.derivative(x * c_.scale));
      use(i, j, pair);
    }
  }
}

// The same as multiply() for tiles with hidden keys and an Inf or NaN.
void BackwardRunner::add_one_by_one(std::int64_t block, const TileKeys& tile, std::int64_t from) {
  for_each_pair(block, tile, from, [&](std::int64_t i, std::int64_t j, const Pair& pair) {
    const float* const q = s_.q + i * t_.pitch;
    const float* const dout = s_.dout + i * t_.pitch;
    const float* const k = s_.k + (j - from) * t_.pitch;
    float* const dq_t = s_.dq_t + block * t_.block * t_.head_dim + i % t_.block;
    for (std::int64_t c = 0; c < t_.head_dim; ++c) {
      dv_[j * t_.pitch + c] += pair.p * dout[c];
      dk_[j * t_.pitch + c] += pair.dx * q[c];
      dq_t[c * t_.block] += pair.dx * k[c];
    }
  });
}

const LaneLimits* BackwardRunner::lane_limits(std::int64_t block, std::int64_t begin,
                                              std::int64_t end, LaneLimits& limits) const {
  for (std::int64_t i = 0; i < t_.block; ++i) {
    KeyRange keys{begin, begin};
    if (i < rows_of(block)) keys = keys_of(block * t_.block + i);
    s_.begin[i] = static_cast<float>(std::clamp(keys.begin, begin, end) - begin);
    s_.end[i] = static_cast<float>(std::clamp(keys.end, begin, end) - begin);
  }
  limits = {s_.begin, s_.end};
  return &limits;
}

void BackwardRunner::store_dq(std::int64_t index) const {
  const Tensor& dq = c_.arguments.dq;
  const std::int64_t block = index / t_.block * t_.block;
  const float* const from = s_.dq_t + block * t_.head_dim + index - block;
  const auto scale = static_cast<float>(c_.scale);
  for (std::int64_t c = 0; c < t_.head_dim; ++c) s_.row[c] = from[c * t_.block] * scale;
  const QueryRow at = query(index);
  auto* const to = const_cast<std::byte*>(
      row_of(dq, task_.sequence.batch, at.head, task_.sequence.q_begin + at.row));
  c_.kernels.from_f32(dq.dtype, s_.row, t_.head_dim, to);
}

}  // namespace

BackwardTiling make_backward_tiling(const Kernels& kernels, const Problem& problem) {
  const std::int64_t head_dim = problem.head_dim;
  BackwardTiling tiling;
  tiling.head_dim = head_dim;
  tiling.has_softcap = problem.options.softcap != 0;
  tiling.has_additions = problem.bias || problem.mask || problem.block_mask != 0;
  tiling.has_alibi = problem.alibi;
  const std::int64_t panel = kernels.lanes * kernels.max_vectors;
  tiling.block = round_up(kBlockRows, panel);
  // An odd number of cache lines: rows of a power of two would map to a few sets of L1.
  const std::int64_t line = std::max<std::int64_t>(16, kernels.lanes);
  tiling.pitch = (round_up(head_dim, line) / line | 1) * line;
  const std::int64_t block_bytes =
      5 * tiling.block * head_dim * static_cast<std::int64_t>(sizeof(float));
  tiling.blocks = std::clamp<std::int64_t>(kResidentBytes / block_bytes, 1, kMaxBlocks);
  return tiling;
}

std::int64_t backward_scratch_floats(const BackwardTiling& tiling) {
  return carve(tiling, nullptr).floats;
}

void run_backward_task(const BackwardContext& context, const BackwardTask& task, float* scratch) {
  BackwardRunner(context, task, scratch).run(task.dk, task.dv);
}

void add_score_gradients(const BackwardContext& context, const Task& task, std::int64_t begin,
                         std::int64_t end, double* sums, float* scratch) {
  BackwardRunner(context, task, scratch).add_scores(begin, end, sums);
}

}  // namespace octavo::cpu
