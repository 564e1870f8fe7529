// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver/timing.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "gpu/driver/context.h"

namespace octavo {
namespace {

// The handles of one timing, which are released after errors too.
struct Handles {
  const Driver& d;
  cuda::StreamHandle stream = nullptr;
  cuda::Event begin = nullptr, end = nullptr;
  cuda::Graph graph = nullptr;
  cuda::GraphExec replay = nullptr;
  cuda::DevicePointer flush = 0;  // more than L2 holds
  std::size_t flush_bytes = 0;
  ~Handles() {
    if (replay != nullptr) (void)d.graph_exec_destroy(replay);
    if (graph != nullptr) (void)d.graph_destroy(graph);
    if (begin != nullptr) (void)d.event_destroy(begin);
    if (end != nullptr) (void)d.event_destroy(end);
    if (stream != nullptr) (void)d.stream_destroy(stream);
    if (flush != 0) (void)d.mem_free(flush);
  }
};

using Launch = std::function<Status(Stream)>;

Status capture(Handles& h, int calls, const Launch& launch) {
  OCTAVO_GPU_TRY(h.d, h.d.stream_begin_capture(h.stream, cuda::CaptureMode::thread_local_mode),
                 "cuStreamBeginCapture");
  Status failed;
  for (int i = 0; i < calls && failed.ok(); ++i) failed = launch(h.stream);
  // A capture must be ended even if a launch failed.
  const cuda::Error ended = h.d.stream_end_capture(h.stream, &h.graph);
  OCTAVO_RETURN_IF_ERROR(failed);
  OCTAVO_GPU_TRY(h.d, ended, "cuStreamEndCapture");
  OCTAVO_GPU_TRY(h.d, h.d.graph_instantiate(&h.replay, h.graph, 0), "cuGraphInstantiate");
  return {};
}

// Enqueues everything that one sample times.
Status enqueue(Handles& h, const GpuTiming& timing, const Launch& launch) {
  if (timing.stream) {
    for (int i = 0; i < timing.calls; ++i) OCTAVO_RETURN_IF_ERROR(launch(h.stream));
    return {};
  }
  OCTAVO_GPU_TRY(h.d, h.d.graph_launch(h.replay, h.stream), "cuGraphLaunch");
  return {};
}

// Enqueues work before the timed part, which is still running when the timed part is enqueued.
Status lead_in(Handles& h, const GpuTiming& timing, const Launch& launch) {
  if (timing.cold) {
    OCTAVO_GPU_TRY(h.d, h.d.memset_d8_async(h.flush, 0, h.flush_bytes, h.stream),
                   "cuMemsetD8Async");
    return {};
  }
  if (timing.stream) return launch(h.stream);
  return enqueue(h, timing, launch);
}

Result<double> sample_us(Handles& h, const GpuTiming& timing, const Launch& lead,
                         const Launch& timed) {
  OCTAVO_RETURN_IF_ERROR(lead(h.stream));
  OCTAVO_GPU_TRY(h.d, h.d.event_record(h.begin, h.stream), "cuEventRecord");
  OCTAVO_RETURN_IF_ERROR(timed(h.stream));
  OCTAVO_GPU_TRY(h.d, h.d.event_record(h.end, h.stream), "cuEventRecord");
  OCTAVO_GPU_TRY(h.d, h.d.event_synchronize(h.end), "cuEventSynchronize");
  float ms = 0;
  OCTAVO_GPU_TRY(h.d, h.d.event_elapsed_ms(&ms, h.begin, h.end), "cuEventElapsedTime");
  return static_cast<double>(ms) * 1e3 / timing.calls;
}

Status prepare(Handles& h, const Gpu& gpu, const GpuTiming& timing, const Launch& launch) {
  const Driver& d = h.d;
  OCTAVO_GPU_TRY(d, d.stream_create(&h.stream, cuda::kStreamNonBlocking), "cuStreamCreate");
  OCTAVO_GPU_TRY(d, d.event_create(&h.begin, 0), "cuEventCreate");
  OCTAVO_GPU_TRY(d, d.event_create(&h.end, 0), "cuEventCreate");
  if (timing.cold) {
    h.flush_bytes = 2 * static_cast<std::size_t>(gpu.info.l2_bytes);
    OCTAVO_GPU_TRY(d, d.mem_alloc(&h.flush, h.flush_bytes), "cuMemAlloc");
  }
  OCTAVO_RETURN_IF_ERROR(launch(h.stream));
  OCTAVO_GPU_TRY(d, d.stream_synchronize(h.stream), "cuStreamSynchronize");
  return timing.stream ? Status() : capture(h, timing.calls, launch);
}

}  // namespace

Result<GpuTimes> gpu_times(Device device, const GpuTiming& asked, const Launch& launch) {
  GpuTiming timing = asked;
  if (timing.cold) timing.calls = 1;
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  const CurrentContext current(**gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  Handles h{*(*gpu)->driver};
  OCTAVO_RETURN_IF_ERROR(prepare(h, **gpu, timing, launch));
  const Launch lead = [&](Stream) { return lead_in(h, timing, launch); };
  const Launch timed = [&](Stream) { return enqueue(h, timing, launch); };
  const Launch nothing = [](Stream) { return Status(); };

  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double, std::milli> warmup(timing.warmup_ms);
  do {
    const Result<double> us = sample_us(h, timing, lead, timed);
    if (!us.ok()) return us.status();
  } while (std::chrono::steady_clock::now() - start < warmup);
  GpuTimes times;
  std::vector<double> empty_us;
  for (int i = 0; i < timing.samples; ++i) {
    const Result<double> us = sample_us(h, timing, lead, timed);
    if (!us.ok()) return us.status();
    times.samples_us.push_back(*us);
    if (!timing.cold) continue;
    const Result<double> empty = sample_us(h, timing, lead, nothing);
    if (!empty.ok()) return empty.status();
    empty_us.push_back(*empty);
  }
  if (!empty_us.empty()) {
    const auto middle = empty_us.begin() + static_cast<std::ptrdiff_t>(empty_us.size() / 2);
    std::nth_element(empty_us.begin(), middle, empty_us.end());
    times.empty_us = *middle;
  }
  return times;
}

}  // namespace octavo
