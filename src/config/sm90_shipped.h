// The table of Hopper forward kernels that problems are given to, with what each of them was seen
// to take on an H200; those of the usual head dimensions are compiled when the library is built.
//
// A launch takes about fixed_us + waves * wave_us + blocks * block_us, where waves of tiles and
// blocks of block_n keys are those of the busiest SM. tools/search_sm90 times the kernels, fits
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
  double fixed_us, wave_us, block_us;
  int fold_columns = 0;  // in 8 bits
};

inline constexpr TableRow kTable[] = {
    {64, 2, 128, 1, 1, 1, false, false, true, 2, 1.917, 1.4462, 1.04410},
    {64, 1, 128, 1, 1, 1, false, false, true, 4, 3.601, 0.6255, 0.55393},
    {64, 2, 256, 1, 1, 1, false, false, true, 1, 0.176, 2.0333, 2.54772},
    {64, 3, 128, 3, 0, 0, true, false, true, 1, 2.897, 1.4138, 1.49704},
    {64, 1, 128, 2, 1, 2, false, false, true, 2, 1.700, 1.4994, 0.68567},
    {64, 4, 64, 4, 0, 0, true, false, true, 1, 2.595, 1.5576, 1.04174},
    {64, 1, 64, 2, 1, 1, true, false, true, 4, 4.181, 0.5903, 0.29926},
    {64, 2, 128, 2, 0, 0, true, false, true, 1, 2.456, 1.5871, 1.22617},
    {64, 1, 256, 1, 1, 2, false, false, true, 2, 1.533, 1.9138, 1.17704},
    {64, 2, 128, 1, 1, 1, false, false, false, 1, 0.788, 1.8774, 1.42847},
    {96, 1, 256, 1, 1, 1, false, false, false, 2, 1.995, 1.7526, 1.58718},
    {96, 2, 128, 3, 0, 0, true, true, true, 1, 3.580, 1.6590, 1.46152},
    {96, 1, 128, 2, 1, 2, false, false, false, 1, 1.312, 2.0933, 1.30245},
    {96, 3, 96, 2, 0, 0, true, true, true, 1, 0.851, 2.8453, 1.45768},
    {96, 2, 128, 1, 1, 1, false, false, true, 1, 1.422, 2.2357, 1.61885},
    {96, 3, 64, 4, 0, 0, true, true, true, 1, 2.004, 1.3733, 1.10959},
    {96, 2, 64, 2, 2, 1, true, false, false, 2, 1.384, 4.4906, 0.72210},
    {96, 1, 256, 1, 1, 2, false, false, false, 1, 1.184, 2.3267, 2.09624},
    {96, 2, 128, 3, 0, 0, true, false, true, 1, 2.540, 1.9908, 1.46045},
    {96, 2, 80, 2, 0, 0, true, false, true, 1, 1.687, 2.6041, 0.96697},
    {128, 2, 128, 2, 0, 0, true, false, true, 1, 1.410, 3.0528, 1.67542},
    {128, 2, 128, 1, 1, 1, false, false, false, 1, 0.819, 2.2716, 1.99921},
    {128, 3, 80, 2, 0, 0, true, true, true, 1, 0.000, 3.8248, 1.42817},
    {128, 2, 64, 4, 0, 0, true, true, true, 1, 2.876, 1.2554, 0.97206},
    {128, 1, 256, 1, 1, 2, false, false, true, 1, 1.201, 2.5223, 2.48890},
    {128, 3, 64, 4, 0, 0, true, false, true, 1, 0.671, 2.4139, 1.23497},
    {128, 2, 128, 2, 0, 0, true, true, true, 1, 2.195, 2.8916, 1.65002},
    {128, 2, 80, 2, 0, 0, true, false, true, 1, 0.909, 2.8661, 1.11381},
    {128, 3, 80, 2, 0, 0, true, false, true, 1, 0.000, 3.2787, 1.46565},
    {128, 1, 64, 2, 1, 2, true, false, false, 2, 2.326, 2.0538, 0.53739},
    {192, 2, 64, 2, 0, 0, true, true, true, 1, 0.759, 3.3710, 1.12801},
    {192, 1, 128, 1, 1, 2, false, false, false, 1, 1.591, 3.0248, 1.82571},
    {192, 2, 128, 1, 2, 2, false, false, false, 1, 1.483, 3.7124, 2.90404},
    {192, 2, 80, 2, 0, 0, true, false, true, 1, 0.853, 2.9574, 1.44965},
    {192, 1, 64, 2, 1, 2, true, false, false, 1, 1.573, 3.1637, 0.96949},
    {192, 2, 64, 2, 0, 0, true, false, true, 1, 0.502, 3.1229, 1.18803},
    {192, 1, 128, 2, 1, 1, true, false, false, 1, 1.933, 2.3876, 1.61756},
    {256, 2, 64, 2, 0, 0, true, false, false, 1, 0.000, 4.0673, 1.39519},
    {256, 1, 64, 2, 1, 2, true, false, false, 1, 1.532, 3.9305, 1.14847},
    {256, 2, 80, 2, 0, 0, true, false, false, 1, 0.000, 3.1090, 1.86350},
    {256, 1, 128, 1, 1, 1, false, false, false, 1, 1.357, 3.0352, 2.35217},
};

// The same in 8 bits, where sums are exact and O is stored from registers; timed at 64 and 128
// columns and in part at 256, guessed at 96 and 192.
inline constexpr TableRow kTable8Bit[] = {
    {64, 3, 128, 2, 0, 0, true, false, false, 1, 4.113, 2.1062, 1.34740, 32},
    {64, 1, 128, 1, 1, 1, false, false, false, 3, 3.372, 1.5886, 0.49995, 64},
    {64, 4, 64, 4, 0, 0, true, false, false, 1, 3.755, 2.2820, 1.00640, 32},
    {64, 1, 256, 1, 1, 2, false, false, false, 2, 2.107, 2.2102, 0.93641, 64},
    {64, 2, 256, 1, 1, 1, false, false, false, 1, 1.330, 2.1879, 2.15091, 64},
    {96, 2, 128, 2, 0, 0, true, false, false, 1, 2.5, 1.9, 1.2, 96},
    {96, 2, 128, 1, 1, 1, false, false, false, 1, 1.3, 2.0, 1.3, 96},
    {128, 2, 128, 2, 0, 0, true, false, false, 1, 2.710, 2.7717, 1.24709, 128},
    {128, 2, 128, 1, 1, 1, false, false, false, 1, 1.667, 2.9731, 1.52498, 128},
    {192, 2, 64, 4, 0, 0, true, false, false, 1, 2.0, 3.3, 0.9, 64},
    {192, 1, 128, 1, 1, 2, false, false, false, 1, 1.6, 3.0, 1.5, 96},
    {256, 2, 64, 4, 0, 0, true, false, false, 1, 2.0, 4.0, 1.1, 64},
    {256, 1, 64, 2, 1, 2, false, false, false, 1, 1.5, 3.0, 1.0, 128},
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
