// SPDX-License-Identifier: Apache-2.0
// Times calls on a GPU.
#pragma once

#include <functional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

struct GpuTiming {
  int calls = 20;         // back-to-back calls per sample; 1 with a cold L2
  double warmup_ms = 50;  // before the first sample, for clocks and caches to settle
  int samples = 15;
  bool stream = false;  // launched by the host one by one, not replayed from a CUDA graph
  bool cold = false;    // L2 is overwritten before each call
};

struct GpuTimes {
  std::vector<double> samples_us;  // microseconds of one call, one value per sample
  double empty_us = 0;             // a sample without a call, with a cold L2; not subtracted
};

// `launch` enqueues one call on the given stream. It is first run once untimed, so that it can load
// its kernels.
//
// Each timed graph replay is enqueued while another is still running, so that the events enclose
// only the work and not the 10 to 20 us that an idle GPU needs to start a graph. Launches from the
// host follow one untimed call; if a call is shorter than its launch, the launch is timed. With a
// cold L2 every sample is one call, enqueued while the GPU still overwrites L2.
Result<GpuTimes> gpu_times(Device device, const GpuTiming& timing,
                           const std::function<Status(Stream)>& launch);

}  // namespace octavo
