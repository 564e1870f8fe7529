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
  bool overlap, scores_behind, own_o, ones;
  int resident;  // CTAs that an SM holds at once
  double alone;  // 1 where that is one
  double fixed_us, wave_us, block_us;
  // In 8 bits:
  int fold_columns = 0, fold_buffers = 1;
  Scores8Bit scores = Scores8Bit::f32;
  int ctas = 1;
};

inline constexpr TableRow kTable[] = {
    {64, 2, 128, 1, 1, 1, false, false, false, true, 2, 1.3, 1.415, 1.2256, 1.05755},
    {64, 1, 64, 2, 1, 1, true, false, false, true, 4, 2.6, 0.488, 1.1032, 0.29287},
    {64, 2, 256, 1, 1, 1, false, false, false, true, 1, 1.0, 0.174, 1.7773, 2.46907},
    {64, 4, 64, 4, 0, 0, false, true, false, true, 1, 1.0, 1.715, 1.7424, 1.01991},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.484, 1.9290, 1.51600},
    {64, 3, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.236, 1.5508, 1.50985},
    {64, 1, 128, 1, 1, 2, true, false, false, false, 3, 2.7, 0.126, 1.7489, 0.63114},
    {64, 2, 128, 2, 2, 1, false, false, false, true, 2, 1.5, 0.645, 1.2916, 1.06986},
    {64, 2, 64, 2, 1, 2, true, false, false, true, 2, 1.0, 1.355, 1.7830, 0.61650},
    {96, 1, 256, 1, 1, 1, false, false, false, false, 2, 1.4, 0.836, 1.2308, 1.58237},
    {96, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 2.351, 2.0467, 1.42966},
    {96, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.725, 2.2868, 1.79762},
    {96, 2, 64, 2, 2, 1, true, false, false, true, 2, 1.5, 0.000, 2.1161, 0.74477},
    {96, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.959, 1.7119, 1.70484},
    {96, 3, 96, 2, 0, 0, true, false, false, true, 1, 1.0, 0.000, 2.8619, 1.45980},
    {96, 1, 64, 2, 1, 1, true, false, false, true, 3, 2.3, 0.000, 1.3134, 0.42593},
    {96, 1, 128, 2, 1, 2, false, false, false, true, 1, 1.0, 1.123, 1.6388, 1.34421},
    {96, 3, 64, 4, 0, 0, true, false, true, true, 1, 1.0, 1.417, 1.1457, 1.10965},
    {96, 2, 64, 2, 1, 1, true, false, false, true, 1, 1.0, 1.152, 1.6219, 0.99532},
    {128, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.892, 1.6179, 1.94950},
    {128, 3, 64, 4, 0, 0, true, false, false, true, 1, 1.0, 0.113, 2.3641, 1.19516},
    {128, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.049, 1.8646, 1.73683},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.834, 2.3758, 2.07925},
    {128, 2, 64, 4, 0, 0, true, false, true, true, 1, 1.0, 2.841, 1.4858, 0.87924},
    {128, 3, 80, 3, 0, 0, false, true, false, true, 1, 1.0, 0.000, 2.7444, 1.49445},
    {128, 3, 80, 2, 0, 0, true, false, true, true, 1, 1.0, 0.000, 3.2190, 1.45651},
    {128, 2, 64, 2, 1, 1, true, false, false, false, 1, 1.0, 0.876, 1.7794, 1.05118},
    {128, 2, 80, 2, 0, 0, true, false, false, true, 1, 1.0, 0.375, 3.0208, 1.12324},
    {128, 2, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 1.163, 2.3984, 1.10527},
    {192, 2, 64, 2, 0, 0, true, false, true, true, 1, 1.0, 0.670, 3.3578, 1.12339},
    {192, 1, 128, 2, 1, 1, true, false, false, false, 1, 1.0, 1.083, 1.8375, 1.57807},
    {192, 1, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 1.206, 2.4704, 1.82845},
    {192, 2, 80, 2, 0, 0, true, false, false, true, 1, 1.0, 0.493, 2.9177, 1.44471},
    {192, 1, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 1.135, 2.5325, 1.01045},
    {256, 2, 64, 2, 0, 0, true, false, false, false, 1, 1.0, 0.000, 4.0865, 1.39784},
    {256, 1, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.946, 3.0581, 2.30332},
    {256, 1, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.217, 2.2462, 2.27432},
    {256, 2, 80, 2, 0, 0, true, false, false, false, 1, 1.0, 0.000, 2.9854, 1.84121},
    {256, 1, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 1.087, 3.0468, 1.19311},
};

