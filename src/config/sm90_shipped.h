// The table of Hopper forward kernels that problems are given to, with what each of them was seen
// to take on an H200; those of the usual head dimensions are compiled when the library is built.
//
// A launch takes about fixed_us + waves * wave_us + blocks * block_us, where waves of tiles and
// blocks of block_n keys are those of the busiest SM, and under a mask waves * masked_us more; a
// CTA by itself takes `alone` times as long for a block as it does among as many as an SM holds.
// tools/search_sm90 times the kernels, fits the rows and writes them here
// (docs/kernels/sm90_forward.md). choose_sm90_forward takes the smallest.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm90_forward.h"

namespace octavo {
namespace sm90 {

// How 8-bit kernels get from scores to P: each way has rows of its own.
enum class Scores8Bit : u8 {
  f32,        // in FP8
  f16,        // the same, where |q k| is known to fit
  f16_codes,  // and P by arithmetic on codes
  bytes       // in INT8, from integers
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
  double masked_us = 0;  // of INT8 where CTAs stay
};

inline constexpr TableRow kTable[] = {
    {64, 2, 128, 1, 1, 1, false, false, false, true, 2, 1.3, 0.778, 1.7611, 1.06586},
    {64, 4, 64, 4, 0, 0, false, true, false, true, 1, 1.0, 1.274, 1.8585, 1.03686},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.543, 1.9024, 1.52970},
    {64, 1, 64, 2, 1, 1, true, false, false, true, 4, 2.5, 0.147, 1.2858, 0.30395},
    {64, 2, 256, 1, 1, 1, false, false, false, true, 1, 1.0, 0.171, 1.7525, 2.59258},
    {64, 3, 128, 3, 0, 0, true, false, false, true, 1, 1.0, 2.477, 2.0208, 1.51964},
    {64, 1, 128, 1, 1, 2, true, false, false, true, 3, 2.7, 0.000, 1.8044, 0.62216},
    {64, 2, 128, 2, 2, 1, false, false, false, true, 2, 1.5, 0.345, 1.2837, 1.11127},
    {64, 2, 64, 2, 1, 2, true, false, false, true, 2, 1.0, 1.428, 1.9190, 0.58885},
    {64, 3, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.077, 1.7790, 1.54295},
    {96, 1, 256, 1, 1, 1, false, false, false, false, 2, 1.4, 0.484, 1.8168, 1.52071},
    {96, 3, 96, 2, 0, 0, true, false, true, true, 1, 1.0, 0.779, 3.3316, 1.39825},
    {96, 2, 64, 2, 2, 1, true, false, false, true, 2, 1.5, 0.000, 2.3201, 0.69476},
    {96, 1, 128, 1, 1, 2, false, false, false, true, 2, 1.7, 0.520, 2.1360, 0.89646},
    {96, 1, 64, 2, 1, 1, true, false, false, true, 3, 2.5, 0.000, 1.4791, 0.39378},
    {96, 2, 128, 1, 1, 2, true, false, false, false, 1, 1.0, 0.353, 2.6588, 1.85907},
    {96, 2, 128, 3, 0, 0, true, false, false, true, 1, 1.0, 2.197, 2.1081, 1.40673},
    {96, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.796, 2.0073, 1.66728},
    {96, 3, 64, 4, 0, 0, true, false, true, true, 1, 1.0, 1.491, 2.0107, 1.03030},
    {96, 2, 64, 2, 1, 1, true, false, false, true, 1, 1.0, 1.342, 1.5336, 0.94877},
    {128, 2, 128, 2, 0, 0, true, false, true, true, 1, 1.0, 0.809, 3.1670, 1.70551},
    {128, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.000, 2.4649, 1.97799},
    {128, 3, 80, 3, 0, 0, false, true, false, true, 1, 1.0, 0.000, 3.5841, 1.46129},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.655, 2.4837, 2.03921},
    {128, 3, 64, 4, 0, 0, true, false, false, true, 1, 1.0, 0.000, 2.8584, 1.23248},
    {128, 2, 64, 4, 0, 0, true, false, true, true, 1, 1.0, 1.676, 2.1005, 0.91436},
    {128, 2, 64, 2, 1, 1, true, false, false, false, 1, 1.0, 0.837, 1.6529, 1.07727},
    {128, 1, 128, 1, 1, 1, false, false, false, true, 2, 1.5, 0.000, 2.2810, 0.99013},
    {128, 2, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 0.997, 2.4780, 1.11767},
    {128, 2, 128, 1, 1, 1, true, false, false, true, 1, 1.0, 0.305, 2.8227, 1.83208},
    {192, 2, 64, 2, 0, 0, true, false, true, true, 1, 1.0, 0.669, 3.3054, 1.11123},
    {192, 1, 128, 2, 1, 1, true, false, false, false, 1, 1.0, 0.783, 2.0547, 1.60988},
    {192, 1, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 1.029, 2.2447, 2.07976},
    {192, 1, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 0.967, 2.6088, 1.02393},
    {192, 2, 128, 1, 2, 2, false, false, false, true, 1, 1.0, 0.112, 3.9091, 2.91248},
    {256, 2, 64, 2, 0, 0, true, false, false, false, 1, 1.0, 0.000, 4.1766, 1.38643},
    {256, 1, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.830, 3.1927, 2.29548},
    {256, 1, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.000, 2.2541, 2.40199},
    {256, 1, 64, 2, 1, 2, true, false, false, false, 1, 1.0, 1.250, 2.8397, 1.20704},
    {256, 2, 80, 2, 0, 0, true, false, false, false, 1, 1.0, 0.000, 3.8349, 1.84701},
};

