#include "gpu/timing.h"

#include <chrono>

#include "attention/error.h"
#include "gpu/context.h"

namespace octavo {
namespace {

// The handles of one timing, released in whatever state it ends.
struct Handles {
  const Driver& d;
  cuda::StreamHandle stream = nullptr;
  cuda::Event begin = nullptr, end = nullptr;
  cuda::Graph graph = nullptr;
  cuda::GraphExec replay = nullptr;
  ~Handles() {
    if (replay != nullptr) (void)d.graph_exec_destroy(replay);
    if (graph != nullptr) (void)d.graph_destroy(graph);
    if (begin != nullptr) (void)d.event_destroy(begin);
    if (end != nullptr) (void)d.event_destroy(end);
    if (stream != nullptr) (void)d.stream_destroy(stream);
  }
};

Status capture(Handles& h, int calls, const std::function<Status(Stream)>& launch) {
  OCTAVO_GPU_TRY(h.d, h.d.stream_begin_capture(h.stream, cuda::CaptureMode::thread_local_mode),
                 "cuStreamBeginCapture");
  Status failed;
  for (int i = 0; i < calls && failed.ok(); ++i) failed = launch(h.stream);
  // A capture that was begun must be ended, whatever was launched into it.
  const cuda::Error ended = h.d.stream_end_capture(h.stream, &h.graph);
  OCTAVO_RETURN_IF_ERROR(failed);
  OCTAVO_GPU_TRY(h.d, ended, "cuStreamEndCapture");
  OCTAVO_GPU_TRY(h.d, h.d.graph_instantiate(&h.replay, h.graph, 0), "cuGraphInstantiate");
  return {};
}

Status warm_up(Handles& h, double ms) {
  const auto start = std::chrono::steady_clock::now();
  do {
    OCTAVO_GPU_TRY(h.d, h.d.graph_launch(h.replay, h.stream), "cuGraphLaunch");
    OCTAVO_GPU_TRY(h.d, h.d.stream_synchronize(h.stream), "cuStreamSynchronize");
  } while (std::chrono::steady_clock::now() - start <
           std::chrono::duration<double, std::milli>(ms));
  return {};
}

Result<double> replay_us(Handles& h, int calls) {
  OCTAVO_GPU_TRY(h.d, h.d.graph_launch(h.replay, h.stream), "cuGraphLaunch");
  OCTAVO_GPU_TRY(h.d, h.d.event_record(h.begin, h.stream), "cuEventRecord");
  OCTAVO_GPU_TRY(h.d, h.d.graph_launch(h.replay, h.stream), "cuGraphLaunch");
  OCTAVO_GPU_TRY(h.d, h.d.event_record(h.end, h.stream), "cuEventRecord");
  OCTAVO_GPU_TRY(h.d, h.d.event_synchronize(h.end), "cuEventSynchronize");
  float ms = 0;
  OCTAVO_GPU_TRY(h.d, h.d.event_elapsed_ms(&ms, h.begin, h.end), "cuEventElapsedTime");
  return static_cast<double>(ms) * 1e3 / calls;
}

}  // namespace

Result<std::vector<double>> graph_times_us(Device device, const GraphTiming& timing,
                                           const std::function<Status(Stream)>& launch) {
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  const CurrentContext current(**gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const Driver& d = *(*gpu)->driver;
  Handles h{d};
  OCTAVO_GPU_TRY(d, d.stream_create(&h.stream, cuda::kStreamNonBlocking), "cuStreamCreate");
  OCTAVO_GPU_TRY(d, d.event_create(&h.begin, 0), "cuEventCreate");
  OCTAVO_GPU_TRY(d, d.event_create(&h.end, 0), "cuEventCreate");
  OCTAVO_RETURN_IF_ERROR(launch(h.stream));
  OCTAVO_GPU_TRY(d, d.stream_synchronize(h.stream), "cuStreamSynchronize");
  OCTAVO_RETURN_IF_ERROR(capture(h, timing.calls, launch));
  OCTAVO_RETURN_IF_ERROR(warm_up(h, timing.warmup_ms));
  std::vector<double> samples;
  for (int i = 0; i < timing.samples; ++i) {
    const Result<double> us = replay_us(h, timing.calls);
    if (!us.ok()) return us.status();
    samples.push_back(*us);
  }
  return samples;
}

}  // namespace octavo
