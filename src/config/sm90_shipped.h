// SPDX-License-Identifier: Apache-2.0
// The tables of Hopper forward kernels from which one is chosen for each problem, with times
// measured on an H200. Kernels of the usual head dimensions are compiled when the library is built.
//
// A launch takes about fixed_us + waves * wave_us + blocks * block_us, and under a mask waves *
// masked_us more. Waves of tiles and blocks of block_n keys are those of the busiest SM. `block_us`
// is for `resident` CTAs on an SM; a CTA alone there takes `alone` times as long for a block.
// tools/search_sm90 times the kernels, fits the rows and writes them here; choose_sm90_forward
// takes the row with the least time.
#pragma once

#include "config/element.h"
#include "config/portable.h"
#include "config/sm90_forward.h"

namespace octavo {
namespace sm90 {

struct Estimate {
  int resident = 1;  // CTAs that an SM holds at once
  double alone = 1;
  double fixed_us = 0, wave_us = 0, block_us = 0;
  double masked_us = 0;
};

struct TableRow {
  Sm90ForwardConfig config;  // except what the problem decides: elements, scales, output, launch
  Estimate estimate;
};

// clang-format off
inline constexpr TableRow kTable[] = {
    {.config = {.head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1},
     .estimate = {.resident = 2, .alone = 1.3, .fixed_us = 0.778, .wave_us = 1.7611, .block_us = 1.06586}},
    {.config = {.head_dim = 64, .warpgroups = 4, .block_n = 64, .stages = 4, .schedule = Schedule::pv_first_queued},
     .estimate = {.fixed_us = 1.274, .wave_us = 1.8585, .block_us = 1.03686}},
    {.config = {.head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .cluster = 2},
     .estimate = {.fixed_us = 0.543, .wave_us = 1.9024, .block_us = 1.52970}},
    {.config = {.head_dim = 64, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1},
     .estimate = {.resident = 4, .alone = 2.5, .fixed_us = 0.147, .wave_us = 1.2858, .block_us = 0.30395}},
    {.config = {.head_dim = 64, .warpgroups = 2, .block_n = 256, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1},
     .estimate = {.fixed_us = 0.171, .wave_us = 1.7525, .block_us = 2.59258}},
    {.config = {.head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 3, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 2.477, .wave_us = 2.0208, .block_us = 1.51964}},
    {.config = {.head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2},
     .estimate = {.resident = 3, .alone = 2.7, .fixed_us = 0.000, .wave_us = 1.8044, .block_us = 0.62216}},
    {.config = {.head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::in_turn, .row_groups = 2},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 0.345, .wave_us = 1.2837, .block_us = 1.11127}},
    {.config = {.head_dim = 64, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2},
     .estimate = {.resident = 2, .fixed_us = 1.428, .wave_us = 1.9190, .block_us = 0.58885}},
    {.config = {.head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued},
     .estimate = {.fixed_us = 2.077, .wave_us = 1.7790, .block_us = 1.54295}},
    {.config = {.head_dim = 96, .warpgroups = 1, .block_n = 256, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .sum_rounded_p = false},
     .estimate = {.resident = 2, .alone = 1.4, .fixed_us = 0.484, .wave_us = 1.8168, .block_us = 1.52071}},
    {.config = {.head_dim = 96, .warpgroups = 3, .block_n = 96, .stages = 2, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 0.779, .wave_us = 3.3316, .block_us = 1.39825}},
    {.config = {.head_dim = 96, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 2},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 0.000, .wave_us = 2.3201, .block_us = 0.69476}},
    {.config = {.head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .cluster = 2},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 0.520, .wave_us = 2.1360, .block_us = 0.89646}},
    {.config = {.head_dim = 96, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1},
     .estimate = {.resident = 3, .alone = 2.5, .fixed_us = 0.000, .wave_us = 1.4791, .block_us = 0.39378}},
    {.config = {.head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.353, .wave_us = 2.6588, .block_us = 1.85907}},
    {.config = {.head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 3, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 2.197, .wave_us = 2.1081, .block_us = 1.40673}},
    {.config = {.head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1},
     .estimate = {.fixed_us = 0.796, .wave_us = 2.0073, .block_us = 1.66728}},
    {.config = {.head_dim = 96, .warpgroups = 3, .block_n = 64, .stages = 4, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 1.491, .wave_us = 2.0107, .block_us = 1.03030}},
    {.config = {.head_dim = 96, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1},
     .estimate = {.fixed_us = 1.342, .wave_us = 1.5336, .block_us = 0.94877}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 0.809, .wave_us = 3.1670, .block_us = 1.70551}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.000, .wave_us = 2.4649, .block_us = 1.97799}},
    {.config = {.head_dim = 128, .warpgroups = 3, .block_n = 80, .stages = 3, .schedule = Schedule::pv_first_queued},
     .estimate = {.fixed_us = 0.000, .wave_us = 3.5841, .block_us = 1.46129}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .cluster = 2},
     .estimate = {.fixed_us = 0.655, .wave_us = 2.4837, .block_us = 2.03921}},
    {.config = {.head_dim = 128, .warpgroups = 3, .block_n = 64, .stages = 3, .schedule = Schedule::pv_first_queued},
     .estimate = {.fixed_us = 0.000, .wave_us = 2.9000, .block_us = 1.20500}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 64, .stages = 4, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 1.676, .wave_us = 2.1005, .block_us = 0.91436, .masked_us = 1.0000}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.837, .wave_us = 1.6529, .block_us = 1.07727}},
    {.config = {.head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 0.000, .wave_us = 2.2810, .block_us = 0.99013}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.997, .wave_us = 2.4780, .block_us = 1.11767}},
    {.config = {.head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::qk_first, .row_groups = 1},
     .estimate = {.fixed_us = 0.305, .wave_us = 2.8227, .block_us = 1.83208}},
    {.config = {.head_dim = 192, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first},
     .estimate = {.fixed_us = 0.669, .wave_us = 3.3054, .block_us = 1.11123}},
    {.config = {.head_dim = 192, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.783, .wave_us = 2.0547, .block_us = 1.60988}},
    {.config = {.head_dim = 192, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .cluster = 2},
     .estimate = {.fixed_us = 1.029, .wave_us = 2.2447, .block_us = 2.07976}},
    {.config = {.head_dim = 192, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.967, .wave_us = 2.6088, .block_us = 1.02393}},
    {.config = {.head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 2, .cluster = 2},
     .estimate = {.fixed_us = 0.112, .wave_us = 3.9091, .block_us = 2.91248}},
    {.config = {.head_dim = 256, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.000, .wave_us = 4.1766, .block_us = 1.38643}},
    {.config = {.head_dim = 256, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .cluster = 2, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.830, .wave_us = 3.1927, .block_us = 2.29548}},
    {.config = {.head_dim = 256, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::in_turn, .row_groups = 1, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.000, .wave_us = 2.2541, .block_us = 2.40199}},
    {.config = {.head_dim = 256, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first, .row_groups = 1, .cluster = 2, .sum_rounded_p = false},
     .estimate = {.fixed_us = 1.250, .wave_us = 2.8397, .block_us = 1.20704}},
    {.config = {.head_dim = 256, .warpgroups = 2, .block_n = 80, .stages = 2, .schedule = Schedule::qk_first, .sum_rounded_p = false},
     .estimate = {.fixed_us = 0.000, .wave_us = 4.5000, .block_us = 1.66400}},
};