// The same in 8 bits, where O is stored from registers. Rows with scores in FP32 were timed in INT8
// with scales for blocks of K's rows, the others in FP8 with a scale of K a head; those of 96 and
// 192 columns are of an earlier version of the kernel.
inline constexpr TableRow kTable8Bit[] = {
    {64, 1, 128, 2, 1, 1, false, false, false, false, 2, 1.6, 1.817, 1.4125, 0.78331, 64, 1,
     Scores8Bit::f32, 1},
    {64, 3, 128, 2, 0, 0, false, true, false, false, 1, 1.0, 3.643, 2.0824, 1.75576, 32, 2,
     Scores8Bit::f32, 1},
    {64, 1, 128, 2, 1, 2, false, false, false, false, 2, 1.1, 1.885, 1.6872, 0.79259, 64, 1,
     Scores8Bit::f32, 1},
    {64, 1, 64, 2, 1, 1, false, false, false, false, 4, 2.7, 0.648, 1.3886, 0.40033, 64, 1,
     Scores8Bit::f32, 4},
    {64, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.249, 2.7187, 1.62983, 64, 1,
     Scores8Bit::f32, 1},
    {64, 4, 64, 4, 0, 0, false, false, false, false, 1, 1.0, 4.430, 0.9006, 1.43397, 32, 1,
     Scores8Bit::f32, 1},
    {64, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.2, 1.765, 1.6156, 0.83273, 32, 1,
     Scores8Bit::f32, 1},
    {64, 1, 128, 1, 1, 1, false, true, false, false, 2, 1.7, 1.501, 1.5580, 0.78442, 64, 1,
     Scores8Bit::f32, 1},
    {64, 1, 128, 1, 1, 1, false, false, false, true, 4, 2.8, 0.647, 1.8660, 0.41643, 32, 1,
     Scores8Bit::f16, 4},
    {64, 1, 128, 1, 1, 2, false, false, false, true, 3, 3.0, 0.635, 2.1423, 0.42148, 64, 1,
     Scores8Bit::f16, 1},
    {64, 4, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 5.520, 3.1885, 1.83694, 32, 1,
     Scores8Bit::f16, 1},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.267, 2.9564, 1.12622, 64, 1,
     Scores8Bit::f16, 1},
    {64, 3, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 3.003, 2.7303, 1.20550, 64, 1,
     Scores8Bit::f16, 1},
    {64, 1, 128, 2, 1, 1, false, false, false, true, 3, 2.8, 0.000, 1.9177, 0.42966, 64, 1,
     Scores8Bit::f16, 1},
    {64, 1, 128, 1, 1, 1, false, false, false, true, 4, 2.8, 0.000, 2.2659, 0.31944, 32, 1,
     Scores8Bit::f16_codes, 4},
    {64, 1, 128, 1, 1, 2, false, false, false, true, 3, 3.0, 0.460, 2.3509, 0.31380, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 4, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 2.312, 3.1857, 1.08473, 32, 1,
     Scores8Bit::f16_codes, 1},
    {64, 3, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 2.350, 2.7024, 0.82757, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.459, 2.8498, 0.76796, 32, 1,
     Scores8Bit::f16_codes, 1},
    {64, 4, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 3.519, 3.5393, 1.28696, 32, 1,
     Scores8Bit::f16_codes, 1},
    {64, 1, 128, 2, 1, 1, false, false, false, true, 3, 2.7, 0.000, 1.9718, 0.33085, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 1.140, 1.7810, 0.89136, 64, 1,
     Scores8Bit::f16_codes, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.866, 1.8029, 0.71126, 96, 1,
     Scores8Bit::f32, 1},
    {96, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.1, 1.480, 2.2222, 0.70808, 96, 1,
     Scores8Bit::f32, 1},
    {96, 3, 96, 4, 0, 0, true, false, false, false, 1, 1.0, 2.882, 3.6107, 1.32179, 32, 1,
     Scores8Bit::f32, 1},
    {96, 1, 64, 2, 1, 1, false, false, false, false, 3, 2.6, 0.000, 1.6841, 0.43118, 32, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 2.179, 4.9850, 1.26657, 32, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.515, 3.1635, 1.39944, 96, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.922, 2.3845, 1.46422, 96, 1,
     Scores8Bit::f32, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, false, 3, 2.5, 0.000, 1.8703, 0.69555, 32, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 1, 1, 2, false, false, false, true, 2, 1.2, 1.365, 2.3032, 0.75452, 96, 1,
     Scores8Bit::f16, 1},
    {96, 3, 128, 4, 0, 0, true, false, false, false, 1, 1.0, 3.303, 3.9062, 1.63039, 32, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 2.525, 5.0648, 1.16995, 96, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, true, 2, 1.6, 0.860, 2.0001, 0.75085, 96, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.977, 2.3846, 1.47920, 96, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.765, 3.1831, 1.42916, 96, 1,
     Scores8Bit::f16, 1},
    {96, 1, 64, 2, 1, 1, false, false, false, true, 3, 2.8, 0.000, 1.5771, 0.40616, 96, 1,
     Scores8Bit::f16, 1},
    {128, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 3.542, 3.2646, 1.50726, 128, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.1, 1.849, 2.4442, 0.94530, 64, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, false, 2, 1.5, 2.010, 1.9248, 0.93670, 64, 1,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.449, 3.4433, 1.96648, 128, 1,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 1.515, 2.2700, 2.02240, 128, 1,
     Scores8Bit::f32, 1},
    {128, 3, 96, 4, 0, 0, false, false, false, false, 1, 1.0, 3.004, 2.4268, 1.85451, 32, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, true, 3, 2.4, 0.000, 2.7012, 0.58368, 64, 1,
     Scores8Bit::f16, 3},
    {128, 1, 128, 1, 1, 2, false, false, false, true, 2, 1.1, 1.572, 2.5784, 0.64678, 128, 1,
     Scores8Bit::f16, 1},
    {128, 3, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 3.179, 2.9361, 1.54910, 64, 1,
     Scores8Bit::f16, 1},
    {128, 1, 64, 2, 1, 1, false, false, false, true, 4, 2.8, 0.000, 2.5243, 0.34706, 32, 1,
     Scores8Bit::f16, 4},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.643, 3.2760, 1.40685, 128, 1,
     Scores8Bit::f16, 1},
    {128, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 3.111, 3.0345, 1.16255, 128, 1,
     Scores8Bit::f16, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.915, 2.7505, 1.42777, 128, 1,
     Scores8Bit::f16, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, true, 2, 1.6, 1.143, 2.3634, 0.63500, 128, 1,
     Scores8Bit::f16, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, true, 2, 1.7, 0.658, 2.3957, 0.51896, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 3, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 1.890, 2.9082, 1.28128, 64, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.732, 2.6693, 1.08801, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, true, 3, 2.4, 0.050, 2.2048, 0.53969, 32, 1,
     Scores8Bit::f16_codes, 3},
    {128, 3, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 3.333, 2.7169, 1.54753, 64, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 160, 2, 0, 0, false, true, false, true, 1, 1.0, 3.490, 3.0527, 1.07879, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 1, 64, 2, 1, 1, false, false, false, true, 4, 2.6, 0.000, 2.7051, 0.32955, 32, 1,
     Scores8Bit::f16_codes, 4},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.640, 3.2006, 1.10105, 64, 1,
     Scores8Bit::f16_codes, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 1.958, 3.7814, 1.66943, 64, 1,
     Scores8Bit::f32, 1},
    {192, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.614, 3.6833, 2.02182, 96, 1,
     Scores8Bit::f32, 1},
    {192, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.478, 2.6160, 1.03741, 96, 1,
     Scores8Bit::f32, 1},
    {192, 2, 160, 1, 1, 1, false, false, false, false, 1, 1.0, 1.227, 3.7691, 2.57445, 96, 1,
     Scores8Bit::f32, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 2.401, 4.0058, 1.55663, 96, 1,
     Scores8Bit::f16, 1},
    {192, 1, 64, 2, 1, 2, false, false, false, true, 2, 1.1, 2.216, 2.3598, 0.65028, 192, 1,
     Scores8Bit::f16, 1},
    {192, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.640, 3.9727, 1.94750, 192, 1,
     Scores8Bit::f16, 1},
    {192, 2, 160, 1, 1, 1, false, false, false, true, 1, 1.0, 2.512, 3.0056, 2.44998, 96, 1,
     Scores8Bit::f16, 1},
    {256, 2, 96, 4, 0, 0, false, false, false, false, 1, 1.0, 3.205, 4.1757, 1.86570, 64, 1,
     Scores8Bit::f32, 1},
    {256, 2, 64, 4, 0, 0, false, false, false, false, 1, 1.0, 2.943, 3.8727, 1.50451, 64, 1,
     Scores8Bit::f32, 1},
    {256, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.216, 4.5136, 1.83551, 64, 1,
     Scores8Bit::f16, 1},
    {256, 1, 128, 2, 1, 2, false, false, false, true, 1, 1.0, 0.568, 4.8504, 1.69324, 32, 1,
     Scores8Bit::f16, 1},
    {256, 1, 64, 2, 1, 1, false, false, false, true, 2, 1.6, 0.554, 4.0953, 0.74225, 32, 1,
     Scores8Bit::f16, 1},
    {256, 2, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 2.859, 4.1512, 2.40214, 64, 1,
     Scores8Bit::f16, 1},
    {256, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 1.430, 4.1872, 1.78580, 64, 1,
     Scores8Bit::f16_codes, 1},
    {256, 1, 64, 2, 1, 2, false, false, false, true, 1, 1.0, 1.072, 4.3310, 0.91386, 64, 1,
     Scores8Bit::f16_codes, 1},
    {256, 1, 64, 2, 1, 1, false, false, false, true, 2, 1.6, 0.002, 4.2935, 0.69953, 32, 1,
     Scores8Bit::f16_codes, 1},
    {256, 2, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 1.854, 3.8910, 2.27946, 64, 1,
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
  c.scores_behind = row.scores_behind;
  c.persistent = !c.split_keys;
  c.own_o = row.own_o;
  c.ones = row.ones;
  c.fold_columns = row.fold_columns;
  c.fold_buffers = row.fold_buffers;
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
