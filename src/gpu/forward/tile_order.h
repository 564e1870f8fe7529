// SPDX-License-Identifier: Apache-2.0
// The order in which persistent CTAs of the Hopper forward kernel take tiles, as implemented in
// device/sm90/scheduler.cuh. It balances the work under a mask that gives tiles different lengths,
// and if the last tile of a head is not full.
#pragma once

#include <cstdint>

#include "config/sm90_forward.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The SMs of the GPU less those that the caller wants free, for persistent kernels.
std::int64_t sms_of_grid(std::int64_t sms, const Options& options);

struct TileOrder {
  i32 heads_per_group = 1;  // heads per group; a group's tiles are interleaved by row
  i32 groups = 1;
  i32 rotation = 0;  // how far a CTA's position shifts each round; 0: the direction alternates
  bool short_tiles_last = false;  // the last tile of each head comes after all other tiles
};
// Rows by which the tiles of a head begin earlier (sm90::row_shift), 0 if they do not.
std::int64_t row_shift(const Problem& kernel_problem, const Sm90ForwardConfig& config);

TileOrder tile_order(const Problem& kernel_problem, const Sm90ForwardConfig& config,
                     const GpuInfo& gpu);

// The relative time of a tile that has only so many rows: warpgroups without rows skip it.
double short_share(const Sm90ForwardConfig& config, std::int64_t rows);

// The m_block of the index-th tile, and the CTA that takes it.
std::int64_t row_of_tile(const TileOrder& order, std::int64_t row_tiles, std::int64_t heads,
                         std::int64_t index);
std::int64_t cta_of_tile(const TileOrder& order, std::int64_t grid, std::int64_t index);

// The number of KV blocks that a tile of query rows visits.
std::int64_t blocks_of_tile(const Problem& problem, std::int64_t first_row, std::int64_t block_m,
                            std::int64_t block_n);

}  // namespace octavo
