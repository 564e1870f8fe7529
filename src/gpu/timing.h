// Times of work on a GPU, by replaying a CUDA graph: no launch from the host in between.
#pragma once

#include <functional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

struct GraphTiming {
  int calls = 20;         // captured into the graph, back to back
  double warmup_ms = 50;  // of replays before the first sample, for clocks and caches to settle
  int samples = 15;       // timed replays
};

// Microseconds of one call, one value per timed replay. `launch` enqueues one call on the stream it
// is given; it is first run once outside the capture, so that it may load what it needs.
//
// Each timed replay follows another that is still running when it is enqueued: between the events
// stands the work alone, not the ten or twenty microseconds in which an idle GPU takes up a graph.
// Inputs are the same in every call: what fits into L2 is found there.
Result<std::vector<double>> graph_times_us(Device device, const GraphTiming& timing,
                                           const std::function<Status(Stream)>& launch);

}  // namespace octavo
