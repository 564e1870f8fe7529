#include "evidence/gpu_suite.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "evidence/gpu_oracle.h"
#include "evidence/inputs.h"
#include "gpu/kernel_store.h"
#include "runtime/gpu_plan.h"

namespace octavo::evidence {
namespace {

std::vector<KernelSource> kernels_of_case(Device device, const Case& c) {
  const Posed posed = posed_by(c);
  const Result<std::vector<KernelSource>> kernels =
      gpu_kernels(posed.problem, device, posed.row_alignment);
  return kernels.ok() ? *kernels : std::vector<KernelSource>();
}

}  // namespace

std::vector<Case> gpu_cases(Device device, std::uint64_t seed) {
  // A kernel takes one to three seconds to compile, a quantizer half of one: so many are less than
  // a minute of sixteen cores.
  constexpr std::size_t kCases = 2400, kKernels = 480;
  const KernelsOf kernels_of = [device](const Case& c) {
    std::vector<std::string> names;
    for (const KernelSource& kernel : kernels_of_case(device, c))
      names.push_back(kernel.name_expression);
    return names;
  };
  return served_cases(seed, kCases, kernels_of, kKernels);
}

std::int64_t compile_kernels(Device device, const std::vector<Case>& cases,
                             const Progress& progress) {
  std::map<std::string, KernelSource> needed;
  for (const Case& c : cases)
    for (const KernelSource& kernel : kernels_of_case(device, c))
      needed.emplace(kernel.name_expression, kernel);
  std::vector<KernelSource> list;
  for (const auto& [name, kernel] : needed) list.push_back(kernel);
  const auto total = static_cast<std::int64_t>(list.size());

  std::atomic<std::size_t> next = 0;
  const auto work = [&](bool report) {
    for (std::size_t i = next++; i < list.size(); i = next++) {
      (void)kernel_store().get(list[i], {.allow_spills = true});
      if (report && progress) progress(static_cast<std::int64_t>(i + 1), total);
    }
  };
  std::vector<std::thread> helpers;
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  for (unsigned t = 1; t < cores; ++t) helpers.emplace_back(work, false);
  work(true);
  for (std::thread& helper : helpers) helper.join();
  return total;
}

CheckOracle oracle_for(Device device) {
  if (device.kind != Device::Kind::cuda) return {};
  const Result<Oracle> oracle = gpu_oracle(device);
  return oracle.ok() ? CheckOracle{*oracle, name(device)} : CheckOracle{};
}

}  // namespace octavo::evidence
