#include "gpu/choose_sm90_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/mask.h"
#include "attention/operand.h"
#include "gpu/element_of.h"
#include "gpu/sm90_feasible.h"

namespace octavo {
namespace {

bool fits(const sm90::TableRow& row, const Problem& p) {
  const auto next = std::find_if(std::begin(sm90::kTable), std::end(sm90::kTable),
                                 [&p](const auto& other) { return other.head_dim >= p.head_dim; });
  return next != std::end(sm90::kTable) && row.head_dim == next->head_dim &&
         !(p.packed && row.cluster > 0);
}

// Blocks of keys that one tile of rows visits.
struct Blocks {
  double mean = 0, least = 0, most = 0;
};
Blocks blocks_of(const Problem& p, std::int64_t block_m, std::int64_t block_n) {
  constexpr std::int64_t kSampled = 64;  // of the tiles, which may be millions
  const std::int64_t tiles = std::max<std::int64_t>(div_up(p.len_q, block_m), 1);
  const std::int64_t samples = std::min(tiles, kSampled);
  Blocks blocks;
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t first_row = (samples == 1 ? 0 : i * (tiles - 1) / (samples - 1)) * block_m;
    const std::int64_t last_row =
        std::max<std::int64_t>(std::min(first_row + block_m, p.len_q) - 1, 0);
    const KeyRange first = visible_keys(p.options, first_row, p.len_q, p.len_kv);
    const KeyRange last = visible_keys(p.options, last_row, p.len_q, p.len_kv);
    const double here =
        static_cast<double>(div_up(std::max<std::int64_t>(last.end - first.begin, 0), block_n));
    blocks.mean += here / static_cast<double>(samples);
    blocks.least = i == 0 ? here : std::min(blocks.least, here);
    blocks.most = std::max(blocks.most, here);
  }
  return blocks;
}

std::string shape_text(const Sm90Forward& c) {
  if (!c.split_keys) return fmt::format("tiles of {} rows by {} keys", sm90::block_m(c), c.block_n);
  return fmt::format("64 rows at a time, their keys divided among {} warpgroup{}{}", c.warpgroups,
                     c.warpgroups > 1 ? "s" : "",
                     c.cluster > 1 ? fmt::format(" of each of {} CTAs", c.cluster) : "");
}

}  // namespace

bool sm90_forward_serves(const Problem& p, const GpuInfo& gpu) {
  const OperandFormats formats = operand_formats(p);
  const bool as_given = !formats.q.rounded && !formats.k.rounded && !formats.v.rounded;
  return gpu.arch == 90 && (p.q == DType::f16 || p.q == DType::bf16) && p.head_dim % 8 == 0 &&
         as_given;
}

double estimated_us(const sm90::TableRow& row, const Problem& p, int sms) {
  const Sm90Forward c = sm90::config_of(row, Element::f16);
  const int parts = c.split_keys ? c.warpgroups * c.cluster : 1;
  // batch_invariant: the choice may not look at batch and heads, and takes them for many.
  constexpr double kMany = 1024;
  const double heads = p.options.batch_invariant ? kMany : static_cast<double>(p.batch * p.heads_q);
  const Blocks blocks = blocks_of(p, sm90::block_m(c), std::int64_t{c.block_n} * parts);
  const double slots = std::max(sms / c.cluster, 1);
  const double tiles = heads * static_cast<double>(div_up<std::int64_t>(p.len_q, sm90::block_m(c)));
  // Tiles that differ are shared out evenly, the longest first; tiles that do not, in rounds.
  const double rounds = std::ceil(tiles / slots);
  const bool even = blocks.least == blocks.most;
  const double tiles_here = even ? rounds : std::max(tiles / slots, 1.0);
  const double blocks_here = std::max(tiles_here * blocks.mean, blocks.most);
  return row.fixed_us + tiles_here * row.tile_us + blocks_here * row.block_us;
}

ChosenSm90Forward choose_sm90_forward(const Problem& p, const GpuInfo& gpu) {
  ChosenSm90Forward chosen;
  double best = std::numeric_limits<double>::infinity();
  for (const sm90::TableRow& row : sm90::kTable) {
    if (!fits(row, p)) continue;
    const double us = estimated_us(row, p, gpu.sms);
    if (us >= best) continue;
    best = us;
    chosen.config = sm90::config_of(row, element_of(p.q));
  }
  chosen.config.out = element_of(p.out);
  chosen.reason =
      fmt::format("{}: {:.3g} us by the table, the least", shape_text(chosen.config), best);
  // A sum of rounded probabilities is what O wants divided by, and not exact enough for LSE.
  if (p.lse && chosen.config.ones) {
    chosen.config.ones = false;
    chosen.reason += "; LSE from exact sums";
  }
  return chosen;
}

}  // namespace octavo
