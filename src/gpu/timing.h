// Times of work on a GPU, by replaying a CUDA graph: no launch from the host in between.
#pragma once

#include <functional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

struct GraphTiming {
  int calls = 20;    // captured into the graph, back to back
  int warmup = 2;    // replays before the first sample
  int samples = 15;  // timed replays
};

// Microseconds of one call, one value per timed replay. `launch` enqueues one call on the stream it
// is given; it is first run once outside the capture, so that it may load what it needs.
Result<std::vector<double>> graph_times_us(Device device, const GraphTiming& timing,
                                           const std::function<Status(Stream)>& launch);

}  // namespace octavo