// The same with 8-bit P V; `element` tells FP8 rows from INT8's.
// FP8 rows with FP32 scores, and INT8's, were timed with scales for blocks of K's rows, the others
// with one scale of K for each head. Rows of head_dim 96 and 192 are of an earlier version of the
// kernel.
inline constexpr TableRow kTable8Bit[] = {
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .min_ctas = 3, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 3, .alone = 2.7, .fixed_us = 0.588, .wave_us = 2.0319, .block_us = 0.58769}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.resident = 2, .fixed_us = 1.569, .wave_us = 1.9437, .block_us = 0.66502}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 64, .stages = 4, .schedule = Schedule::pv_first, .pv_columns = 32},
     .estimate = {.fixed_us = 5.371, .wave_us = 1.9716, .block_us = 0.93682}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 3, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first, .pv_columns = 32},
     .estimate = {.fixed_us = 6.000, .wave_us = 2.1472, .block_us = 1.61933}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.fixed_us = 0.450, .wave_us = 2.7113, .block_us = 1.31549}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .pv_columns = 64},
     .estimate = {.fixed_us = 4.139, .wave_us = 2.0328, .block_us = 1.34622}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 1.549, .wave_us = 1.2825, .block_us = 0.64826}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 1.572, .wave_us = 1.0124, .block_us = 0.66744}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 256, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 1.411, .wave_us = 1.2936, .block_us = 0.76737}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 128, .stages = 3, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.fixed_us = 3.806, .wave_us = 1.7277, .block_us = 1.38439}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 1.390, .wave_us = 1.6012, .block_us = 0.95533}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .min_ctas = 4, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.resident = 4, .alone = 2.5, .fixed_us = 0.947, .wave_us = 1.7507, .block_us = 0.40355}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 0.724, .wave_us = 2.4955, .block_us = 0.91012}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 2.914, .wave_us = 1.8853, .block_us = 1.04550}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 160, .stages = 3, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.fixed_us = 4.156, .wave_us = 1.4350, .block_us = 1.68565}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.resident = 3, .alone = 2.7, .fixed_us = 0.000, .wave_us = 2.0918, .block_us = 0.38891}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 256, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.fixed_us = 1.078, .wave_us = 2.0139, .block_us = 1.48753}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 3.284, .wave_us = 1.9825, .block_us = 1.38779}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 256, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 1.083, .wave_us = 1.6612, .block_us = 0.61355}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 128, .stages = 3, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 32},
     .estimate = {.fixed_us = 3.330, .wave_us = 1.9504, .block_us = 1.11471}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.resident = 3, .alone = 2.8, .fixed_us = 0.000, .wave_us = 2.0812, .block_us = 0.33464}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .min_ctas = 3, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 32},
     .estimate = {.resident = 4, .alone = 2.7, .fixed_us = 0.759, .wave_us = 1.7950, .block_us = 0.34182}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 1.065, .wave_us = 2.4526, .block_us = 0.85674}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 2.608, .wave_us = 2.0932, .block_us = 0.84074}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 160, .stages = 3, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 32},
     .estimate = {.fixed_us = 3.609, .wave_us = 1.6588, .block_us = 1.35618}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 256, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.fixed_us = 1.239, .wave_us = 1.9687, .block_us = 1.21059}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 4, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 2.875, .wave_us = 2.2749, .block_us = 1.10640}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 1.297, .wave_us = 1.7451, .block_us = 0.81168}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 64, .warpgroups = 1, .block_n = 256, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16_fast, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.resident = 2, .fixed_us = 1.656, .wave_us = 2.0045, .block_us = 0.60138}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 2, .block_n = 256, .stages = 3, .schedule = Schedule::pv_first_queued, .pv_columns = 64},
     .estimate = {.fixed_us = 4.368, .wave_us = 1.6871, .block_us = 1.47723, .masked_us = 0.5494}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.resident = 2, .fixed_us = 1.667, .wave_us = 1.7129, .block_us = 0.70208}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 1.661, .wave_us = 1.0673, .block_us = 0.66832}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.fixed_us = 0.564, .wave_us = 2.4867, .block_us = 1.31564}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 4, .block_n = 64, .stages = 6, .schedule = Schedule::pv_first_queued, .pv_columns = 32},
     .estimate = {.fixed_us = 4.379, .wave_us = 1.4239, .block_us = 0.98368}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.fixed_us = 1.519, .wave_us = 1.4889, .block_us = 1.40677}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 3, .block_n = 128, .stages = 6, .schedule = Schedule::pv_first_queued, .pv_columns = 64},
     .estimate = {.fixed_us = 4.004, .wave_us = 1.8083, .block_us = 1.22174}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 64, .warpgroups = 4, .block_n = 96, .stages = 6, .schedule = Schedule::pv_first, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 4.105, .wave_us = 1.5256, .block_us = 1.30685}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 0.814, .wave_us = 1.6947, .block_us = 0.66858}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.1, .fixed_us = 1.480, .wave_us = 2.2222, .block_us = 0.70808}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 3, .block_n = 96, .stages = 4, .schedule = Schedule::qk_first, .pv_columns = 32},
     .estimate = {.fixed_us = 3.570, .wave_us = 3.9350, .block_us = 1.32655}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 32},
     .estimate = {.resident = 3, .alone = 2.6, .fixed_us = 0.000, .wave_us = 1.6841, .block_us = 0.43118}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.fixed_us = 0.546, .wave_us = 3.3533, .block_us = 1.48341}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.fixed_us = 0.922, .wave_us = 2.3845, .block_us = 1.46422}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .pv_columns = 32},
     .estimate = {.fixed_us = 2.179, .wave_us = 4.9850, .block_us = 1.26657}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 1.131, .wave_us = 1.5308, .block_us = 0.68436}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.resident = 3, .alone = 2.5, .fixed_us = 0.000, .wave_us = 1.8142, .block_us = 0.67468}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.2, .fixed_us = 1.324, .wave_us = 2.2341, .block_us = 0.73189}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 3, .block_n = 128, .stages = 4, .schedule = Schedule::qk_first, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.fixed_us = 3.521, .wave_us = 4.2339, .block_us = 1.63112}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 2.525, .wave_us = 5.0648, .block_us = 1.16995}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 0.860, .wave_us = 2.0001, .block_us = 0.75085}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 0.765, .wave_us = 3.1831, .block_us = 1.42916}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 0.977, .wave_us = 2.3846, .block_us = 1.47920}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.resident = 3, .alone = 2.8, .fixed_us = 0.000, .wave_us = 1.5771, .block_us = 0.40616}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.resident = 3, .alone = 2.6, .fixed_us = 0.000, .wave_us = 1.6460, .block_us = 0.70262}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 0.814, .wave_us = 1.6947, .block_us = 0.66858}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.1, .fixed_us = 1.480, .wave_us = 2.2222, .block_us = 0.70808}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 3, .block_n = 96, .stages = 4, .schedule = Schedule::qk_first, .pv_columns = 32},
     .estimate = {.fixed_us = 3.570, .wave_us = 3.9350, .block_us = 1.32655}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 32},
     .estimate = {.resident = 3, .alone = 2.6, .fixed_us = 0.000, .wave_us = 1.6841, .block_us = 0.43118}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.fixed_us = 0.546, .wave_us = 3.3533, .block_us = 1.48341}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.fixed_us = 0.922, .wave_us = 2.3845, .block_us = 1.46422}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .pv_columns = 32},
     .estimate = {.fixed_us = 2.179, .wave_us = 4.9850, .block_us = 1.26657}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 96, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 1.131, .wave_us = 1.5308, .block_us = 0.68436}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .pv_columns = 128},
     .estimate = {.fixed_us = 3.003, .wave_us = 3.3375, .block_us = 1.31623}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.resident = 2, .fixed_us = 1.864, .wave_us = 2.3775, .block_us = 0.86223}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 1.694, .wave_us = 1.4739, .block_us = 0.87210}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.fixed_us = 0.493, .wave_us = 3.2247, .block_us = 1.64134}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .pv_columns = 16},
     .estimate = {.fixed_us = 3.962, .wave_us = 2.7633, .block_us = 1.88988}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.fixed_us = 1.443, .wave_us = 2.3051, .block_us = 1.71106}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 128},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 0.800, .wave_us = 2.5676, .block_us = 0.57571}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 3, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 3.590, .wave_us = 2.2647, .block_us = 1.88021}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 128},
     .estimate = {.fixed_us = 1.288, .wave_us = 2.2023, .block_us = 1.28364}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .min_ctas = 3, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.resident = 3, .alone = 1.4, .fixed_us = 1.858, .wave_us = 1.8102, .block_us = 0.58664}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16, .pv_columns = 128},
     .estimate = {.fixed_us = 2.138, .wave_us = 2.9775, .block_us = 1.08651}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 128},
     .estimate = {.fixed_us = 0.901, .wave_us = 2.9627, .block_us = 1.25863}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .min_ctas = 4, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 32},
     .estimate = {.resident = 4, .alone = 2.5, .fixed_us = 0.000, .wave_us = 2.4521, .block_us = 0.38596}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 1.991, .wave_us = 2.8018, .block_us = 1.58825}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 128},
     .estimate = {.resident = 2, .alone = 1.2, .fixed_us = 1.427, .wave_us = 2.5702, .block_us = 0.61328}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.resident = 2, .alone = 1.4, .fixed_us = 1.274, .wave_us = 1.8388, .block_us = 0.53555}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.fixed_us = 2.366, .wave_us = 2.9083, .block_us = 1.13618}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.fixed_us = 0.857, .wave_us = 2.3613, .block_us = 1.15448}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .min_ctas = 3, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 32},
     .estimate = {.resident = 3, .alone = 1.5, .fixed_us = 2.001, .wave_us = 1.5701, .block_us = 0.54786}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 3, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 2.202, .wave_us = 2.9440, .block_us = 1.60512}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.fixed_us = 1.813, .wave_us = 2.9812, .block_us = 0.95016}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.fixed_us = 0.918, .wave_us = 2.9068, .block_us = 1.12102}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.resident = 2, .alone = 1.5, .fixed_us = 0.071, .wave_us = 2.8737, .block_us = 0.50287}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 1.040, .wave_us = 3.2669, .block_us = 1.39674}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .scores = ScoreType::f16_fast, .pv_columns = 128},
     .estimate = {.fixed_us = 1.098, .wave_us = 2.2536, .block_us = 1.08438}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 2, .block_n = 256, .stages = 2, .schedule = Schedule::pv_first, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.fixed_us = 4.202, .wave_us = 2.1787, .block_us = 2.02785, .masked_us = 0.5760}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.fixed_us = 1.448, .wave_us = 1.9987, .block_us = 1.61950}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first_queued, .row_groups = 1, .pv_columns = 64},
     .estimate = {.resident = 2, .alone = 1.7, .fixed_us = 1.270, .wave_us = 1.7801, .block_us = 0.79005}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.fixed_us = 0.507, .wave_us = 3.1993, .block_us = 1.51975}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 3, .block_n = 64, .stages = 4, .schedule = Schedule::pv_first_queued, .pv_columns = 64},
     .estimate = {.fixed_us = 3.532, .wave_us = 1.8258, .block_us = 0.95597}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 1, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 64},
     .estimate = {.resident = 2, .fixed_us = 1.617, .wave_us = 2.5104, .block_us = 0.83821}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .pv_columns = 128},
     .estimate = {.fixed_us = 3.475, .wave_us = 2.1691, .block_us = 1.22664, .masked_us = 0.2647}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 128, .warpgroups = 3, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 3.459, .wave_us = 2.6314, .block_us = 1.64119}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .pv_columns = 64},
     .estimate = {.fixed_us = 1.946, .wave_us = 3.8213, .block_us = 1.66482}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.fixed_us = 0.614, .wave_us = 3.6833, .block_us = 2.02182}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 0.478, .wave_us = 2.6160, .block_us = 1.03741}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 160, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.fixed_us = 1.227, .wave_us = 3.7691, .block_us = 2.57445}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 96, .stages = 4, .schedule = Schedule::qk_first, .pv_columns = 96},
     .estimate = {.fixed_us = 2.939, .wave_us = 2.9459, .block_us = 1.26344}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 2.383, .wave_us = 4.0616, .block_us = 1.55047}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 192},
     .estimate = {.resident = 2, .alone = 1.1, .fixed_us = 2.216, .wave_us = 2.3598, .block_us = 0.65028}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 192},
     .estimate = {.fixed_us = 0.640, .wave_us = 3.9727, .block_us = 1.94750}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 160, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 2.512, .wave_us = 3.0056, .block_us = 2.44998}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 192, .warpgroups = 2, .block_n = 96, .stages = 4, .schedule = Schedule::qk_first, .scores = ScoreType::f16, .pv_columns = 96},
     .estimate = {.fixed_us = 3.273, .wave_us = 3.8685, .block_us = 1.28087}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::qk_first, .pv_columns = 64},
     .estimate = {.fixed_us = 2.262, .wave_us = 3.3341, .block_us = 1.67562, .masked_us = 0.7374}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 192, .warpgroups = 2, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .pv_columns = 96},
     .estimate = {.fixed_us = 0.614, .wave_us = 3.6833, .block_us = 2.02182}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 192, .warpgroups = 1, .block_n = 128, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.resident = 2, .alone = 1.6, .fixed_us = 0.478, .wave_us = 2.6160, .block_us = 1.03741}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 192, .warpgroups = 2, .block_n = 160, .stages = 1, .schedule = Schedule::pv_first, .row_groups = 1, .pv_columns = 96},
     .estimate = {.fixed_us = 1.227, .wave_us = 3.7691, .block_us = 2.57445}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 96, .stages = 4, .schedule = Schedule::pv_first, .pv_columns = 64},
     .estimate = {.fixed_us = 3.770, .wave_us = 3.6001, .block_us = 1.85296}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 64, .stages = 4, .schedule = Schedule::pv_first, .pv_columns = 64},
     .estimate = {.fixed_us = 3.038, .wave_us = 3.8521, .block_us = 1.39349}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 2.105, .wave_us = 4.6447, .block_us = 1.84072}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 1.327, .wave_us = 3.8675, .block_us = 0.99383}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 3.000, .wave_us = 4.0748, .block_us = 2.31288}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16, .pv_columns = 64},
     .estimate = {.fixed_us = 1.521, .wave_us = 4.5811, .block_us = 1.96586}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first_queued, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 0.964, .wave_us = 4.5700, .block_us = 1.76765}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 1, .block_n = 64, .stages = 2, .schedule = Schedule::pv_first, .row_groups = 1, .cluster = 2, .scores = ScoreType::f16_fast, .pv_columns = 64},
     .estimate = {.fixed_us = 1.508, .wave_us = 3.8243, .block_us = 0.93461}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 160, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 1.117, .wave_us = 4.3311, .block_us = 2.29029}},
    {.config = {.element = Element::e4m3, .v_element = Element::e4m3, .head_dim = 256, .warpgroups = 2, .block_n = 128, .stages = 2, .schedule = Schedule::pv_first, .scores = ScoreType::f16_fast, .pv_columns = 32},
     .estimate = {.fixed_us = 0.529, .wave_us = 4.2754, .block_us = 2.08603}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 256, .warpgroups = 2, .block_n = 96, .stages = 4, .schedule = Schedule::pv_first_queued, .pv_columns = 64, .pv_buffers = 2},
     .estimate = {.fixed_us = 3.455, .wave_us = 3.1649, .block_us = 1.48362}},
    {.config = {.element = Element::int8, .v_element = Element::int8, .head_dim = 256, .warpgroups = 2, .block_n = 64, .stages = 4, .schedule = Schedule::pv_first_queued, .pv_columns = 32, .pv_buffers = 2},
     .estimate = {.fixed_us = 2.711, .wave_us = 3.3602, .block_us = 1.10500}},
};
// clang-format on

