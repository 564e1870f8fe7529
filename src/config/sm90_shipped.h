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

// The same in 8 bits, where O is stored from registers. Rows with scores in FP32 were timed in INT8
// with scales for blocks of K's rows, the others in FP8 with a scale of K a head; those of 96 and
// 192 columns are of an earlier version of the kernel.
inline constexpr TableRow kTable8Bit[] = {
    {64, 1, 128, 2, 1, 1, false, false, false, 2, 1.7, 1.452, 1.4927, 0.77843, 64, Scores8Bit::f32,
     1},
    {64, 3, 128, 2, 0, 0, false, false, false, 1, 1.0, 3.515, 1.8876, 1.83025, 32, Scores8Bit::f32,
     1},
    {64, 1, 128, 1, 1, 2, false, false, false, 2, 1.3, 1.657, 1.7462, 0.81697, 32, Scores8Bit::f32,
     1},
    {64, 1, 64, 2, 1, 1, false, false, false, 4, 2.6, 0.796, 1.4621, 0.39758, 64, Scores8Bit::f32,
     4},
    {64, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.523, 2.5326, 1.64728, 64, Scores8Bit::f32,
     1},
    {64, 4, 64, 4, 0, 0, false, false, false, 1, 1.0, 4.591, 0.9151, 1.42995, 32, Scores8Bit::f32,
     1},
    {64, 1, 128, 2, 1, 2, false, false, false, 2, 1.2, 1.787, 1.8142, 0.77859, 64, Scores8Bit::f32,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 4, 2.8, 0.497, 1.9324, 0.41448, 32, Scores8Bit::f16,
     4},
    {64, 1, 128, 1, 1, 2, false, false, true, 3, 3.0, 0.529, 2.2827, 0.41573, 64, Scores8Bit::f16,
     1},
    {64, 4, 160, 2, 0, 0, false, false, true, 1, 1.0, 5.030, 3.1991, 1.84968, 32, Scores8Bit::f16,
     1},
    {64, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.592, 2.6627, 1.15046, 64, Scores8Bit::f16,
     1},
    {64, 3, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.888, 2.6960, 1.21212, 64, Scores8Bit::f16,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 3, 2.8, 0.000, 2.0393, 0.41479, 64, Scores8Bit::f16,
     1},
    {64, 1, 128, 1, 1, 1, false, false, true, 4, 2.7, 0.000, 2.3367, 0.31806, 32,
     Scores8Bit::f16_codes, 4},
    {64, 1, 128, 1, 1, 2, false, false, true, 3, 2.9, 0.443, 2.4944, 0.31077, 64,
     Scores8Bit::f16_codes, 1},
    {64, 4, 128, 2, 0, 0, false, false, true, 1, 1.0, 2.229, 3.1554, 1.09215, 32,
     Scores8Bit::f16_codes, 1},
    {64, 3, 128, 2, 0, 0, false, false, true, 1, 1.0, 2.303, 2.7102, 0.82745, 64,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.704, 2.6210, 0.79211, 32,
     Scores8Bit::f16_codes, 1},
    {64, 4, 160, 2, 0, 0, false, false, true, 1, 1.0, 3.593, 3.5575, 1.28487, 32,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.889, 2.1357, 0.83689, 64,
     Scores8Bit::f16_codes, 1},
    {64, 1, 128, 1, 1, 1, false, false, true, 3, 2.7, 0.000, 2.1731, 0.31306, 64,
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
    {96, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 0.839, 2.4586, 1.45330, 96, Scores8Bit::f32,
     1},
    {96, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 2.009, 5.0394, 1.27002, 32, Scores8Bit::f32,
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
    {96, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.834, 2.5419, 1.45982, 96, Scores8Bit::f16,
     1},
    {96, 2, 128, 2, 1, 2, false, false, true, 1, 1.0, 0.376, 3.6252, 1.46456, 96, Scores8Bit::f16,
     1},
    {96, 1, 64, 2, 1, 1, false, false, true, 3, 2.7, 0.000, 1.5880, 0.40744, 96, Scores8Bit::f16,
     1},
    {128, 2, 128, 2, 0, 0, true, false, false, 1, 1.0, 3.318, 3.2201, 1.51848, 128, Scores8Bit::f32,
     1},
    {128, 1, 128, 1, 1, 2, false, false, false, 2, 1.1, 1.829, 2.5593, 0.93230, 64, Scores8Bit::f32,
     1},
    {128, 1, 128, 2, 1, 1, false, false, false, 2, 1.6, 1.603, 1.9802, 0.93430, 64, Scores8Bit::f32,
     1},
    {128, 2, 128, 1, 1, 2, false, false, false, 1, 1.0, 0.673, 3.2152, 1.99691, 128,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, 1, 1.0, 1.429, 2.3745, 1.99531, 128,
     Scores8Bit::f32, 1},
    {128, 3, 96, 4, 0, 0, false, false, false, 1, 1.0, 3.328, 2.5130, 1.84423, 32, Scores8Bit::f32,
     1},
    {128, 1, 128, 1, 1, 2, false, false, false, 2, 1.1, 1.948, 2.6095, 0.89773, 128,
     Scores8Bit::f32, 1},
    {128, 1, 128, 2, 1, 1, false, false, true, 3, 2.4, 0.000, 2.6349, 0.58258, 64, Scores8Bit::f16,
     3},
    {128, 1, 128, 1, 1, 2, false, false, true, 2, 1.0, 1.548, 2.7350, 0.63379, 128, Scores8Bit::f16,
     1},
    {128, 3, 128, 2, 0, 0, false, false, true, 1, 1.0, 3.157, 2.9118, 1.55641, 64, Scores8Bit::f16,
     1},
    {128, 1, 64, 2, 1, 1, false, false, true, 4, 2.7, 0.002, 2.6111, 0.34671, 32, Scores8Bit::f16,
     4},
    {128, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.818, 3.0995, 1.43494, 128, Scores8Bit::f16,
     1},
    {128, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 3.021, 2.9931, 1.17287, 128, Scores8Bit::f16,
     1},
    {128, 1, 128, 2, 1, 1, false, false, true, 2, 1.7, 0.886, 2.3781, 0.63433, 128, Scores8Bit::f16,
     1},
    {128, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.677, 3.0075, 1.40408, 128, Scores8Bit::f16,
     1},
    {128, 1, 128, 2, 1, 1, false, false, true, 2, 1.7, 0.570, 2.4836, 0.51685, 128,
     Scores8Bit::f16_codes, 1},
    {128, 3, 128, 2, 0, 0, false, false, true, 1, 1.0, 2.064, 2.8926, 1.28201, 64,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 1, false, false, true, 1, 1.0, 0.548, 2.8839, 1.06547, 128,
     Scores8Bit::f16_codes, 1},
    {128, 1, 128, 2, 1, 1, false, false, true, 3, 2.4, 0.000, 2.2121, 0.54129, 32,
     Scores8Bit::f16_codes, 3},
    {128, 3, 160, 2, 0, 0, false, false, true, 1, 1.0, 3.493, 2.9606, 1.52996, 64,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 2, 0, 0, true, false, true, 1, 1.0, 2.296, 3.1370, 0.93809, 128,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 2, false, false, true, 1, 1.0, 0.816, 3.0482, 1.12417, 64,
     Scores8Bit::f16_codes, 1},
    {128, 1, 128, 1, 1, 1, false, false, true, 2, 1.7, 0.000, 2.9384, 0.51319, 128,
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
    {192, 2, 160, 1, 1, 1, false, false, true, 1, 1.0, 1.975, 3.4765, 2.39990, 96, Scores8Bit::f16,
     1},
    {256, 2, 96, 4, 0, 0, false, false, false, 1, 1.0, 3.215, 4.1671, 1.86589, 64, Scores8Bit::f32,
     1},
    {256, 2, 64, 4, 0, 0, false, false, false, 1, 1.0, 2.935, 3.9000, 1.50337, 64, Scores8Bit::f32,
     1},
    {256, 2, 128, 2, 0, 0, false, false, true, 1, 1.0, 1.989, 4.4048, 1.98355, 64, Scores8Bit::f16,
     1},
    {256, 1, 64, 2, 1, 2, false, false, true, 1, 1.0, 1.292, 4.1788, 1.03497, 64, Scores8Bit::f16,
     1},
    {256, 2, 160, 2, 0, 0, false, false, true, 1, 1.0, 3.033, 4.0359, 2.45404, 64, Scores8Bit::f16,
     1},
    {256, 2, 128, 2, 0, 0, false, false, true, 1, 1.0, 1.317, 4.3401, 1.81328, 64,
     Scores8Bit::f16_codes, 1},
    {256, 1, 64, 2, 1, 2, false, false, true, 1, 1.0, 0.973, 4.4589, 0.90666, 64,
     Scores8Bit::f16_codes, 1},
    {256, 2, 160, 2, 0, 0, false, false, true, 1, 1.0, 2.131, 3.8650, 2.29202, 64,
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
