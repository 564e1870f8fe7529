// SPDX-License-Identifier: Apache-2.0
#include "gpu/forward/tile_order.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "attention/mask.h"

namespace octavo {
namespace {

// A launch resolves its order without allocating: chips with more SMs than these take the best
// guess.
constexpr std::size_t kMostSms = 256;

constexpr double kTileWork = 2;  // the fixed cost of a tile, in blocks

// The heads that tiles are counted for. Each tile of columns counts as one more.
std::int64_t tile_heads(const Problem& p, const Sm90ForwardConfig& c) {
  return p.heads_q * p.batch * sm90::column_tiles(c);
}

// The work of the busiest CTA relative to the average.
double unevenness(const TileOrder& order, const Problem& p, const Sm90ForwardConfig& c,
                  std::int64_t row_tiles, std::int64_t grid) {
  const std::int64_t heads = tile_heads(p, c);
  std::array<double, kMostSms> work{};
  std::int64_t known_row = -1;  // consecutive tiles mostly have the same row
  double row_work = 0, sum = 0;
  for (std::int64_t index = 0; index < heads * row_tiles; ++index) {
    if (const std::int64_t row = row_of_tile(order, row_tiles, heads, index); row != known_row) {
      known_row = row;
      const std::int64_t first_row = row * sm90::block_m(c) - row_shift(p, c);
      row_work = kTileWork +
                 static_cast<double>(blocks_of_tile(p, first_row, sm90::block_m(c), c.block_n));
    }
    work[static_cast<std::size_t>(cta_of_tile(order, grid, index))] += row_work;
    sum += row_work;
  }
  return *std::max_element(work.begin(), work.begin() + grid) * static_cast<double>(grid) / sum;
}

TileOrder mixing(std::int64_t mixed, std::int64_t groups) {
  return {static_cast<i32>(mixed), static_cast<i32>(groups), 0};
}

// The bytes of a key and its value.
std::int64_t key_bytes(const Problem& p, const Sm90ForwardConfig& c) {
  return p.head_dim * (sm90::is_8bit_qk(c) ? 1 : 2) + p.head_dim_v * (sm90::is_8bit_pv(c) ? 1 : 2);
}

// How many heads' K and V stay in two thirds of L2 until the next tile of each head; what the tiles
// read and write passes through L2, too.
std::int64_t heads_in_l2(const Problem& p, const Sm90ForwardConfig& c, std::int64_t l2_bytes) {
  const std::int64_t of_keys = p.seqlen_kv * key_bytes(p, c) * p.heads_kv / p.heads_q;
  const std::int64_t of_tile = std::min<std::int64_t>(p.seqlen_q, sm90::block_m(c)) *
                               (p.head_dim * (sm90::is_8bit_qk(c) ? 1 : 2) + p.head_dim_v * 2);
  return l2_bytes * 2 / 3 / std::max<std::int64_t>(of_keys + of_tile, 1);
}

// Calls `consider` with orders of groups of at most `fitting` heads, the best guess first, until it
// returns false. Groups whose tiles fill whole rounds are preferred, since a CTA that gets a long
// tile in one round gets a short one in the next. If none fits, any size is tried, less the heads
// whose tiles run while the last tiles of a group finish. Remaining heads join the last group or
// form their own.
template <class Consider>
void for_fitting_orders(std::int64_t heads, std::int64_t fitting, std::int64_t row_tiles,
                        std::int64_t sms, const Consider& consider) {
  bool any = false, wanted = true;
  const auto add = [&](std::int64_t mixed) {
    const auto take = [&](std::int64_t groups) {
      any = true;
      wanted = wanted && consider(mixing(mixed, groups));
    };
    if (mixed + heads % mixed <= fitting) take(heads / mixed);
    if (heads % mixed != 0) take(heads / mixed + 1);
  };
  const std::int64_t whole_rounds = sms / std::gcd(sms, row_tiles);
  for (std::int64_t mixed = whole_rounds; mixed <= fitting && wanted; mixed += whole_rounds)
    add(mixed);
  if (any) return;
  for (std::int64_t mixed = fitting - sms / row_tiles; mixed >= 1 && wanted; --mixed) add(mixed);
}

// The fraction of the time that is saved if K and V stay in L2. Otherwise each tile reads them from
// memory, except for tiles of a head that run at once; with a small head_dim the exponentials
// dominate. Times with all heads interleaved and in groups, in us: 16-bit (8,8,2048,256) 263 and
// 227, (4,8,4096,256) 426 and 402, (2,32,8192,64) 1035 and 1015; 8-bit (32,8,512,256) 97 and 89,
// (8,8,2048,256) 167 and 158, (1,32,16384,64) the same.
double worth_of_l2(const Problem& p, const Sm90ForwardConfig& c, std::int64_t sms) {
  const auto heads = static_cast<double>(p.heads_q * p.batch);
  const double alone = std::min(1.0, heads / static_cast<double>(sms));
  const auto bytes = static_cast<double>(key_bytes(p, c)) / 256;
  return std::max(0.06 * alone * bytes * 128 / sm90::block_m(c), 0.03);
}

// Interleaves all heads if their K and V stay in L2. Otherwise takes the groups that fit with the
// most even work, unless interleaving all heads is more even by more than L2 hits are worth.
TileOrder masked_order(const Problem& p, const Sm90ForwardConfig& c, const GpuInfo& gpu,
                       std::int64_t row_tiles) {
  const std::int64_t heads = tile_heads(p, c), sms = sms_of_grid(gpu.sms, p.options);
  const std::int64_t fitting = heads_in_l2(p, c, gpu.l2_bytes);
  const TileOrder all = mixing(heads, 1);
  if (heads <= fitting) return all;
  // One CTA per tile takes the next tile anyway, and the lengths of a varlen batch are not known.
  constexpr std::int64_t kCounted = 1 << 16;  // more tiles would take the host too long
  if (sm90::is_split_kv(c) || p.varlen || heads * row_tiles * 2 > kCounted ||
      static_cast<std::size_t>(sms) > kMostSms) {
    TileOrder guess = all;
    for_fitting_orders(heads, fitting, row_tiles, sms, [&](const TileOrder& first) {
      if (first.heads_per_group * row_tiles % sms == 0) guess = first;
      return false;
    });
    return guess;
  }
  constexpr double kEven = 1.005;
  TileOrder best = all;
  double least = 0;  // of `all`, measured when the first other order is considered
  std::int64_t counted = 0;
  for_fitting_orders(heads, fitting, row_tiles, sms, [&](const TileOrder& order) {
    if (counted == 0) {
      least = unevenness(all, p, c, row_tiles, sms) + worth_of_l2(p, c, sms);
      counted = heads * row_tiles;
    }
    counted += heads * row_tiles;
    if (counted > kCounted || least < kEven) return false;
    const double uneven = unevenness(order, p, c, row_tiles, sms);
    if (uneven < least) {
      least = uneven;
      best = order;
    }
    return true;
  });
  return best;
}

// Without a mask only the last tile of a head may be shorter. The rotation makes a CTA visit every
// m_block before it repeats one, so that each gets its share of the short tiles.
TileOrder sharing_short_tiles(std::int64_t heads, std::int64_t row_tiles, std::int64_t grid) {
  std::int64_t rotation = 1;
  while (rotation < grid && std::gcd(grid + rotation, row_tiles) > 1) ++rotation;
  return {1, static_cast<i32>(heads), static_cast<i32>(rotation < grid ? rotation : 0)};
}

// Whether the busiest CTA has clearly less work if the short tiles come last: that is so if they
// fill a last round that otherwise has full tiles. They read K and V of their head again, from
// memory.
bool short_tiles_belong_last(std::int64_t heads, std::int64_t row_tiles, std::int64_t grid,
                             double share) {
  constexpr double kClearly = 0.97;
  const std::int64_t full = heads * (row_tiles - 1);
  const std::int64_t rounds = div_up(heads * row_tiles, grid), full_rounds = div_up(full, grid);
  const double last =
      static_cast<double>(full_rounds) + share * static_cast<double>(rounds - full_rounds);
  const double shared =
      static_cast<double>(rounds) * (1 - (1 - share) / static_cast<double>(row_tiles));
  return last < kClearly * shared;
}

}  // namespace

// It is assumed, not measured, to exceed the share of the rows, because fewer warpgroups hide less
// of each other's softmax.
double short_share(const Sm90ForwardConfig& c, std::int64_t rows) {
  if (sm90::is_split_kv(c)) return 1;
  const auto busy = static_cast<double>(
      std::min<std::int64_t>(div_up<std::int64_t>(rows, sm90::kRows), c.warpgroups));
  return 0.25 + 0.75 * busy / c.warpgroups;
}

std::int64_t sms_of_grid(std::int64_t sms, const Options& options) {
  return std::max<std::int64_t>(sms - options.sm_margin, 1);
}

std::int64_t row_shift(const Problem& p, const Sm90ForwardConfig& c) {
  const bool shifts = is_masked(p.options) && !p.varlen && sm90::may_shift_rows(c);
  return shifts ? sm90::row_shift(c, static_cast<int>(p.seqlen_q)) : 0;
}

TileOrder tile_order(const Problem& p, const Sm90ForwardConfig& c, const GpuInfo& gpu) {
  const std::int64_t row_tiles =
      std::max<std::int64_t>(div_up<std::int64_t>(p.seqlen_q, sm90::block_m(c)), 1);
  if (is_masked(p.options)) return masked_order(p, c, gpu, row_tiles);
  const std::int64_t heads = tile_heads(p, c);
  // An empty batch has no tiles.
  const std::int64_t grid =
      std::clamp<std::int64_t>(heads * row_tiles, 1, sms_of_grid(gpu.sms, p.options));
  TileOrder order = sharing_short_tiles(heads, row_tiles, grid);
  const std::int64_t last_rows = p.seqlen_q - (row_tiles - 1) * sm90::block_m(c);
  order.short_tiles_last =
      short_tiles_belong_last(heads, row_tiles, grid, short_share(c, last_rows));
  return order;
}

std::int64_t row_of_tile(const TileOrder& order, std::int64_t row_tiles, std::int64_t heads,
                         std::int64_t index) {
  if (order.short_tiles_last) {
    --row_tiles;
    if (index >= heads * row_tiles) return row_tiles;
  }
  const std::int64_t group =
      std::min<std::int64_t>(index / (row_tiles * order.heads_per_group), order.groups - 1);
  const std::int64_t first = group * order.heads_per_group;
  const std::int64_t mixed = group + 1 < order.groups ? order.heads_per_group : heads - first;
  return row_tiles - 1 - (index - first * row_tiles) / mixed;
}

std::int64_t cta_of_tile(const TileOrder& order, std::int64_t grid, std::int64_t index) {
  const std::int64_t round = index / grid, place = index % grid;
  if (order.rotation == 0) return round % 2 == 0 ? place : grid - 1 - place;
  return (place + grid - round * order.rotation % grid) % grid;
}

std::int64_t blocks_of_tile(const Problem& p, std::int64_t first_row, std::int64_t block_m,
                            std::int64_t block_n) {
  const std::int64_t last_row =
      std::max<std::int64_t>(std::min(first_row + block_m, p.seqlen_q) - 1, 0);
  const KeyRange first =
      visible_keys(p.options, std::max<std::int64_t>(first_row, 0), p.seqlen_q, p.seqlen_kv);
  const KeyRange last = visible_keys(p.options, last_row, p.seqlen_q, p.seqlen_kv);
  return div_up(std::max<std::int64_t>(last.end - first.begin, 0), block_n);
}

}  // namespace octavo
