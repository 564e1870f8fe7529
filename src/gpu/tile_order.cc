#include "gpu/tile_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/mask.h"

namespace octavo {
namespace {

bool is_masked(const Options& o) {
  return o.causal != Causal::none || o.window_left >= 0 || o.window_right >= 0;
}

// How much more the busiest CTA gets than all do on average.
double unevenness(const TileOrder& order, const std::vector<double>& work_by_row,
                  std::int64_t heads, std::int64_t grid) {
  const auto row_tiles = static_cast<std::int64_t>(work_by_row.size());
  std::vector<double> work(static_cast<std::size_t>(grid));
  for (std::int64_t index = 0; index < heads * row_tiles; ++index)
    work[static_cast<std::size_t>(cta_of_tile(order, grid, index))] +=
        work_by_row[static_cast<std::size_t>(row_of_tile(order, row_tiles, heads, index))];
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  return *std::max_element(work.begin(), work.end()) * static_cast<double>(grid) / sum;
}

TileOrder mixing(std::int64_t heads, std::int64_t mixed) {
  return {static_cast<i32>(mixed), static_cast<i32>(std::max<std::int64_t>(heads / mixed, 1)), 0};
}

// All heads, unless their keys and values do not stay in L2: then the fewest whose tiles fill whole
// rounds, since who gets a long tile in one round gets a short one in the next. Where so many do
// not stay there either, the most of those that do with which work happens to be as even; if there
// are none, a tile reads little for its work, and several tiles of a head are on their way at once.
TileOrder masked_order(const Problem& p, const Sm90Forward& c, const GpuInfo& gpu,
                       std::int64_t row_tiles) {
  const std::int64_t heads = p.heads_q * p.batch;
  const std::int64_t key_bytes =
      p.head_dim * ((sm90::codes_qk(c) ? 1 : 2) + (sm90::codes_pv(c) ? 1 : 2));
  const std::int64_t fitting = std::int64_t{gpu.l2_bytes} * 2 / 3 /
                               std::max<std::int64_t>(p.len_kv * key_bytes, 1) *
                               (p.heads_q / p.heads_kv);
  const std::int64_t whole_rounds = gpu.sms / std::gcd<std::int64_t>(gpu.sms, row_tiles);
  if (heads <= fitting) return mixing(heads, heads);
  if (whole_rounds <= fitting) return mixing(heads, whole_rounds);
  constexpr std::int64_t kCounted = 1 << 13;     // more tiles are too many to go through here
  constexpr double kEven = 1.04, kTileWork = 2;  // blocks' worth of a tile beside its blocks
  if (c.persistent && !p.packed && heads * row_tiles <= kCounted) {
    std::vector<double> work;
    for (std::int64_t row = 0; row < p.len_q; row += sm90::block_m(c))
      work.push_back(kTileWork +
                     static_cast<double>(blocks_of_tile(p, row, sm90::block_m(c), c.block_n)));
    // Tiles of the next heads are on their way when a group's last ones are.
    for (std::int64_t mixed = fitting - gpu.sms / row_tiles; mixed >= 1; --mixed)
      if (unevenness(mixing(heads, mixed), work, heads, gpu.sms) <= kEven)
        return mixing(heads, mixed);
  }
  return mixing(heads, heads);
}

}  // namespace

TileOrder tile_order(const Problem& p, const Sm90Forward& c, const GpuInfo& gpu) {
  const std::int64_t row_tiles =
      std::max<std::int64_t>(div_up<std::int64_t>(p.len_q, sm90::block_m(c)), 1);
  if (is_masked(p.options)) return masked_order(p, c, gpu, row_tiles);
  // A CTA comes by every row of tiles before it comes by one again.
  const std::int64_t heads = p.heads_q * p.batch;
  const std::int64_t grid = std::min<std::int64_t>(heads * row_tiles, gpu.sms);
  std::int64_t turn = 1;
  while (turn < grid && std::gcd(grid + turn, row_tiles) > 1) ++turn;
  return {1, static_cast<i32>(heads), static_cast<i32>(turn < grid ? turn : 0)};
}

std::int64_t row_of_tile(const TileOrder& order, std::int64_t row_tiles, std::int64_t heads,
                         std::int64_t index) {
  const std::int64_t group =
      std::min<std::int64_t>(index / (row_tiles * order.mixed_heads), order.groups - 1);
  const std::int64_t first = group * order.mixed_heads;
  const std::int64_t mixed = group + 1 < order.groups ? order.mixed_heads : heads - first;
  return row_tiles - 1 - (index - first * row_tiles) / mixed;
}

std::int64_t cta_of_tile(const TileOrder& order, std::int64_t grid, std::int64_t index) {
  const std::int64_t round = index / grid, place = index % grid;
  if (order.turn == 0) return round % 2 == 0 ? place : grid - 1 - place;
  return (place + grid - round * order.turn % grid) % grid;
}

std::int64_t blocks_of_tile(const Problem& p, std::int64_t first_row, std::int64_t block_m,
                            std::int64_t block_n) {
  const std::int64_t last_row =
      std::max<std::int64_t>(std::min(first_row + block_m, p.len_q) - 1, 0);
  const KeyRange first = visible_keys(p.options, first_row, p.len_q, p.len_kv);
  const KeyRange last = visible_keys(p.options, last_row, p.len_q, p.len_kv);
  return div_up(std::max<std::int64_t>(last.end - first.begin, 0), block_n);
}

}  // namespace octavo
