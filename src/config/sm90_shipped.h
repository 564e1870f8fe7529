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

// How 8-bit kernels get from scores to P: each way has rows of its own.
enum class Scores8Bit : u8 {
  f32,
  f16,       // in FP8, where |q k| is known to fit
  f16_codes  // and P by arithmetic on codes
};

struct TableRow {
  int head_dim, warpgroups, block_n, stages;
  int row_groups, cluster;  // of the form that divides keys; 0: warpgroups divide the rows
  bool overlap, own_o, ones;
  int resident;  // CTAs that an SM holds at once
  double alone;  // 1 where that is one
  double fixed_us, wave_us, block_us;
  // In 8 bits:
  int fold_columns = 0;
  Scores8Bit scores = Scores8Bit::f32;
  int ctas = 1;
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

// The same in 8 bits, where O is stored from registers. Timed with scales for blocks of K's rows;
// at 192 columns guessed, and 160 keys for codes at 128 columns fitted to three shapes with a scale
// a head.
inline constexpr TableRow kTable8Bit[] = {
    {64, 1, 128, 2, 1, 1, false, false, false, 2, 1.8, 0.538, 1.2668, 0.81817, 64, Scores8Bit::f32,
     1},
    {64, 3, 128, 2, 0, 0, true, false, false, 1, 1.0, 3.323, 2.5397, 1.85024, 32, Scores8Bit::f32,
     1},
    {64, 1, 128, 1, 1, 2, false, false, false, 2, 1.1, 1.522, 1.6741, 0.81196, 64, Scores8Bit::f32,
     1},
    {64, 1, 64, 2, 1, 1, false, false, false, 4, 2.8, 0.127, 1.3177, 0.42301, 32, Scores8Bit::f32,
     4},
    {64, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.430, 2.4516, 1.66314, 64, Scores8Bit::f32,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 4, 2.7, 0.641, 1.3154, 0.47903, 32, Scores8Bit::f16,
     4},
    {64, 1, 128, 1, 1, 2, false, false, true, 3, 2.9, 0.597, 1.9861, 0.47527, 64, Scores8Bit::f16,
     1},
    {64, 3, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.795, 2.9673, 1.19363, 64, Scores8Bit::f16,
     1},
    {64, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.682, 2.4658, 1.16557, 64, Scores8Bit::f16,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 3, 2.6, 0.000, 1.7320, 0.48719, 64, Scores8Bit::f16,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 4, 2.9, 0.426, 1.4145, 0.36285, 32,
     Scores8Bit::f16_codes, 4},
    {64, 1, 128, 1, 1, 2, false, false, true, 3, 3.0, 0.438, 2.2983, 0.33524, 64,
     Scores8Bit::f16_codes, 1},
    {64, 3, 128, 2, 0, 0, true, false, true, 1, 1.0, 1.837, 3.0945, 0.83506, 64,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.804, 2.2655, 0.92470, 64,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.922, 1.8195, 0.98225, 64,
     Scores8Bit::f16_codes, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, 2, 1.6, 0.837, 1.8075, 0.71058, 96, Scores8Bit::f32,
     1},
    {96, 1, 128, 1, 1, 2, false, false, false, 2, 1.0, 1.511, 2.2906, 0.70182, 96, Scores8Bit::f32,
     1},
    {96, 3, 96, 4, 0, 0, true, false, false, 1, 1.0, 3.433, 3.5979, 1.31929, 32, Scores8Bit::f32,
     1},
    {96, 1, 64, 2, 1, 1, false, false, false, 3, 2.5, 0.000, 1.7300, 0.43304, 32, Scores8Bit::f32,
     1},
    {96, 2, 128, 2, 1, 2, false, false, false, 1, 1.0, 0.224, 3.5380, 1.46111, 96, Scores8Bit::f32,
     1},
    {96, 1, 128, 1, 1, 1, false, false, false, 3, 2.5, 0.000, 1.8037, 0.69205, 32, Scores8Bit::f16,
     1},
    {96, 1, 128, 1, 1, 2, false, false, true, 2, 1.1, 1.306, 2.4930, 0.73900, 96, Scores8Bit::f16,
     1},
    {96, 3, 128, 4, 0, 0, true, false, false, 1, 1.0, 3.693, 3.8355, 1.63115, 32, Scores8Bit::f16,
     1},
    {96, 1, 128, 1, 1, 1, false, false, true, 2, 1.7, 0.541, 2.1094, 0.74477, 96, Scores8Bit::f16,
     1},
    {96, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.309, 5.1400, 1.17210, 96, Scores8Bit::f16,
     1},
    {128, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 3.304, 3.2911, 1.51847, 128, Scores8Bit::f32,
     1},
    {128, 1, 128, 1, 1, 2, false, false, false, 2, 1.1, 1.893, 2.2801, 0.98104, 128,
     Scores8Bit::f32, 1},
    {128, 1, 128, 1, 1, 1, false, false, false, 2, 1.8, 0.545, 1.8056, 0.98540, 128,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.649, 3.0300, 1.95779, 128,
     Scores8Bit::f32, 1},
    {128, 1, 128, 2, 1, 1, false, false, true, 2, 1.7, 0.924, 1.5864, 0.73059, 128, Scores8Bit::f16,
     1},
    {128, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.985, 3.0339, 1.18615, 128, Scores8Bit::f16,
     1},
    {128, 1, 128, 1, 1, 2, false, false, true, 2, 1.1, 1.494, 2.4838, 0.70077, 128, Scores8Bit::f16,
     1},
    {128, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.888, 2.9212, 1.45432, 128, Scores8Bit::f16,
     1},
    {128, 2, 160, 2, 0, 0, true, false, true, 1, 1.0, 4.218, 3.0181, 1.43527, 128, Scores8Bit::f16,
     1},
    {128, 1, 128, 2, 1, 1, false, false, true, 2, 1.7, 0.693, 1.6748, 0.61498, 128,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.088, 3.1355, 0.93845, 128,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.988, 2.1121, 1.28500, 128,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 1.051, 2.6198, 1.31093, 128,
     Scores8Bit::f16_codes, 1},
    {128, 2, 160, 2, 0, 0, true, false, true, 1, 1.0, 3.112, 3.2133, 1.13126, 128,
     Scores8Bit::f16_codes, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 2.138, 3.8353, 1.66336, 64, Scores8Bit::f32,
     1},
    {192, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.790, 3.5882, 2.01125, 96, Scores8Bit::f32,
     1},
    {192, 1, 128, 1, 1, 1, false, false, false, 2, 1.6, 0.530, 2.5739, 1.03707, 96, Scores8Bit::f32,
     1},
    {192, 2, 160, 1, 1, 1, false, false, false, 1, 1.0, 0.887, 4.1146, 2.53878, 96, Scores8Bit::f32,
     1},
    {192, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.472, 4.0052, 1.55559, 96, Scores8Bit::f16,
     1},
    {192, 1, 64, 2, 1, 2, false, false, true, 2, 1.1, 1.986, 2.7421, 0.62544, 192, Scores8Bit::f16,
     1},
    {192, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.880, 3.7615, 1.95384, 192, Scores8Bit::f16,
     1},
    {256, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 1.073, 3.7605, 2.41096, 64, Scores8Bit::f32,
     1},
    {256, 2, 64, 4, 0, 0, true, false, false, 1, 1.0, 2.260, 3.9440, 1.18057, 64, Scores8Bit::f32,
     1},
    {256, 1, 128, 2, 1, 2, false, false, false, 1, 1.0, 1.142, 3.6651, 1.84678, 64, Scores8Bit::f32,
     1},
    {256, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 1.041, 3.6064, 2.29601, 64, Scores8Bit::f16,
     1},
    {256, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 1.708, 4.2433, 2.26389, 32, Scores8Bit::f16,
     1},
    {256, 1, 64, 2, 1, 1, false, false, true, 2, 1.7, 0.000, 3.0431, 0.72576, 64, Scores8Bit::f16,
     1},
    {256, 1, 128, 1, 1, 2, false, false, true, 1, 1.0, 1.278, 3.2864, 1.69284, 64, Scores8Bit::f16,
     1},
    {256, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.848, 3.3997, 2.09640, 64,
     Scores8Bit::f16_codes, 1},
    {256, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 1.352, 4.2756, 2.00331, 32,
     Scores8Bit::f16_codes, 1},
    {256, 1, 64, 2, 1, 1, false, false, true, 2, 1.6, 0.561, 2.6092, 0.67331, 64,
     Scores8Bit::f16_codes, 1},
    {256, 1, 128, 1, 1, 2, false, false, true, 1, 1.0, 1.139, 3.4209, 1.45041, 64,
     Scores8Bit::f16_codes, 1},
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
  c.f16_scores = row.scores != Scores8Bit::f32;
  c.code_exp = row.scores == Scores8Bit::f16_codes;
  c.ctas = row.ctas;
  // In FP8 wherever there is room: what rounding takes from P, the sums by ones do not have either.
  // Bytes have too few steps.
  if (row.fold_columns > 0) {
    c.ones = element != Element::int8;
    if (registers_held(c) > register_budget(c) || smem_bytes(c) > kSmemBytes) c.ones = false;
  }
  return c;
}

// The same beside 8-bit Q and K, where O is stored from registers: P V, which most of a tile's
// registers are of, is that of 16 bits.
OCTAVO_HD constexpr Sm90Forward mixed_config_of(const TableRow& row, Element element, MixedV v) {
  Sm90Forward c = config_of(row, v == MixedV::bf16 ? Element::bf16 : Element::f16);
  c.element = element;
  c.mixed_v = v;
  c.own_o = false;
  return c;
}

inline constexpr Element kShippedElements[] = {Element::f16, Element::bf16};

OCTAVO_HD constexpr bool is_shipped(const TableRow& row) {
  return row.head_dim == 64 || row.head_dim == 128 || row.head_dim == 256;
}

}  // namespace sm90
}  // namespace octavo
