// Times of work on a GPU.
#pragma once

#include <functional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

struct GpuTiming {
  int calls = 20;         // of a sample, back to back; one where L2 is cold
  double warmup_ms = 50;  // before the first sample, for clocks and caches to settle
  int samples = 15;
  bool stream = false;  // launched by the host one after the other, not replayed from a CUDA graph
  bool cold = false;    // L2 is overwritten before each call
};

struct GpuTimes {
  std::vector<double> samples_us;  // microseconds of one call, one value per sample
  double empty_us = 0;             // of a sample without a call, where L2 is cold: not subtracted
};

// `launch` enqueues one call on the stream it is given; it is first run once alone, so that it may
// load what it needs.
//
// Each timed replay of a graph follows another that is still running when it is enqueued: between
// the events stands the work alone, not the ten or twenty microseconds in which an idle GPU takes
// up a graph. Launches from the host follow one call that is not timed: where a call is shorter
// than its launch, the launch is what is timed. With a cold L2 every sample is one call, enqueued
// while the GPU still overwrites L2.
Result<GpuTimes> gpu_times(Device device, const GpuTiming& timing,
                           const std::function<Status(Stream)>& launch);

}  // namespace octavo
