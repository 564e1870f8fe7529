// The order in which the CTAs of a Hopper forward kernel that stay take tiles, as
// device/sm90/scheduler.cuh has it, so that all get the same work: under a mask that gives tiles
// different lengths, and where a head's last tile is not full.
#pragma once

#include <cstdint>

#include "config/sm90_forward.h"
#include "gpu/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct TileOrder {
  i32 mixed_heads = 1;  // heads whose tiles are mixed
  i32 groups = 1;
  i32 turn = 0;  // places that a CTA moves on a round; 0: it goes there and back
};
TileOrder tile_order(const Problem& run_problem, const Sm90ForwardConfig& config,
                     const GpuInfo& gpu);

// Which row of tiles the index-th tile is of, and which CTA takes it.
std::int64_t row_of_tile(const TileOrder& order, std::int64_t row_tiles, std::int64_t heads,
                         std::int64_t index);
std::int64_t cta_of_tile(const TileOrder& order, std::int64_t grid, std::int64_t index);

// Blocks of keys that a tile of rows visits.
std::int64_t blocks_of_tile(const Problem& problem, std::int64_t first_row, std::int64_t block_m,
                            std::int64_t block_n);

}  // namespace octavo
