// The table of Hopper forward kernels that problems are given to, with what each of them was seen
// to take on an H200; those of the usual head dimensions are compiled when the library is built.
//
// A launch takes about fixed_us + waves * wave_us + blocks * block_us, where waves of tiles and
// blocks of block_n keys are those of the busiest SM; a CTA by itself takes `alone` times as long
// for a block as it does among as many as an SM holds. tools/search_sm90 times the kernels, fits
// the rows and writes them here (docs/kernels/sm90_forward.md). choose_sm90_forward takes the
// smallest.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm90_forward.h"

namespace octavo {
namespace sm90 {

struct TableRow {
  int head_dim, warpgroups, block_n, stages;
  int row_groups, cluster;  // of the form that divides keys; 0: warpgroups divide the rows
  bool overlap, own_o, ones;
  int resident;  // CTAs that an SM holds at once
  double alone;  // 1 where that is one
  double fixed_us, wave_us, block_us;
  int fold_columns = 0;  // in 8 bits
};

inline constexpr TableRow kTable[] = {
    {64, 2, 128, 1, 1, 1, false, false, true, 2, 1.3, 1.329, 1.0889, 1.08518},
    {64, 1, 64, 2, 1, 1, true, false, true, 4, 2.4, 0.928, 0.7755, 0.30209},
    {64, 3, 128, 3, 0, 0, true, false, true, 1, 1.0, 2.927, 1.4659, 1.47477},
    {64, 2, 256, 1, 1, 1, false, false, true, 1, 1.0, 0.060, 1.7465, 2.58289},
    {64, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.520, 2.1095, 1.36395},
    {64, 1, 128, 2, 1, 2, false, false, false, 2, 1.4, 1.266, 1.3615, 0.69826},
    {64, 4, 64, 4, 0, 0, true, false, true, 1, 1.0, 2.595, 1.5576, 1.04174},
    {64, 2, 128, 2, 2, 1, false, false, true, 2, 1.4, 1.002, 0.8435, 1.12973},
    {64, 2, 128, 3, 0, 0, true, true, true, 1, 1.0, 3.416, 1.1419, 1.24781},
    {64, 1, 128, 1, 1, 2, true, false, false, 3, 2.5, 0.137, 1.8555, 0.65706},
    {96, 1, 256, 1, 1, 1, false, false, false, 2, 1.4, 0.859, 1.1880, 1.58973},
    {96, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.435, 2.0879, 1.43114},
    {96, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.693, 2.3115, 1.78919},
    {96, 1, 64, 2, 1, 1, true, false, true, 3, 2.3, 0.000, 1.1654, 0.42853},
    {96, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.994, 1.6174, 1.74277},
    {96, 3, 96, 2, 0, 0, true, false, true, 1, 1.0, 0.614, 3.0638, 1.42819},
    {96, 2, 64, 2, 2, 1, true, false, true, 2, 1.4, 0.456, 2.0000, 0.75398},
    {96, 1, 128, 2, 1, 2, false, false, true, 1, 1.0, 1.121, 1.6672, 1.33511},
    {96, 3, 64, 4, 0, 0, true, true, true, 1, 1.0, 2.203, 1.3194, 1.08493},
    {96, 2, 64, 2, 1, 1, true, false, true, 1, 1.0, 1.146, 1.5964, 1.00046},
    {128, 2, 128, 2, 0, 0, true, true, true, 1, 1.0, 2.096, 2.6697, 1.65651},
    {128, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 0.298, 1.9576, 2.04285},
    {128, 3, 80, 2, 0, 0, true, true, true, 1, 1.0, 0.000, 3.8033, 1.41491},
    {128, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.652, 2.4404, 2.06491},
    {128, 2, 64, 2, 2, 1, false, false, true, 2, 1.4, 0.000, 2.4705, 0.91674},
    {128, 3, 64, 4, 0, 0, true, false, true, 1, 1.0, 0.630, 2.4577, 1.22948},
    {128, 2, 64, 4, 0, 0, true, true, true, 1, 1.0, 2.849, 1.2553, 0.97086},
    {128, 2, 80, 2, 0, 0, true, false, true, 1, 1.0, 0.955, 2.8122, 1.11209},
    {128, 3, 80, 2, 0, 0, true, false, true, 1, 1.0, 0.000, 3.3305, 1.45161},
    {128, 2, 64, 2, 1, 1, true, false, false, 1, 1.0, 0.894, 1.4953, 1.14770},
    {192, 2, 64, 2, 0, 0, true, true, true, 1, 1.0, 0.732, 3.4569, 1.11830},
    {192, 1, 128, 2, 1, 1, true, false, false, 1, 1.0, 1.124, 1.7178, 1.59630},
    {192, 1, 128, 1, 1, 2, false, false, true, 1, 1.0, 1.062, 2.6659, 1.79271},
    {192, 2, 80, 2, 0, 0, true, false, true, 1, 1.0, 0.904, 2.9369, 1.44337},
    {192, 1, 64, 2, 1, 2, true, false, false, 1, 1.0, 1.082, 2.6195, 1.00015},
    {192, 2, 64, 2, 0, 0, true, false, true, 1, 1.0, 0.505, 3.1150, 1.18755},
    {256, 2, 64, 2, 0, 0, true, false, false, 1, 1.0, 0.000, 4.0289, 1.39576},
    {256, 1, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.415, 3.5213, 2.28414},
    {256, 1, 128, 1, 1, 1, false, false, false, 1, 1.0, 0.174, 1.9388, 2.36555},
    {256, 2, 80, 2, 0, 0, true, false, false, 1, 1.0, 0.000, 3.0404, 1.85350},
    {256, 1, 64, 2, 1, 2, true, false, false, 1, 1.0, 0.779, 3.3480, 1.18061},
};

// The same in 8 bits, where sums are exact and O is stored from registers; timed at 64 and 128
// columns and in part at 256, guessed at 96 and 192.
inline constexpr TableRow kTable8Bit[] = {
    {64, 3, 128, 2, 0, 0, true, false, false, 1, 1.0, 4.113, 2.1062, 1.34740, 32},
    {64, 1, 128, 1, 1, 1, false, false, false, 3, 1.0, 3.372, 1.5886, 0.49995, 64},
    {64, 4, 64, 4, 0, 0, true, false, false, 1, 1.0, 3.755, 2.2820, 1.00640, 32},
    {64, 1, 128, 2, 1, 2, false, false, false, 3, 1.0, 2.804, 1.8695, 0.49702, 64},
    {64, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 1.289, 2.4372, 1.16915, 64},
    {96, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 2.5, 1.9, 1.2, 96},
    {96, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 1.3, 2.0, 1.3, 96},
    {128, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 2.710, 2.7717, 1.24709, 128},
    {128, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 1.667, 2.9731, 1.52498, 128},
    {192, 2, 64, 4, 0, 0, true, false, false, 1, 1.0, 2.0, 3.3, 0.9, 64},
    {192, 1, 128, 1, 1, 2, false, false, false, 1, 1.0, 1.6, 3.0, 1.5, 96},
    {256, 2, 64, 4, 0, 0, true, false, false, 1, 1.0, 2.0, 4.0, 1.1, 64},
    {256, 1, 64, 2, 1, 2, false, false, false, 1, 1.0, 1.5, 3.0, 1.0, 128},
};

// For outputs without LSE; in 8 bits for one scale of K a head.
OCTAVO_HD constexpr Sm90Forward config_of(const TableRow& row, Element element) {
  Sm90Forward c;
  c.element = element;
  c.out = element == Element::bf16 ? Element::bf16 : Element::f16;
  c.head_dim = row.head_dim;
  c.warpgroups = row.warpgroups;
  c.block_n = row.block_n;
  c.stages = row.stages;
  c.split_keys = row.cluster > 0;
  c.row_groups = max_of(row.row_groups, 1);
  c.cluster = max_of(row.cluster, 1);
  c.overlap = row.overlap;
  c.persistent = !c.split_keys;
  c.own_o = row.own_o;
  c.ones = row.ones;
  c.fold_columns = row.fold_columns;
  return c;
}

inline constexpr Element kShippedElements[] = {Element::f16, Element::bf16};

OCTAVO_HD constexpr bool is_shipped(const TableRow& row) {
  return row.head_dim == 64 || row.head_dim == 128 || row.head_dim == 256;
}

}  // namespace sm90
}  // namespace octavo
