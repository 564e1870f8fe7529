#include "gpu/tile_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/mask.h"

namespace octavo {
namespace {

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

TileOrder mixing(std::int64_t mixed, std::int64_t groups) {
  return {static_cast<i32>(mixed), static_cast<i32>(groups), 0};
}

// Of a key and its value, for each column.
std::int64_t key_bytes(const Sm90ForwardConfig& c) {
  return (sm90::is_8bit_qk(c) ? 1 : 2) + (sm90::is_8bit_pv(c) ? 1 : 2);
}

// Heads whose keys and values stay in L2 until the next tile of each, in two thirds of it: what a
// tile of each reads and writes passes through, too.
std::int64_t heads_in_l2(const Problem& p, const Sm90ForwardConfig& c, std::int64_t l2_bytes) {
  const std::int64_t of_keys = p.len_kv * p.head_dim * key_bytes(c) * p.heads_kv / p.heads_q;
  const std::int64_t of_tile = std::min<std::int64_t>(p.len_q, sm90::block_m(c)) * p.head_dim *
                               (sm90::is_8bit_qk(c) ? 3 : 4);
  return l2_bytes * 2 / 3 / std::max<std::int64_t>(of_keys + of_tile, 1);
}

// Groups of at most so many heads: the best guess first. As many as fill whole rounds, or a
// multiple, since who gets a long tile in one round gets a short one in the next; else any number,
// and tiles of the next heads are on their way when a group's last ones are. Heads that are left
// join the last group, or are one.
std::vector<TileOrder> fitting_orders(std::int64_t heads, std::int64_t fitting,
                                      std::int64_t row_tiles, std::int64_t sms) {
  std::vector<TileOrder> orders;
  const auto add = [&](std::int64_t mixed) {
    if (mixed + heads % mixed <= fitting) orders.push_back(mixing(mixed, heads / mixed));
    if (heads % mixed != 0) orders.push_back(mixing(mixed, heads / mixed + 1));
  };
  const std::int64_t whole_rounds = sms / std::gcd(sms, row_tiles);
  for (std::int64_t mixed = whole_rounds; mixed <= fitting; mixed += whole_rounds) add(mixed);
  if (orders.empty())
    for (std::int64_t mixed = fitting - sms / row_tiles; mixed >= 1; --mixed) add(mixed);
  return orders;
}

// What part of the time it is worth that keys and values stay in L2. Else each tile fetches its own
// from memory, but for those of a head that are on their way at once; of fewer columns the
// exponentials take longer. With all heads mixed (8,8,2048,256) takes 263 us in 16 bits and 227 in
// groups, (4,8,4096,256) 426 and 402, (2,32,8192,64) 1035 and 1015; in 8 bits (32,8,512,256) 97 and
// 89, (8,8,2048,256) 167 and 158, (1,32,16384,64) the same.
double worth_of_l2(const Problem& p, const Sm90ForwardConfig& c, std::int64_t sms) {
  const auto heads = static_cast<double>(p.heads_q * p.batch);
  const double alone = std::min(1.0, heads / static_cast<double>(sms));
  const auto bytes = static_cast<double>(key_bytes(c) * p.head_dim) / 256;
  return std::max(0.06 * alone * bytes * 128 / sm90::block_m(c), 0.03);
}

// All heads at once, unless their keys and values do not stay in L2: then groups that do, of which
// work is the most even, if all heads are not more even than that is worth.
TileOrder masked_order(const Problem& p, const Sm90ForwardConfig& c, const GpuInfo& gpu,
                       std::int64_t row_tiles) {
  const std::int64_t heads = p.heads_q * p.batch;
  const std::int64_t fitting = heads_in_l2(p, c, gpu.l2_bytes);
  const TileOrder all = mixing(heads, 1);
  if (heads <= fitting) return all;
  const std::vector<TileOrder> orders = fitting_orders(heads, fitting, row_tiles, gpu.sms);
  if (orders.empty()) return all;
  // CTAs that come and go take what is next, and packed sequences' lengths are not known here.
  constexpr std::int64_t kCounted = 1 << 16;  // more tiles are too many to go through here
  if (sm90::is_split_kv(c) || p.packed || heads * row_tiles * 2 > kCounted)
    return orders[0].mixed_heads * row_tiles % gpu.sms == 0 ? orders[0] : all;
  constexpr double kTileWork = 2;  // blocks' worth of a tile beside its blocks
  std::vector<double> work;
  for (std::int64_t row = 0; row < p.len_q; row += sm90::block_m(c))
    work.push_back(kTileWork +
                   static_cast<double>(blocks_of_tile(p, row, sm90::block_m(c), c.block_n)));
  constexpr double kEven = 1.005;
  TileOrder best = all;
  double least = unevenness(all, work, heads, gpu.sms) + worth_of_l2(p, c, gpu.sms);
  std::int64_t counted = heads * row_tiles;
  for (const TileOrder& order : orders) {
    counted += heads * row_tiles;
    if (counted > kCounted || least < kEven) break;
    const double uneven = unevenness(order, work, heads, gpu.sms);
    if (uneven >= least) continue;
    least = uneven;
    best = order;
  }
  return best;
}

}  // namespace

TileOrder tile_order(const Problem& p, const Sm90ForwardConfig& c, const GpuInfo& gpu) {
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
