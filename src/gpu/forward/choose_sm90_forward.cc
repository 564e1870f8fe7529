// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/mask.h"
#include "attention/operand.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/forward/tile_order.h"
#include "gpu/quantize/prepare_operands.h"
#include "numeric/formats.h"

namespace octavo {
namespace {

// The table for a kernel problem depends on the type of the P V product.
std::span<const sm90::TableRow> table_for(const Problem& p) {
  if (is_8bit(p.v)) return sm90::kTable8Bit;
  return sm90::kTable;
}

// INT8 has its own rows, and so has each score type of FP8.
bool has_numerics(const sm90::TableRow& row, const Problem& p, ScoreType scores) {
  return (row.config.element == Element::int8) == (p.v == DType::int8) &&
         row.config.scores == scores;
}

// The columns of the tiles that hold so many columns of an operand.
int tile_columns(const Problem& p, ScoreType scores, std::int64_t columns) {
  const std::span<const sm90::TableRow> table = table_for(p);
  const auto next = std::find_if(table.begin(), table.end(), [&](const auto& row) {
    return row.config.head_dim >= columns && has_numerics(row, p, scores);
  });
  return next == table.end() ? 0 : next->config.head_dim;
}

bool is_timed_for_pair(const sm90::TableRow& row) {
  return std::any_of(std::begin(sm90::kTableOfPairs), std::end(sm90::kTableOfPairs),
                     [&](const sm90::TableRow& timed) { return timed.config == row.config; });
}

// The rows that may serve a kernel problem. If V needs other tiles than Q and K, these are the rows
// that were timed for the pair and the split-KV rows of either width, scaled; without timed rows,
// all rows of either width, scaled.
std::vector<sm90::TableRow> rows_for(const Problem& p, ScoreType scores) {
  const int qk = tile_columns(p, scores, p.head_dim), v = tile_columns(p, scores, p.head_dim_v);
  std::vector<sm90::TableRow> rows;
  for (const sm90::TableRow& row : sm90::kTableOfPairs)
    if (!is_8bit(p.v) && row.config.head_dim == qk && row.config.head_dim_v == v)
      rows.push_back(row);
  const bool timed = !rows.empty();
  for (const sm90::TableRow& row : table_for(p)) {
    const int columns = row.config.head_dim;
    const bool split_kv = sm90::is_split_kv(row.config);
    if ((columns != qk && columns != v) || !has_numerics(row, p, scores)) continue;
    if ((p.varlen && split_kv) || (timed && !split_kv)) continue;
    rows.push_back(qk == v ? row : sm90::with_head_dims(row, qk, v));
  }
  return rows;
}

// KScales::block needs scale blocks that are multiples of kScaledKeys keys; others are read by row.
KScales k_scales_of(const Problem& p) {
  if (!is_8bit(p.k)) return KScales::head;
  if (p.k_scales == Granularity::row) return KScales::row;
  if (p.k_scales != Granularity::block) return KScales::head;
  return p.k_block_rows % sm90::kScaledKeys == 0 ? KScales::block : KScales::row;
}

// FP16 scores need head_dim * max|q| * max|k| <= 65504. f16_fast has no exact P, so it has no LSE.
ScoreType scores_of(const Resolved& resolved) {
  const Problem& p = resolved.kernel_problem;
  if (!is_fp8(p.v) || k_scales_of(p) != KScales::head) return ScoreType::f32;
  constexpr double kLargestHalf = 65504;
  const double most = static_cast<double>(p.head_dim) * max_quantized(p.q, p.q_max_quantized) *
                      max_quantized(p.k, p.k_max_quantized);
  if (most > kLargestHalf) return ScoreType::f32;
  const bool fast = resolved.run_problem.options.precision == Precision::fp8_fast && !p.lse;
  return fast ? ScoreType::f16_fast : ScoreType::f16;
}

// Whether Octavo's quantizers run before an 8-bit kernel; they do not read what the kernel writes.
bool follows_quantizers(const Resolved& resolved) {
  const OperandFormats& formats = resolved.formats;
  if (!is_8bit(resolved.kernel_problem.q)) return false;
  const bool transposes =
      is_8bit(resolved.kernel_problem.v) && resolved.run_problem.v_layout == VLayout::rows;
  return formats.q.rounded || formats.k.rounded || formats.v.rounded || transposes;
}

struct Blocks {
  double mean = 0, least = 0, most = 0;
};
Blocks blocks_of(const Problem& p, std::int64_t block_m, std::int64_t block_n) {
  constexpr std::int64_t kSampled = 64;  // there may be millions of tiles
  const std::int64_t tiles = std::max<std::int64_t>(div_up(p.seqlen_q, block_m), 1);
  const std::int64_t samples = std::min(tiles, kSampled);
  Blocks blocks;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t first_row = (samples == 1 ? 0 : i * (tiles - 1) / (samples - 1)) * block_m;
    const auto here = static_cast<double>(blocks_of_tile(p, first_row, block_m, block_n));
    blocks.mean += here / static_cast<double>(samples);
    blocks.least = i == 0 ? here : std::min(blocks.least, here);
    blocks.most = std::max(blocks.most, here);
  }
  return blocks;
}

bool ends_within_tile(const Sm90ForwardConfig& c, const Problem& p) {
  const std::int64_t rest = p.seqlen_q % sm90::block_m(c);
  return p.seqlen_q > rest && rest != 0 && short_share(c, rest) < 1;
}

std::vector<double> blocks_by_tile(const Sm90ForwardConfig& c, const Problem& p) {
  const std::int64_t block_n = std::int64_t{c.block_n} * sm90::kv_splits(c);
  std::vector<double> blocks;
  const std::int64_t block_m = sm90::block_m(c);
  for (std::int64_t row = -row_shift(p, c); row < p.seqlen_q; row += block_m) {
    const std::int64_t rows = std::min(row + block_m, p.seqlen_q) - std::max<std::int64_t>(row, 0);
    blocks.push_back(short_share(c, rows) *
                     static_cast<double>(blocks_of_tile(p, row, block_m, block_n)));
  }
  return blocks;
}
bool has_fewer_blocks(const SmLoad& a, const SmLoad& b) { return a.blocks < b.blocks; }

// The load of the busiest persistent CTA if tiles differ, in the order of
// device/sm90/scheduler.cuh.
SmLoad busiest_persistent_cta(const Sm90ForwardConfig& c, const Problem& p, const GpuInfo& gpu) {
  const std::vector<double> blocks = blocks_by_tile(c, p);
  const auto row_tiles = static_cast<std::int64_t>(blocks.size());
  const std::int64_t heads = p.batch * p.heads_q, sms = gpu.sms;
  const TileOrder order = tile_order(p, c, gpu);
  std::vector<SmLoad> loads(static_cast<std::size_t>(sms));
  for (std::int64_t index = 0; index < heads * row_tiles; ++index) {
    SmLoad& load = loads[static_cast<std::size_t>(cta_of_tile(order, sms, index))];
    load.waves += 1;
    load.blocks += blocks[static_cast<std::size_t>(row_of_tile(order, row_tiles, heads, index))];
  }
  SmLoad longest = *std::max_element(loads.begin(), loads.end(), has_fewer_blocks);
  longest.chain = longest.blocks;
  return longest;
}

// The same for one CTA per tile: the first free slot takes the next tile, the longest of each head
// first. CTAs that share an SM share its speed.
SmLoad busiest_cta_slot(const Sm90ForwardConfig& c, int resident, const Problem& p,
                        const GpuInfo& gpu) {
  const std::vector<double> blocks = blocks_by_tile(c, p);
  const auto later = [](const SmLoad& a, const SmLoad& b) { return has_fewer_blocks(b, a); };
  std::vector<SmLoad> queues(static_cast<std::size_t>(
      std::max<std::int64_t>(std::int64_t{gpu.sms} * resident / c.cluster, 1)));
  for (std::int64_t head = 0; head < p.batch * p.heads_q; ++head)
    for (auto tile = blocks.rbegin(); tile != blocks.rend(); ++tile) {
      std::pop_heap(queues.begin(), queues.end(), later);
      queues.back().waves += 1;
      queues.back().blocks += *tile;
      std::push_heap(queues.begin(), queues.end(), later);
    }
  SmLoad longest = *std::max_element(queues.begin(), queues.end(), has_fewer_blocks);
  longest.chain = longest.blocks;
  longest.blocks *= resident;
  return longest;
}

// pack_gqa pays if a tile with the queries of a single head would be at least half empty.
bool may_pack_gqa(const sm90::TableRow& row, const Problem& p) {
  return sm90::is_split_kv(row.config) && !p.varlen && !p.options.batch_invariant &&
         p.heads_q > p.heads_kv && 2 * p.seqlen_q <= sm90::kRows && row.config.row_groups != 3;
}
// A problem with as many tiles as pack_gqa makes: each head stands for the heads that share a tile.
Problem pack_gqa_problem(const Problem& p, std::int64_t block_m) {
  Problem varlen = p;
  const std::int64_t rows = (p.heads_q / p.heads_kv) << query_bits(p.seqlen_q);
  varlen.heads_q = p.heads_kv * div_up(rows, block_m);
  return varlen;
}

// Tiles of bias and mask take shared memory from the other buffers: from O's, then stages beyond
// the second, then the columns of ones. Three warps load and pack the tiles of a mask; with four
// warpgroups one of them does so for two. Measured at (4,16,4096,64): 2.23 times the plain kernel,
// and 1.83 with threads that load their own elements.
void add_score_tiles(Sm90ForwardConfig& c) {
  ModifierConfig& m = c.modifiers;
  m.score_tiles = (m.bias || m.mask) && !sm90::is_split_kv(c) && !(m.mask && c.warpgroups > 3);
  if (m.score_tiles) sm90::fit_smem(c);
}

// Sets what the problem alone decides: the type and the amax of the output, and the modifiers.
void set_output_and_modifiers(Sm90ForwardConfig& c, const Problem& p) {
  c.output = {.element = element_of(p.out), .amax = p.out_amax};
  c.modifiers = modifiers_of(p);
  if (p.bias) c.modifiers.bias_element = element_of(*p.bias);
}

// The configuration of a table row for a kernel problem.
Sm90ForwardConfig config_for(const sm90::TableRow& row, const Problem& p) {
  Sm90ForwardConfig c = is_8bit(p.q) && !is_8bit(p.v)
                            ? sm90::mixed_config_of(row, element_of(p.q), element_of(p.v))
                            : sm90::config_of(row, element_of(p.q));
  c.v_element = element_of(p.v);
  c.k_scales = k_scales_of(p);
  set_output_and_modifiers(c, p);
  // Without a limit the compiler takes more registers for modifiers than the CTAs that the estimate
  // counts on an SM have. With it nothing, or 8 bytes, is spilled.
  if (any(c.modifiers) && sm90::is_split_kv(c)) c.min_ctas = row.estimate.resident;
  add_score_tiles(c);
  return c;
}

// Stages of a kernel with a block mask: as many as shared memory holds, at most 4.
int block_mask_stages(Sm90ForwardConfig c) {
  // An SM has 228 KB, of which each CTA takes 1 KB more than it asks for.
  constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024, kMostStages = 4;
  for (c.stages = kMostStages; c.stages > 0; --c.stages)
    if (c.min_ctas * (sm90::smem_bytes(c) + kReservedBytes) <= kSmBytes) break;
  return c.stages;
}

// Sets the keys and the order of the products of an 8-bit kernel with a block mask: the first of
// the list for which there are registers and two stages. A kernel that held more than 232 registers
// spilled. Wide slices of P V leave few waits, and as in the dense kernels Q K^T is queued behind
// the last one. With blocks of 64, a block of 128 keys is two of the mask's.
void set_8bit_products(Sm90ForwardConfig& c) {
  constexpr int kWidest = 128, kNarrow = 64, kMostHeld = 232;
  for (const int narrowest : {std::min(kNarrow, c.head_dim), 16})
    for (const int keys : {128, 64, 32})
      for (int columns = std::min(kWidest, c.head_dim); columns >= narrowest; columns -= 16)
        for (const Schedule schedule : {Schedule::pv_first_queued, Schedule::pv_first}) {
          c.block_n = keys;
          c.pv_columns = columns;
          c.schedule = schedule;
          if (c.head_dim % columns == 0 && block_mask_stages(c) > 1 &&
              sm90::registers_held(c) <= std::min(sm90::register_budget(c), kMostHeld))
            return;
        }
}

// The configuration for a block mask, whose tiles are its blocks: 64 keys at once where the
// registers for O leave no room for 128; for blocks of 64 rows, as many CTAs on an SM as its
// registers and shared memory hold. No search has timed these kernels.
Sm90ForwardConfig block_mask_config(const Problem& p, ScoreType scores) {
  Sm90ForwardConfig c;
  c.element = element_of(p.q);
  c.v_element = element_of(p.v);
  c.k_scales = k_scales_of(p);
  c.scores = scores;
  c.head_dim = tile_columns(p, c.scores, p.head_dim);
  const int columns_v = tile_columns(p, c.scores, p.head_dim_v);
  c.head_dim_v = columns_v == c.head_dim ? 0 : columns_v;
  const int columns = std::max(c.head_dim, columns_v);
  const bool small = p.block_mask == 64;
  c.warpgroups = small ? 1 : 2;
  // With two CTAs a thread has at most 128 registers at launch, which O of 256 columns fills alone.
  // With three it is 80, and a consumer has 120: enough for 16-bit kernels and for FP16 scores.
  const bool three = columns <= 64 && (!sm90::is_8bit_qk(c) || sm90::has_f16_scores(c));
  c.min_ctas = !small || columns > 192 ? 1 : three ? 3 : 2;
  const int narrow = small && !sm90::is_8bit_qk(c) ? 32 : 64;
  c.block_n = columns <= 128 ? static_cast<int>(p.block_mask) : narrow;
  set_output_and_modifiers(c, p);
  // 16-bit kernels have no room for columns of ones beside three stages.
  c.sum_rounded_p = sm90::is_8bit_pv(c) && !p.lse;
  if (sm90::is_8bit_pv(c)) set_8bit_products(c);
  c.stages = std::max(block_mask_stages(c), 1);
  return c;
}

// The configuration for more than 256 columns of Q and K or of V: the most stages, then the most
// keys at once, for which there are shared memory and registers.
Sm90ForwardConfig wide_config(const Problem& p) {
  const auto columns = [](std::int64_t head_dim) {
    return *std::lower_bound(kSm90HeadDims.begin(), kSm90HeadDims.end(), head_dim);
  };
  Sm90ForwardConfig c;
  c.element = c.v_element = element_of(p.q);
  c.head_dim = columns(p.head_dim);
  c.head_dim_v = columns(p.head_dim_v);
  if (c.head_dim_v == c.head_dim) c.head_dim_v = 0;
  c.warpgroups = 2;
  c.sum_rounded_p = false;
  set_output_and_modifiers(c, p);
  const int most_keys = sm90::v_columns(c) > 192 ? 80 : 96;
  constexpr int kFewestKeys = 64;
  for (c.stages = 2; c.stages > 0; --c.stages)
    for (c.block_n = most_keys; c.block_n >= kFewestKeys; c.block_n -= 16)
      if (feasible(c, 90, sm90::kSmemBytes).ok()) return c;
  return c;
}

// The time that masks add. With one CTA per tile, code that runs once is fetched from memory: the
// mask of 256 8-bit keys is so long that (1,8,512,64) takes 5.26 us with it and 4.40 without.
double mask_us(const sm90::TableRow& row, const Problem& p, const SmLoad& load) {
  const Sm90ForwardConfig& c = row.config;
  if (!is_masked(p.options) && p.seqlen_kv % c.block_n == 0) return 0;
  const bool much = sm90::is_8bit_pv(c) && c.block_n > sm90::kMaxPromotedKeys;
  return sm90::is_split_kv(c) && much ? 0.8 : load.waves * row.estimate.masked_us;
}

std::string shape_text(const Sm90ForwardConfig& c) {
  if (!sm90::is_split_kv(c))
    return fmt::format("tiles of {} rows by {} keys", sm90::block_m(c), c.block_n);
  return fmt::format("tiles of {} rows{}, split-KV with {} splits", sm90::block_m(c),
                     c.pack_gqa ? " of several heads" : "", sm90::kv_splits(c));
}

}  // namespace