// The kernel of a row for outputs without LSE; 8-bit rows with one scale of K for each head.
OCTAVO_HD constexpr Sm90ForwardConfig config_of(const TableRow& row, Element element) {
  Sm90ForwardConfig c = row.config;
  c.element = c.v_element = element;
  c.output.element = element == Element::bf16 ? Element::bf16 : Element::f16;
  // If there is room, O is divided by the sum of the same rounded P that weights V.
  if (is_8bit_pv(c)) {
    c.sum_rounded_p = true;
    if (registers_held(c) > register_budget(c) || smem_bytes(c) > kSmemBytes)
      c.sum_rounded_p = false;
  }
  return c;
}

// The kernel of a 16-bit row with 8-bit Q and K: it has the P V of 16 bits, which needs most of the
// registers.
OCTAVO_HD constexpr Sm90ForwardConfig mixed_config_of(const TableRow& row, Element element,
                                                      Element v_element) {
  Sm90ForwardConfig c = config_of(row, v_element);
  c.element = element;
  c.output.element = v_element;
  return c;
}

// Takes shared memory from stages beyond the second, or with split-KV beyond the first, then from
// the columns of ones.
OCTAVO_HD constexpr void fit_smem(Sm90ForwardConfig& c) {
  while (smem_bytes(c) > kSmemBytes && c.stages > (is_split_kv(c) ? 1 : 2)) --c.stages;
  if (smem_bytes(c) > kSmemBytes) c.sum_rounded_p = false;
}