// The same in 8 bits, where O is stored from registers. Rows with scores in FP32, and of INT8, were
// timed with scales for blocks of K's rows, the others in FP8 with a scale of K a head; those of 96
// and 192 columns are of an earlier version of the kernel.
// clang-format off
inline constexpr TableRow kTable8Bit[] = {
    {64, 1, 128, 2, 1, 1, false, false, false, false, 3, 2.7, 0.588, 2.0319, 0.58769, 64, 1,
     Scores8Bit::f32, 3},
    {64, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.0, 1.569, 1.9437, 0.66502, 64, 1,
     Scores8Bit::f32, 1},
    {64, 4, 64, 4, 0, 0, false, false, false, false, 1, 1.0, 5.371, 1.9716, 0.93682, 32, 1,
     Scores8Bit::f32, 1},
    {64, 3, 160, 2, 0, 0, false, false, false, false, 1, 1.0, 6.000, 2.1472, 1.61933, 32, 1,
     Scores8Bit::f32, 1},
    {64, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.450, 2.7113, 1.31549, 64, 1,
     Scores8Bit::f32, 1},
    {64, 3, 128, 2, 0, 0, false, false, false, false, 1, 1.0, 4.139, 2.0328, 1.34622, 64, 1,
     Scores8Bit::f32, 1},
    {64, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.7, 1.549, 1.2825, 0.64826, 64, 1,
     Scores8Bit::f32, 1},
    {64, 1, 128, 2, 1, 1, false, true, false, false, 2, 1.7, 1.572, 1.0124, 0.66744, 64, 1,
     Scores8Bit::f32, 1},
    {64, 1, 256, 1, 1, 1, false, false, false, true, 2, 1.6, 1.411, 1.2936, 0.76737, 64, 2,
     Scores8Bit::f16, 1},
    {64, 4, 128, 3, 0, 0, false, false, false, true, 1, 1.0, 3.806, 1.7277, 1.38439, 32, 1,
     Scores8Bit::f16, 1},
    {64, 2, 128, 1, 1, 1, false, true, false, true, 1, 1.0, 1.390, 1.6012, 0.95533, 64, 1,
     Scores8Bit::f16, 1},
    {64, 1, 128, 1, 1, 1, false, false, false, true, 4, 2.5, 0.947, 1.7507, 0.40355, 32, 1,
     Scores8Bit::f16, 4},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.724, 2.4955, 0.91012, 64, 1,
     Scores8Bit::f16, 1},
    {64, 3, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.914, 1.8853, 1.04550, 64, 1,
     Scores8Bit::f16, 1},
    {64, 4, 160, 3, 0, 0, false, false, false, true, 1, 1.0, 4.156, 1.4350, 1.68565, 32, 1,
     Scores8Bit::f16, 1},
    {64, 1, 128, 2, 1, 1, false, true, false, true, 3, 2.7, 0.000, 2.0918, 0.38891, 64, 1,
     Scores8Bit::f16, 1},
    {64, 2, 256, 1, 1, 1, false, false, false, true, 1, 1.0, 1.078, 2.0139, 1.48753, 64, 2,
     Scores8Bit::f16, 1},
    {64, 4, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 3.284, 1.9825, 1.38779, 32, 2,
     Scores8Bit::f16, 1},
    {64, 1, 256, 1, 1, 1, false, false, false, true, 2, 1.6, 1.083, 1.6612, 0.61355, 64, 2,
     Scores8Bit::f16_codes, 1},
    {64, 4, 128, 3, 0, 0, false, false, false, true, 1, 1.0, 3.330, 1.9504, 1.11471, 32, 1,
     Scores8Bit::f16_codes, 1},
    {64, 1, 128, 2, 1, 1, false, true, false, true, 3, 2.8, 0.000, 2.0812, 0.33464, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 1, 128, 2, 1, 1, false, false, false, true, 4, 2.7, 0.759, 1.7950, 0.34182, 32, 1,
     Scores8Bit::f16_codes, 3},
    {64, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 1.065, 2.4526, 0.85674, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 3, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.608, 2.0932, 0.84074, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 4, 160, 3, 0, 0, false, false, false, true, 1, 1.0, 3.609, 1.6588, 1.35618, 32, 1,
     Scores8Bit::f16_codes, 1},
    {64, 2, 256, 1, 1, 1, false, false, false, true, 1, 1.0, 1.239, 1.9687, 1.21059, 64, 2,
     Scores8Bit::f16_codes, 1},
    {64, 4, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 2.875, 2.2749, 1.10640, 32, 2,
     Scores8Bit::f16_codes, 1},
    {64, 2, 128, 1, 1, 1, false, true, false, true, 1, 1.0, 1.297, 1.7451, 0.81168, 64, 1,
     Scores8Bit::f16_codes, 1},
    {64, 1, 256, 1, 1, 2, false, false, false, true, 2, 1.0, 1.656, 2.0045, 0.60138, 64, 2,
     Scores8Bit::f16_codes, 1},
    {64, 2, 256, 3, 0, 0, false, true, false, false, 1, 1.0, 4.368, 1.6871, 1.47723, 64, 1,
     Scores8Bit::bytes, 1, 0.5494},
    {64, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.0, 1.667, 1.7129, 0.70208, 64, 1,
     Scores8Bit::bytes, 1},
    {64, 1, 128, 1, 1, 1, false, true, false, false, 2, 1.7, 1.661, 1.0673, 0.66832, 64, 1,
     Scores8Bit::bytes, 1},
    {64, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.564, 2.4867, 1.31564, 64, 1,
     Scores8Bit::bytes, 1},
    {64, 4, 64, 6, 0, 0, false, true, false, false, 1, 1.0, 4.379, 1.4239, 0.98368, 32, 1,
     Scores8Bit::bytes, 1},
    {64, 2, 128, 1, 1, 1, false, true, false, false, 1, 1.0, 1.519, 1.4889, 1.40677, 64, 1,
     Scores8Bit::bytes, 1},
    {64, 3, 128, 6, 0, 0, false, true, false, false, 1, 1.0, 4.004, 1.8083, 1.22174, 64, 1,
     Scores8Bit::bytes, 1},
    {64, 4, 96, 6, 0, 0, false, false, false, false, 1, 1.0, 4.105, 1.5256, 1.30685, 32, 2,
     Scores8Bit::bytes, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.814, 1.6947, 0.66858, 96, 1,
     Scores8Bit::f32, 1},
    {96, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.1, 1.480, 2.2222, 0.70808, 96, 1,
     Scores8Bit::f32, 1},
    {96, 3, 96, 4, 0, 0, true, false, false, false, 1, 1.0, 3.570, 3.9350, 1.32655, 32, 1,
     Scores8Bit::f32, 1},
    {96, 1, 64, 2, 1, 1, false, false, false, false, 3, 2.6, 0.000, 1.6841, 0.43118, 32, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.546, 3.3533, 1.48341, 96, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.922, 2.3845, 1.46422, 96, 1,
     Scores8Bit::f32, 1},
    {96, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 2.179, 4.9850, 1.26657, 32, 1,
     Scores8Bit::f32, 1},
    {96, 1, 128, 2, 1, 1, false, false, false, false, 2, 1.5, 1.131, 1.5308, 0.68436, 96, 1,
     Scores8Bit::f32, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, false, 3, 2.5, 0.000, 1.8142, 0.67468, 32, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 1, 1, 2, false, false, false, true, 2, 1.2, 1.324, 2.2341, 0.73189, 96, 1,
     Scores8Bit::f16, 1},
    {96, 3, 128, 4, 0, 0, true, false, false, false, 1, 1.0, 3.521, 4.2339, 1.63112, 32, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 2.525, 5.0648, 1.16995, 96, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, true, 2, 1.6, 0.860, 2.0001, 0.75085, 96, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.765, 3.1831, 1.42916, 96, 1,
     Scores8Bit::f16, 1},
    {96, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.977, 2.3846, 1.47920, 96, 1,
     Scores8Bit::f16, 1},
    {96, 1, 64, 2, 1, 1, false, false, false, true, 3, 2.8, 0.000, 1.5771, 0.40616, 96, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 2, 1, 1, false, false, false, false, 3, 2.6, 0.000, 1.6460, 0.70262, 32, 1,
     Scores8Bit::f16, 1},
    {96, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.814, 1.6947, 0.66858, 96, 1,
     Scores8Bit::bytes, 1},
    {96, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.1, 1.480, 2.2222, 0.70808, 96, 1,
     Scores8Bit::bytes, 1},
    {96, 3, 96, 4, 0, 0, true, false, false, false, 1, 1.0, 3.570, 3.9350, 1.32655, 32, 1,
     Scores8Bit::bytes, 1},
    {96, 1, 64, 2, 1, 1, false, false, false, false, 3, 2.6, 0.000, 1.6841, 0.43118, 32, 1,
     Scores8Bit::bytes, 1},
    {96, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.546, 3.3533, 1.48341, 96, 1,
     Scores8Bit::bytes, 1},
    {96, 2, 128, 1, 1, 1, false, false, false, false, 1, 1.0, 0.922, 2.3845, 1.46422, 96, 1,
     Scores8Bit::bytes, 1},
    {96, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 2.179, 4.9850, 1.26657, 32, 1,
     Scores8Bit::bytes, 1},
    {96, 1, 128, 2, 1, 1, false, false, false, false, 2, 1.5, 1.131, 1.5308, 0.68436, 96, 1,
     Scores8Bit::bytes, 1},
    {128, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 3.003, 3.3375, 1.31623, 128, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 1, 1, 2, false, false, false, false, 2, 1.0, 1.864, 2.3775, 0.86223, 64, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.7, 1.694, 1.4739, 0.87210, 64, 1,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.493, 3.2247, 1.64134, 64, 1,
     Scores8Bit::f32, 1},
    {128, 3, 128, 2, 0, 0, false, false, false, false, 1, 1.0, 3.962, 2.7633, 1.88988, 16, 1,
     Scores8Bit::f32, 1},
    {128, 2, 128, 1, 1, 1, false, true, false, false, 1, 1.0, 1.443, 2.3051, 1.71106, 64, 1,
     Scores8Bit::f32, 1},
    {128, 1, 128, 1, 1, 1, false, true, false, true, 2, 1.5, 0.800, 2.5676, 0.57571, 128, 1,
     Scores8Bit::f16, 1},
    {128, 3, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 3.590, 2.2647, 1.88021, 64, 1,
     Scores8Bit::f16, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 1.288, 2.2023, 1.28364, 128, 1,
     Scores8Bit::f16, 1},
    {128, 1, 128, 2, 1, 1, false, true, false, true, 3, 1.4, 1.858, 1.8102, 0.58664, 64, 1,
     Scores8Bit::f16, 3},
    {128, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.138, 2.9775, 1.08651, 128, 1,
     Scores8Bit::f16, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.901, 2.9627, 1.25863, 128, 1,
     Scores8Bit::f16, 1},
    {128, 1, 64, 2, 1, 1, false, false, false, true, 4, 2.5, 0.000, 2.4521, 0.38596, 32, 1,
     Scores8Bit::f16, 4},
    {128, 3, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 1.991, 2.8018, 1.58825, 64, 1,
     Scores8Bit::f16, 1},
    {128, 1, 128, 1, 1, 2, false, false, false, true, 2, 1.2, 1.427, 2.5702, 0.61328, 128, 1,
     Scores8Bit::f16, 1},
    {128, 1, 128, 2, 1, 1, false, true, false, true, 2, 1.4, 1.274, 1.8388, 0.53555, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 160, 2, 0, 0, false, true, false, true, 1, 1.0, 2.366, 2.9083, 1.13618, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 1, false, false, false, true, 1, 1.0, 0.857, 2.3613, 1.15448, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 1, 128, 2, 1, 1, false, false, false, true, 3, 1.5, 2.001, 1.5701, 0.54786, 32, 1,
     Scores8Bit::f16_codes, 3},
    {128, 3, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 2.202, 2.9440, 1.60512, 64, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 1.813, 2.9812, 0.95016, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.918, 2.9068, 1.12102, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 1, 128, 1, 1, 1, false, true, false, true, 2, 1.5, 0.071, 2.8737, 0.50287, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 3, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 1.040, 3.2669, 1.39674, 64, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 128, 1, 1, 1, false, true, false, true, 1, 1.0, 1.098, 2.2536, 1.08438, 128, 1,
     Scores8Bit::f16_codes, 1},
    {128, 2, 256, 2, 0, 0, false, false, false, false, 1, 1.0, 4.202, 2.1787, 2.02785, 64, 2,
     Scores8Bit::bytes, 1, 0.5760},
    {128, 2, 128, 1, 1, 1, false, true, false, false, 1, 1.0, 1.448, 1.9987, 1.61950, 64, 1,
     Scores8Bit::bytes, 1},
    {128, 1, 128, 1, 1, 1, false, true, false, false, 2, 1.7, 1.270, 1.7801, 0.79005, 64, 1,
     Scores8Bit::bytes, 1},
    {128, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.507, 3.1993, 1.51975, 64, 1,
     Scores8Bit::bytes, 1},
    {128, 3, 64, 4, 0, 0, false, true, false, false, 1, 1.0, 3.532, 1.8258, 0.95597, 64, 1,
     Scores8Bit::bytes, 1},
    {128, 1, 128, 2, 1, 2, false, false, false, false, 2, 1.0, 1.617, 2.5104, 0.83821, 64, 1,
     Scores8Bit::bytes, 1},
    {128, 2, 128, 2, 0, 0, false, true, false, false, 1, 1.0, 3.475, 2.1691, 1.22664, 128, 1,
     Scores8Bit::bytes, 1, 0.2647},
    {128, 3, 128, 2, 0, 0, false, false, false, false, 1, 1.0, 3.459, 2.6314, 1.64119, 32, 2,
     Scores8Bit::bytes, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 1.946, 3.8213, 1.66482, 64, 1,
     Scores8Bit::f32, 1},
    {192, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.614, 3.6833, 2.02182, 96, 1,
     Scores8Bit::f32, 1},
    {192, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.478, 2.6160, 1.03741, 96, 1,
     Scores8Bit::f32, 1},
    {192, 2, 160, 1, 1, 1, false, false, false, false, 1, 1.0, 1.227, 3.7691, 2.57445, 96, 1,
     Scores8Bit::f32, 1},
    {192, 2, 96, 4, 0, 0, true, false, false, false, 1, 1.0, 2.939, 2.9459, 1.26344, 96, 1,
     Scores8Bit::f32, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, true, 1, 1.0, 2.383, 4.0616, 1.55047, 96, 1,
     Scores8Bit::f16, 1},
    {192, 1, 64, 2, 1, 2, false, false, false, true, 2, 1.1, 2.216, 2.3598, 0.65028, 192, 1,
     Scores8Bit::f16, 1},
    {192, 2, 128, 1, 1, 2, false, false, false, true, 1, 1.0, 0.640, 3.9727, 1.94750, 192, 1,
     Scores8Bit::f16, 1},
    {192, 2, 160, 1, 1, 1, false, false, false, true, 1, 1.0, 2.512, 3.0056, 2.44998, 96, 1,
     Scores8Bit::f16, 1},
    {192, 2, 96, 4, 0, 0, true, false, false, true, 1, 1.0, 3.273, 3.8685, 1.28087, 96, 1,
     Scores8Bit::f16, 1},
    {192, 2, 128, 2, 0, 0, true, false, false, false, 1, 1.0, 2.262, 3.3341, 1.67562, 64, 1,
     Scores8Bit::bytes, 1, 0.7374},
    {192, 2, 128, 1, 1, 2, false, false, false, false, 1, 1.0, 0.614, 3.6833, 2.02182, 96, 1,
     Scores8Bit::bytes, 1},
    {192, 1, 128, 1, 1, 1, false, false, false, false, 2, 1.6, 0.478, 2.6160, 1.03741, 96, 1,
     Scores8Bit::bytes, 1},
    {192, 2, 160, 1, 1, 1, false, false, false, false, 1, 1.0, 1.227, 3.7691, 2.57445, 96, 1,
     Scores8Bit::bytes, 1},
    {256, 2, 96, 4, 0, 0, false, false, false, false, 1, 1.0, 3.770, 3.6001, 1.85296, 64, 1,
     Scores8Bit::f32, 1},
    {256, 2, 64, 4, 0, 0, false, false, false, false, 1, 1.0, 3.038, 3.8521, 1.39349, 64, 1,
     Scores8Bit::f32, 1},
    {256, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 2.105, 4.6447, 1.84072, 64, 1,
     Scores8Bit::f16, 1},
    {256, 1, 64, 2, 1, 2, false, false, false, true, 1, 1.0, 1.327, 3.8675, 0.99383, 64, 1,
     Scores8Bit::f16, 1},
    {256, 2, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 3.000, 4.0748, 2.31288, 64, 1,
     Scores8Bit::f16, 1},
    {256, 2, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 1.521, 4.5811, 1.96586, 64, 1,
     Scores8Bit::f16, 1},
    {256, 2, 128, 2, 0, 0, false, true, false, true, 1, 1.0, 0.964, 4.5700, 1.76765, 64, 1,
     Scores8Bit::f16_codes, 1},
    {256, 1, 64, 2, 1, 2, false, false, false, true, 1, 1.0, 1.508, 3.8243, 0.93461, 64, 1,
     Scores8Bit::f16_codes, 1},
    {256, 2, 160, 2, 0, 0, false, false, false, true, 1, 1.0, 1.117, 4.3311, 2.29029, 32, 2,
     Scores8Bit::f16_codes, 1},
    {256, 2, 128, 2, 0, 0, false, false, false, true, 1, 1.0, 0.529, 4.2754, 2.08603, 32, 1,
     Scores8Bit::f16_codes, 1},
    {256, 2, 96, 4, 0, 0, false, true, false, false, 1, 1.0, 3.455, 3.1649, 1.48362, 64, 2,
     Scores8Bit::bytes, 1},
    {256, 2, 64, 4, 0, 0, false, true, false, false, 1, 1.0, 2.711, 3.3602, 1.10500, 32, 2,
     Scores8Bit::bytes, 1},
};
// clang-format on

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
  c.f16_scores = row.scores == Scores8Bit::f16 || row.scores == Scores8Bit::f16_codes;
  c.code_exp = row.scores == Scores8Bit::f16_codes;
  c.ctas = row.ctas;
  // Wherever there is room: what rounding takes from P, sums of what is left do not have either.
  if (row.fold_columns > 0) {
    c.ones = true;
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