bool sm90_forward_supports(const Resolved& resolved, const GpuInfo& gpu) {
  const Problem& p = resolved.kernel_problem;
  const OperandFormats& formats = resolved.formats;
  // 8-bit K and V that are dequantized to the type of Q count as given.
  const auto given = [](const OperandFormat& f) { return !f.rounded || is_8bit(f.stored); };
  const bool as_given = given(formats.q) && given(formats.k) && given(formats.v);
  const bool in_16_bits = as_given && (p.q == DType::f16 || p.q == DType::bf16);
  const bool v_fits =
      p.v == p.q || p.v == DType::f16 || p.v == DType::bf16 || (is_fp8(p.q) && is_fp8(p.v));
  // Block masks are the only modifiers of 8-bit kernels.
  Problem visible = p;
  visible.block_mask = 0;
  const bool in_8_bits = is_8bit(p.q) && p.q != DType::sim8 && p.k == p.q && v_fits &&
                         !changes_scores(visible) && !p.padded;
  return gpu.arch == 90 && gpu.tensor_maps && (in_16_bits || in_8_bits) && p.head_dim % 8 == 0 &&
         p.head_dim_v % 8 == 0;
}

SmLoad busiest_sm(const sm90::TableRow& row, const Problem& run_problem, const GpuInfo& gpu) {
  const Sm90ForwardConfig& c = row.config;
  Problem p = run_problem;
  p.options.sm_margin = 0;  // it must not change the choice, and with it the bits
  if (p.options.batch_invariant) {
    // The choice must not depend on batch and heads, so it assumes many.
    constexpr std::int64_t kMany = 1024;
    p.batch = 1;
    p.heads_q = p.heads_kv = kMany;
  }
  const Blocks blocks =
      blocks_of(p, sm90::block_m(c), std::int64_t{c.block_n} * sm90::kv_splits(c));
  const bool even = blocks.least == blocks.most && !ends_within_tile(c, p);
  const std::int64_t tiles =
      p.batch * p.heads_q * div_up<std::int64_t>(p.seqlen_q, sm90::block_m(c));
  // Tiles that differ are counted one by one. If there are too many, assume an even distribution.
  constexpr std::int64_t kCounted = 1 << 16, kQueued = 1 << 12;
  if (!even && !p.varlen && !sm90::is_split_kv(c) && tiles <= kCounted)
    return busiest_persistent_cta(c, p, gpu);
  if (!even && !p.varlen && sm90::is_split_kv(c) && tiles <= kQueued)
    return busiest_cta_slot(c, row.estimate.resident, p, gpu);
  const double share = static_cast<double>(tiles * c.cluster) / gpu.sms;
  const double here = even ? std::ceil(share) : std::max(share, 1.0);
  const double parallel = here / row.estimate.resident;
  const double waves = even ? std::ceil(parallel) : std::max(parallel, 1.0);
  return {waves, std::max(here * blocks.mean, blocks.most),
          std::max(waves * blocks.mean, blocks.most)};
}

