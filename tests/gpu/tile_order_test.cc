// SPDX-License-Identifier: Apache-2.0
// The assignment of tiles to the persistent CTAs of a Hopper kernel.
#include "gpu/forward/tile_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "gpu/hopper_problems.h"

namespace octavo {
namespace {

// CTAs that take tiles in alternating order get even work under a causal mask: the busiest has at
// most 4.5% more than the average.
TEST(TileOrder, CausalWorkIsBalanced) {
  for (const auto& [b, h, s, d] : {std::array{1, 32, 16384, 64},
                                   {2, 32, 8192, 64},
                                   {4, 32, 4096, 64},
                                   {8, 32, 2048, 64},
                                   {16, 32, 1024, 64},
                                   {32, 32, 512, 64},
                                   {1, 16, 30000, 64},
                                   {8, 8, 2048, 256},
                                   {8, 16, 2048, 256}}) {
    const Sm90ForwardConfig config{.head_dim = d, .warpgroups = d == 256 ? 2 : 3};
    const Problem p = problem(b, h, s, d, Causal::top_left);
    const TileOrder order = tile_order(p, config, h200());
    const i64 row_tiles = div_up<i64>(s, sm90::block_m(config));
    const i64 heads = i64{b} * h, tiles = row_tiles * heads, grid = 132;
    std::vector<double> work(132);
    std::vector<int> seen(static_cast<std::size_t>(row_tiles));
    for (i64 index = 0; index < tiles; ++index) {
      const i64 row = row_of_tile(order, row_tiles, heads, index);
      ++seen.at(static_cast<std::size_t>(row));
      const i64 keys = std::min<i64>((row + 1) * sm90::block_m(config) - row_shift(p, config), s);
      work.at(static_cast<std::size_t>(cta_of_tile(order, grid, index))) +=
          static_cast<double>(div_up<i64>(keys, 128)) + 1;
    }
    for (const int times : seen) EXPECT_EQ(times, heads);
    double sum = 0;
    for (const double w : work) sum += w;
    EXPECT_LT(*std::max_element(work.begin(), work.end()), sum / 132 * 1.045) << b << " " << s;
  }
}

// Tiles of 192 rows: under a mask the last one is full, and the first has the rest, in whole
// warpgroups. A tile's blocks are those of its rows that exist.
TEST(TileOrder, MaskedTilesEndWithTheLastRow) {
  const Sm90ForwardConfig config{.head_dim = 128, .warpgroups = 3};
  const auto shift = [&](int rows, Causal causal) {
    return row_shift(problem(1, 1, rows, 128, causal), config);
  };
  EXPECT_EQ(shift(4096, Causal::top_left), 128);
  EXPECT_EQ(shift(2048, Causal::bottom_right), 64);
  EXPECT_EQ(shift(1153, Causal::top_left), 128);
  EXPECT_EQ(shift(1152, Causal::top_left), 0);
  EXPECT_EQ(shift(4096, Causal::none), 0);
  Problem p = problem(1, 1, 4096, 128, Causal::top_left);
  EXPECT_EQ(blocks_of_tile(p, -128, 192, 64), 1);
  EXPECT_EQ(blocks_of_tile(p, 64, 192, 64), 4);

  Sm90ForwardConfig other = config;
  other.row_groups = 1;
  EXPECT_EQ(row_shift(p, other), 0) << "split-KV";
  other = config;
  other.modifiers.bias = true;
  EXPECT_EQ(row_shift(p, other), 0) << "modifiers";
  other = config;
  other.warpgroups = 2;
  EXPECT_EQ(row_shift(problem(1, 1, 4160, 128, Causal::top_left), other), 0) << "two warpgroups";
  p.varlen = true;
  EXPECT_EQ(row_shift(p, config), 0) << "varlen";
}

// Every group of heads that is mixed, including the last, fits L2; long heads, of which several
// tiles are in flight at once, are all mixed.
TEST(TileOrder, EveryGroupOfHeadsFitsL2) {
  for (const Element element : {Element::f16, Element::e4m3})
    for (const int d : {64, 128, 256})
      for (int s = 512; s <= 16384; s *= 2) {
        const Sm90ForwardConfig config{.element = element,
                                       .v_element = element,
                                       .head_dim = d,
                                       .warpgroups = d == 256 ? 2 : 3};
        const int h = 2048 / d;
        const Problem p = problem(16384 / s, h, s, d, Causal::top_left);
        const TileOrder order = tile_order(p, config, h200());
        const i64 heads = p.batch * h;
        const i64 last = heads - i64{order.heads_per_group} * (order.groups - 1);
        ASSERT_GT(last, 0) << d << " " << s;
        if (order.groups == 1) {
          EXPECT_EQ(order.heads_per_group, heads);
          EXPECT_GE(s, 4096) << d;
          continue;
        }
        const i64 key_bytes = element == Element::f16 ? 4 : 2;
        EXPECT_LE(std::max<i64>(order.heads_per_group, last) * s * d * key_bytes, h200().l2_bytes)
            << d << " " << s;
      }
}

// Without a mask every CTA gets its share of the partial tiles, the last of each head.
TEST(TileOrder, ShortTilesAreShared) {
  const Sm90ForwardConfig config{.head_dim = 128, .warpgroups = 3};
  for (const auto& [b, h, s] : {std::array{32, 16, 512},
                                {16, 16, 1024},
                                {8, 16, 2048},
                                {4, 16, 4096},
                                {1, 16, 8000},
                                {3, 7, 1000},
                                {1, 1, 200}}) {
    const Problem p = problem(b, h, s, 128);
    const TileOrder order = tile_order(p, config, h200());
    const i64 row_tiles = div_up<i64>(s, sm90::block_m(config));
    const i64 heads = i64{b} * h, tiles = row_tiles * heads, grid = std::min<i64>(132, tiles);
    std::vector<i64> taken(static_cast<std::size_t>(grid)), full(taken);
    for (i64 index = 0; index < tiles; ++index) {
      const i64 cta = cta_of_tile(order, grid, index);
      ASSERT_TRUE(cta >= 0 && cta < grid) << cta;
      ++taken[static_cast<std::size_t>(cta)];
      const bool is_full = row_of_tile(order, row_tiles, heads, index) + 1 < row_tiles;
      full[static_cast<std::size_t>(cta)] += is_full ? 1 : 0;
    }
    const i64 rounds = div_up(tiles, grid);
    EXPECT_EQ(*std::max_element(taken.begin(), taken.end()), rounds);
    EXPECT_LE(*std::max_element(full.begin(), full.end()), rounds - rounds / row_tiles) << b << s;
  }
}

// The short tiles come last if the last round then has only short tiles: 1,376 tiles of 192 rows,
// 16 of them with 64 rows, fill 11 rounds of 132 CTAs, and 12 of 124.
TEST(TileOrder, ShortTilesFillTheLastRound) {
  const Sm90ForwardConfig config{.head_dim = 128, .warpgroups = 3};
  Problem p = problem(1, 16, 16384, 128);
  EXPECT_FALSE(tile_order(p, config, h200()).short_tiles_last);
  p.options.sm_margin = 8;
  const TileOrder order = tile_order(p, config, h200());
  EXPECT_TRUE(order.short_tiles_last);
  constexpr i64 kRowTiles = 86, kHeads = 16;
  std::vector<i64> full(124);
  std::array<int, kRowTiles> seen{};
  for (i64 index = 0; index < kRowTiles * kHeads; ++index) {
    const i64 row = row_of_tile(order, kRowTiles, kHeads, index);
    ++seen.at(static_cast<std::size_t>(row));
    if (row + 1 < kRowTiles) ++full.at(static_cast<std::size_t>(cta_of_tile(order, 124, index)));
  }
  for (const int times : seen) EXPECT_EQ(times, kHeads);
  EXPECT_EQ(*std::max_element(full.begin(), full.end()), 11);
  // The short tiles are shared where that is as even, and there are none without a partial tile.
  EXPECT_FALSE(tile_order(problem(32, 16, 512, 128), config, h200()).short_tiles_last);
  EXPECT_FALSE(tile_order(problem(1, 16, 192 * 86, 128), config, h200()).short_tiles_last);
  EXPECT_FALSE(tile_order(problem(1, 200, 100, 128), config, h200()).short_tiles_last);
}

// With many heads, as many are mixed as fill whole waves and fit L2.
TEST(TileOrder, MixedHeadsFillRoundsAndFitL2) {
  Problem p = problem(32, 8, 512, 256, Causal::top_left);
  const Sm90ForwardConfig config{.head_dim = 256, .warpgroups = 2};
  const i64 kv_bytes = 4 * 512 * 256;
  const i64 mixed = tile_order(p, config, h200()).heads_per_group;
  EXPECT_EQ(mixed * 4 % 132, 0) << mixed;
  EXPECT_LE(mixed * kv_bytes, h200().l2_bytes);
  EXPECT_LT(mixed, 256 / 4);
  // The keys of few heads stay in L2 in any order.
  p.batch = 4;
  EXPECT_EQ(tile_order(p, config, h200()).heads_per_group, 32);
  // If the number that fills whole waves does not fit L2, a smaller even number does.
  p = problem(8, 8, 2048, 256, Causal::top_left);
  EXPECT_LE(tile_order(p, config, h200()).heads_per_group * 4 * 2048 * 256, h200().l2_bytes);
  // 8-bit keys need half the memory. The remainder of 64 heads is a separate group.
  const Sm90ForwardConfig codes{
      .element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2};
  EXPECT_EQ(tile_order(p, codes, h200()).heads_per_group, 33);
  EXPECT_EQ(tile_order(p, codes, h200()).groups, 2);
  // Long keys stay in L2 only if few heads are mixed, or if heads share them.
  p = problem(32, 32, 2048, 256, Causal::top_left);
  EXPECT_LE(tile_order(p, config, h200()).heads_per_group * 4 * 2048 * 256, h200().l2_bytes);
  p.heads_kv = 8;
  EXPECT_EQ(tile_order(p, config, h200()).heads_per_group, 33);
  p.options.causal = Causal::none;
  EXPECT_EQ(tile_order(p, config, h200()).heads_per_group, 1);
  EXPECT_EQ(tile_order(p, config, h200()).groups, 32 * 32);
}

}  // namespace
}  // namespace octavo
