// The table of Hopper forward kernels that problems are given to, with what each of them was seen
// to take on an H200; those of the usual head dimensions are compiled when the library is built.
//
// A launch takes about fixed_us + tiles * tile_us + blocks * block_us, where tiles and blocks (of
// block_n keys) are those of the busiest SM: fitted to the times of docs/kernels/sm90_forward.md
// for 64 and 128 columns, which it meets to 3 to 7%, and in block_us for 256; the rows of 96 and
// 192 are estimates. choose_sm90_forward takes the smallest.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm90_forward.h"

namespace octavo {
namespace sm90 {

struct TableRow {
  int head_dim, warpgroups, block_n, stages;
  int cluster;  // CTAs that divide the keys, as their warpgroups do; 0: warpgroups divide the rows
  bool own_o, ones;
  double fixed_us, tile_us, block_us;
};

inline constexpr TableRow kTable[] = {
    {64, 3, 128, 2, 0, true, true, 2.89, 1.505, 1.5067},
    {64, 4, 64, 4, 0, true, true, 1.64, 1.833, 1.1786},
    {64, 2, 128, 2, 0, true, true, 3.39, 1.672, 1.2652},
    {64, 1, 128, 2, 2, false, true, 2.80, 1.054, 0.7254},
    {64, 2, 128, 1, 2, false, true, 0.60, 2.295, 1.9744},
    {96, 3, 96, 2, 0, true, true, 2, 2, 1.4},
    {128, 3, 80, 2, 0, true, true, 0.5, 2.904, 1.4738},
    {128, 2, 128, 2, 0, true, true, 1.82, 2.478, 1.7106},
    {128, 2, 128, 1, 1, false, true, 0.60, 3.446, 2.5754},
    {128, 2, 128, 1, 2, false, true, 2.05, 2.3, 2.95},
    {192, 2, 96, 2, 0, false, false, 2, 3, 1.9},
    {256, 2, 80, 2, 0, false, false, 2, 4, 1.7898},
    {256, 2, 64, 2, 0, false, false, 2, 3.6, 1.4785},
};
inline constexpr int kRowsOfTable = static_cast<int>(sizeof(kTable) / sizeof(kTable[0]));

// Without LSE.
OCTAVO_HD constexpr Sm90Forward config_of(const TableRow& row, Element element) {
  Sm90Forward c;
  c.element = element;
  c.out = element;
  c.head_dim = row.head_dim;
  c.warpgroups = row.warpgroups;
  c.block_n = row.block_n;
  c.stages = row.stages;
  c.split_keys = row.cluster > 0;
  c.cluster = max_of(row.cluster, 1);
  c.persistent = !c.split_keys;
  c.own_o = row.own_o;
  c.ones = row.ones;
  return c;
}

inline constexpr Element kShippedElements[] = {Element::f16, Element::bf16};

OCTAVO_HD constexpr bool is_shipped(const TableRow& row) {
  return row.head_dim == 64 || row.head_dim == 128 || row.head_dim == 256;
}

}  // namespace sm90
}  // namespace octavo
