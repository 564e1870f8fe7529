// SPDX-License-Identifier: Apache-2.0
#include "evidence/bench/host_cost.h"

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "evidence/bench/stats.h"
#include "gpu/driver/context.h"
#include "runtime/plan/gpu_plan.h"

namespace octavo::evidence {
namespace {

// So few that the stream accepts all of them before the GPU has finished one. With a full stream
// the host would wait for the GPU.
constexpr int kCallsInTurn = 100;
constexpr int kTurns = 51;

using Enqueue = std::function<Status()>;

Result<double> nanoseconds_per_call(const Enqueue& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kCallsInTurn; ++i) OCTAVO_RETURN_IF_ERROR(work());
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCallsInTurn;
}

// The variants alternate, so that clocks and other load are the same for all.
Result<std::vector<double>> medians_ns(Device device, Stream stream,
                                       const std::vector<Enqueue>& all) {
  std::vector<std::vector<double>> samples(all.size());
  for (int i = -1; i < kTurns; ++i)  // the first turn is a warm-up
    for (std::size_t w = 0; w < all.size(); ++w) {
      const Result<double> ns = nanoseconds_per_call(all[w]);
      if (!ns.ok()) return ns.status();
      if (i >= 0) samples[w].push_back(*ns);
      OCTAVO_RETURN_IF_ERROR(synchronize(device, stream));
    }
  std::vector<double> medians;
  for (const std::vector<double>& ns : samples) medians.push_back(quantile(ns, 0.5));
  return medians;
}

}  // namespace

Result<HostCost> host_cost(const Plan::Impl& plan, const Arguments& arguments,
                           Workspace workspace) {
  const Result<const Gpu*> gpu = open_gpu(plan.device.index);
  if (!gpu.ok()) return gpu.status();
  const CurrentContext current(**gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const Result<std::shared_ptr<const OwnStream>> own = OwnStream::make(plan.device.index);
  if (!own.ok()) return own.status();
  const Stream stream = (*own)->handle();
  const Plan shared(std::shared_ptr<const Plan::Impl>(std::shared_ptr<void>(), &plan));
  // Calls alternate between two sets of addresses, like the layers of a model. The second set has K
  // and V exchanged.
  std::array<Arguments, 2> turns = {arguments, arguments};
  std::swap(turns[1].k.data, turns[1].v.data);
  std::size_t turn = 0;
  std::vector<Enqueue> all = {
      [&] { return shared.run(turns[++turn % 2], workspace, stream); },
      [&] { return attention(turns[++turn % 2], plan.problem.options, plan.device, stream); }};
  const Result<Enqueue> bare = bare_launch(plan, arguments, stream);
  if (!bare.ok()) return bare.status();
  if (*bare) all.push_back(*bare);
  const Result<std::vector<double>> ns = medians_ns(plan.device, stream, all);
  if (!ns.ok()) return ns.status();
  HostCost cost{(*ns)[0], (*ns)[1]};
  if (*bare) cost.bare_launch_ns = (*ns)[2];
  return cost;
}

}  // namespace octavo::evidence
