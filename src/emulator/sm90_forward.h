// The Hopper forward kernels that are compiled for the emulator.
#pragma once

#include <vector>

#include "config/sm90_forward.h"
#include "device/sm90/params.cuh"

namespace octavo::emulator {

struct EmulatedSm90Forward {
  Sm90ForwardConfig config;
  void (*entry)(const Sm90ForwardParams&) = nullptr;  // in 8 bits of the longer parameters
};

// Every row of the table that problems are given to, in both 16-bit types; again as LSE needs it,
// where that differs; and some with FP32 output, launched early, or with packed heads. The rows of
// 8 bits in E4M3, with K's scales by head and by row, and some in E5M2 and INT8 or with other
// outputs. Some of 16 bits again beside 8-bit Q and K. Last some whose output is codes, or whose
// largest magnitude is gathered.
const std::vector<EmulatedSm90Forward>& sm90_forward_kernels();

}  // namespace octavo::emulator
