// Which configuration of the Hopper forward kernel serves a problem.
#pragma once

#include <span>
#include <string>

#include "config/sm90_shipped.h"
#include "gpu/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// That the Hopper kernel serves a problem that a GPU serves, where TMA reaches its tensors: 16-bit
// elements, FP8 or INT8, or those for Q and K beside V of 16 bits, given or made first, on that
// chip, by a driver that tells TMA of them.
bool sm90_forward_serves(const Problem& problem, const GpuInfo& gpu);

// What the SM with the most work gets of a problem: the terms of the table's estimate.
struct SmLoad {
  double waves = 0;   // of tiles, as many at once as an SM holds
  double blocks = 0;  // of block_n keys, in all of them
  double chain = 0;   // of these, what follows one another in the place of one CTA
};
SmLoad busiest_sm(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

// The table's guess at how long a problem takes with one of its rows.
double estimated_us(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

struct ChosenSm90Forward {
  Sm90ForwardConfig config;
  std::string reason;
  bool early_start = false;  // launched so that it may start before earlier grids have ended
};
ChosenSm90Forward choose_sm90_forward(const Problem& problem, const GpuInfo& gpu);

}  // namespace octavo