// CTAs of a configuration that an SM holds, at most `most`.
OCTAVO_HD constexpr int resident_ctas(const Sm90ForwardConfig& c, int most) {
  constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024;  // of an SM; of each CTA
  constexpr int kFile = 65536;                                 // registers
  const int by_smem = kSmBytes / (smem_bytes(c) + kReservedBytes);
  const int by_registers = kFile / (threads(c) * round_up(registers_held(c), 8));
  return max_of(min_of(most, min_of(by_smem, by_registers)), 1);
}

// Kernels whose V has other columns than Q and K, timed at the head dims of MLA's prefill with
// 2,048 to 8,192 keys and fitted by hand.
// clang-format off
inline constexpr TableRow kTableOfPairs[] = {
    {.config = {.head_dim = 192, .head_dim_v = 128, .warpgroups = 3, .block_n = 80, .stages = 3, .schedule = Schedule::qk_first, .sum_rounded_p = false},
     .estimate = {.wave_us = 3.6, .block_us = 1.68}},
    {.config = {.head_dim = 192, .head_dim_v = 128, .warpgroups = 2, .block_n = 64, .stages = 2, .schedule = Schedule::qk_first},
     .estimate = {.wave_us = 3.2, .block_us = 1.085}},
};
// clang-format on

// A 16-bit row for other tiles: head_dim columns of Q and K, and head_dim_v of V and O. No search
// has timed such kernels, so their times are scaled from the row's. In the table the time of a
// block is proportional to 100 + 2 head_dim: 0.46 us, and 0.58 us for each 64 of head_dim, for 128
// rows by 128 keys. The caller checks that the result is feasible.
OCTAVO_HD constexpr TableRow with_head_dims(const TableRow& row, int head_dim, int head_dim_v) {
  constexpr int kOtherColumns = 100, kMostColumns = 256;
  TableRow made = row;
  Sm90ForwardConfig& c = made.config;
  c.head_dim = head_dim;
  c.head_dim_v = head_dim_v == head_dim ? 0 : head_dim_v;
  if (head_dim_v + ones_columns(c) > kMostColumns) c.sum_rounded_p = false;
  fit_smem(c);
  Estimate& e = made.estimate;
  const double longer = static_cast<double>(kOtherColumns + head_dim + head_dim_v) /
                        (kOtherColumns + 2 * row.config.head_dim);
  e.wave_us *= longer;
  e.block_us *= longer;
  e.resident = resident_ctas(c, row.estimate.resident);
  if (e.resident < row.estimate.resident) {
    // Interpolates between one CTA on an SM (`alone`) and as many as the row has.
    const double fewer =
        static_cast<double>(row.estimate.resident - e.resident) / (row.estimate.resident - 1);
    const double slower = 1 + (e.alone - 1) * fewer;
    e.block_us *= slower;
    e.alone /= slower;
  }
  return made;
}

inline constexpr Element kShippedElements[] = {Element::f16, Element::bf16};

OCTAVO_HD constexpr bool is_shipped(const TableRow& row) {
  const int head_dim = row.config.head_dim;
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

}  // namespace sm90
}  // namespace octavo
