// SPDX-License-Identifier: Apache-2.0
// The candidate configurations of the search.
#include <array>
#include <vector>

#include "times.h"

namespace octavo::search_sm90 {
namespace {

using Configs = std::vector<Sm90ForwardConfig>;

// Configurations whose registers or shared memory do not fit, or that spill, are dropped later.
Configs candidates_16_bit(int head_dim) {
  Configs configs;
  for (const int warpgroups : {2, 3, 4})
    for (const int block_n : {64, 80, 96, 112, 128})
      for (const int stages : {2, 3, 4, 6})
        for (const bool sum_rounded_p : {true, false}) {
          // Sums of the rounded P were faster wherever the columns of ones fit.
          if (sum_rounded_p == (head_dim == 256)) continue;
          if (stages * block_n > 384 || (stages == 3 && block_n < 128)) continue;
          if (stages == 4 && block_n > 64) continue;
          configs.push_back({.head_dim = head_dim,
                             .warpgroups = warpgroups,
                             .block_n = block_n,
                             .stages = stages,
                             .schedule = Schedule::qk_first,
                             .sum_rounded_p = sum_rounded_p});
        }
  // P V first was faster at head_dim 64.
  for (const int warpgroups : {2, 3, 4})
    for (const auto& [block_n, stages] :
         {std::array{64, 2}, {64, 3}, {64, 4}, {80, 3}, {96, 2}, {96, 3}, {128, 2}})
      for (const Schedule schedule : {Schedule::pv_first_queued, Schedule::pv_first})
        configs.push_back({.head_dim = head_dim,
                           .warpgroups = warpgroups,
                           .block_n = block_n,
                           .stages = stages,
                           .schedule = schedule,
                           .sum_rounded_p = head_dim != 256});
  for (const auto& [warpgroups, row_groups] : {std::array{1, 1}, {2, 1}, {2, 2}, {4, 1}})
    for (const auto& [block_n, stages] : {std::array{256, 1}, {128, 1}, {128, 2}, {64, 2}})
      for (const int cluster : {1, 2})
        for (const Schedule schedule : {Schedule::qk_first, Schedule::in_turn})
          for (const bool sum_rounded_p : {true, false}) {
            if (schedule == Schedule::qk_first && block_n == 256) continue;
            if (sum_rounded_p && head_dim == 256) continue;
            configs.push_back({.head_dim = head_dim,
                               .warpgroups = warpgroups,
                               .block_n = block_n,
                               .stages = stages,
                               .schedule = schedule,
                               .row_groups = row_groups,
                               .cluster = cluster,
                               .sum_rounded_p = sum_rounded_p});
          }
  return configs;
}

// More stages: at head_dim 64 up to 4% under a mask, with INT8 1 to 2% without; at 128 and 256
// within 1%. Six stages with FP8 are slower if the tiles are one wave: (2,8,2048) takes 27.9 us
// with two, 28.1 with three and 28.9 with six.
void add_stages(Sm90ForwardConfig c, Configs& configs) {
  if (c.head_dim != 64 || sm90::is_split_kv(c) || c.schedule == Schedule::qk_first) return;
  const int before = c.stages;
  for (const int stages : {3, 6}) {
    c.stages = stages;
    const bool tried = c.element == Element::int8 || (sm90::has_f16_scores(c) && stages == 3);
    if (stages > before && tried && is_wanted(c)) configs.push_back(c);
  }
}

// The slices of P V: as many columns as registers hold, or fewer, because the compiler may need
// more registers than estimated; fewer still if head_dim is large or an SM is to hold several CTAs.
void add_slices(Sm90ForwardConfig c, Configs& configs) {
  int slices = 0;
  for (const int pv_columns : {192, 128, 96, 64, 32, 16}) {
    if (c.head_dim % pv_columns != 0) continue;
    c.pv_columns = pv_columns;
    if (!is_wanted(c)) continue;
    configs.push_back(c);
    if (slices == 0) add_stages(c, configs);
    if (++slices == 2 && c.head_dim < 256 && c.min_ctas == 1) break;
  }
}

// The base configuration of a group.
Sm90ForwardConfig plain_8_bit(const Group& group) {
  Sm90ForwardConfig c;
  c.element = c.v_element = group.element;
  c.head_dim = group.head_dim;
  c.scores = group.scores;
  return c;
}

void add_persistent_8_bit(const Group& group, Configs& configs) {
  Sm90ForwardConfig c = plain_8_bit(group);
  for (const int warpgroups : {2, 3, 4})
    for (const int block_n : {64, 96, 128, 160, 192, 224, 256}) {
      const bool large = block_n > sm90::kMaxPromotedKeys;
      if (large && c.element != Element::int8) continue;
      // 2% or more slower, when last timed.
      if (warpgroups == 2 && c.head_dim == 64 && !large) continue;
      c.warpgroups = warpgroups;
      c.block_n = block_n;
      c.stages = block_n < 128 ? 4 : 2;
      c.pv_buffers = 1;
      c.schedule = Schedule::qk_first;
      if (!large) add_slices(c, configs);
      c.schedule = Schedule::pv_first;
      if (block_n < 96 && sm90::has_f16_scores(c)) {
        add_slices(c, configs);
        continue;
      }
      for (const int pv_buffers : {1, 2})
        for (const Schedule schedule : {Schedule::pv_first, Schedule::pv_first_queued}) {
          c.pv_buffers = pv_buffers;
          c.schedule = schedule;
          add_slices(c, configs);
        }
    }
}

void add_split_kv_8_bit(const Group& group, Configs& configs) {
  Sm90ForwardConfig c = plain_8_bit(group);
  const auto add = [&](int warpgroups, int row_groups, int block_n, int stages, int min_ctas) {
    c.warpgroups = warpgroups;
    c.row_groups = row_groups;
    c.block_n = block_n;
    c.stages = stages;
    c.min_ctas = min_ctas;
    c.pv_buffers = block_n > sm90::kMaxPromotedKeys ? 2 : 1;  // each half of the keys has one
    c.schedule = stages == 1 ? Schedule::in_turn : Schedule::pv_first;
    add_slices(c, configs);
    // Usually there is one block.
    if (block_n != 128 || c.cluster > 1) return;
    c.schedule = Schedule::pv_first_queued;
    add_slices(c, configs);
  };
  for (const int cluster : {1, 2}) {
    c.cluster = cluster;
    for (const auto& [block_n, stages] : {std::array{128, 1}, {128, 2}, {64, 2}}) {
      add(1, 1, block_n, stages, 1);
      // More CTAs per SM than the registers suggest, for grids that just fill that many.
      if (cluster == 1) add(1, 1, block_n, stages, 4);
    }
    if (cluster == 1) add(1, 1, 128, 2, 3);
    add(2, 1, 128, 1, 1);
    add(2, 1, 160, 1, 1);
    add(1, 1, 256, 1, 1);
    add(2, 1, 256, 1, 1);
    add(4, 1, 128, 1, 1);
    add(2, 2, 128, 1, 1);
  }
}

}  // namespace

Rows candidates(const Group& group) {
  Configs configs;
  if (group.element == Element::f16) {
    configs = candidates_16_bit(group.head_dim);
    std::erase_if(configs, [](const Sm90ForwardConfig& c) { return !is_wanted(c); });
  } else {
    add_persistent_8_bit(group, configs);
    add_split_kv_8_bit(group, configs);
  }
  Rows rows;
  for (const Sm90ForwardConfig& config : configs)
    rows.push_back({.config = config, .estimate = {}});
  return rows;
}

}  // namespace octavo::search_sm90
