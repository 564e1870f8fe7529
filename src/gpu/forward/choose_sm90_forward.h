// Chooses the configuration of the Hopper forward kernel for a problem.
#pragma once

#include <span>
#include <string>

#include "config/sm90_shipped.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Whether the Hopper kernel supports a problem that GPUs support, if TMA can address its tensors:
// 16-bit, FP8 or INT8 operands, or 8-bit Q and K with 16-bit V, given or quantized first, on sm_90
// with a driver that can encode tensor maps.
bool sm90_forward_serves(const Problem& problem, const GpuInfo& gpu);

// The load of the SM with the most work: the terms of the table's time estimate.
struct SmLoad {
  double waves = 0;   // tiles, divided by how many an SM holds at once
  double blocks = 0;  // blocks of block_n keys in all its tiles
  double chain = 0;   // the largest number of those blocks that run one after another
};
SmLoad busiest_sm(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

// The time that the table estimates for a problem with one of its rows.
double estimated_us(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

struct ChosenSm90Forward {
  Sm90ForwardConfig config;
  std::string reason;
  bool early_start = false;  // programmatic dependent launch: may start before earlier grids end
};
ChosenSm90Forward choose_sm90_forward(const Problem& problem, const GpuInfo& gpu);

}  // namespace octavo