double estimated_us(const sm90::TableRow& row, const Problem& p, const GpuInfo& gpu) {
  const SmLoad load = busiest_sm(row, p, gpu);
  const sm90::Estimate& e = row.estimate;
  return mask_us(row, p, load) + e.fixed_us + load.waves * e.wave_us +
         std::max(load.blocks, e.alone * load.chain) * e.block_us;
}

ChosenSm90Forward choose_sm90_forward(const Resolved& resolved, const GpuInfo& gpu) {
  const Problem& p = resolved.kernel_problem;
  const ScoreType scores = scores_of(resolved);
  ChosenSm90Forward chosen;
  if (p.block_mask != 0) {
    chosen.config = block_mask_config(p, scores);
    chosen.reason = fmt::format("tiles of {} rows by {} keys: blocks of the block mask",
                                sm90::block_m(chosen.config), chosen.config.block_n);
    chosen.early_start = (p.options.overlap_launch || follows_quantizers(resolved)) && !p.out_amax;
    return chosen;
  }
  if (std::max(p.head_dim, p.head_dim_v) > sm90::kMaxTileColumns) {
    chosen.config = wide_config(p);
    chosen.reason = fmt::format(
        "tiles of {} rows by {} keys{}", sm90::block_m(chosen.config), chosen.config.block_n,
        sm90::column_tiles(chosen.config) > 1 ? ", for half of the columns of V each" : "");
    chosen.early_start = p.options.overlap_launch && !p.out_amax;
    return chosen;
  }
  double best = std::numeric_limits<double>::infinity();
  bool is_scaled = false;  // the row's times are of other columns of V
  const auto consider = [&](const sm90::TableRow& row, const Problem& counted, bool pack_gqa) {
    const double us = estimated_us(row, counted, gpu);
    if (us >= best) return;
    Sm90ForwardConfig config = config_for(row, p);
    config.pack_gqa = pack_gqa;
    // The table's rows were timed with other K scales, or with other operands than mixed ones.
    // Scales need registers and shared memory, as tiles of bias and mask do, so a row may not be
    // feasible here. Nor may one that was made for V with other columns.
    if ((sm90::is_8bit_qk(config) || config.modifiers.score_tiles || config.head_dim_v != 0) &&
        !feasible(config, 90, sm90::kSmemBytes).ok())
      return;
    best = us;
    chosen.config = config;
    is_scaled = config.head_dim_v > 0 && !is_timed_for_pair(row);
  };
  for (const sm90::TableRow& row : rows_for(p, scores)) {
    consider(row, p, false);
    const std::int64_t block_m = sm90::block_m(row.config);
    if (may_pack_gqa(row, p)) consider(row, pack_gqa_problem(p, block_m), true);
  }
  chosen.reason =
      fmt::format("{}: the fastest, {:.3g} us by the table{}", shape_text(chosen.config), best,
                  sm90::is_mixed(chosen.config) ? " of 16-bit kernels"
                  : is_scaled                   ? ", counted for the columns of V"
                                                : "");
  // O is divided by the sum of the rounded P, which is not exact enough for LSE.
  if (p.lse && chosen.config.sum_rounded_p) {
    chosen.config.sum_rounded_p = false;
    chosen.reason += "; LSE from exact sums";
  }
  // out_amax is cleared by a memset before the launch, which the kernel must not overlap.
  const bool overlaps = p.options.overlap_launch || follows_quantizers(resolved);
  chosen.early_start = overlaps && !p.out_amax;
  if (chosen.early_start) chosen.reason += "; launched early";
  return chosen;
}

}  // namespace octavo
