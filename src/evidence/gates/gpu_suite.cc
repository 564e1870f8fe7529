// SPDX-License-Identifier: Apache-2.0
#include "evidence/gates/gpu_suite.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "config/sm90_shipped.h"
#include "cpu/thread_pool.h"
#include "evidence/cases/inputs.h"
#include "evidence/oracle/gpu_oracle.h"
#include "gpu/driver/context.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_store.h"
#include "octavo/emulator.hpp"
#include "runtime/plan/gpu_plan.h"

namespace octavo::evidence {
namespace {

// The kernel of a forced configuration, if the device supports it.
std::vector<KernelSource> forced_kernel(Device device, const Case& c) {
  const Result<const Gpu*> gpu = open_gpu(device.index);
  const Result<Sm90ForwardConfig> config = parse_sm90_forward(c.config);
  if (!gpu.ok() || !config.ok()) return {};
  const GpuInfo& info = (*gpu)->info;
  if (!feasible(*config, info.arch, info.smem_per_block_optin).ok()) return {};
  return {kernel_source(*config)};
}

// Minimal configurations, one for every way to divide keys among warpgroups and CTAs.
std::vector<Sm90ForwardConfig> key_divisions(int head_dim) {
  std::vector<Sm90ForwardConfig> configs;
  for (const int warpgroups : {1, 2, 4})
    for (int row_groups = 1; row_groups <= warpgroups; row_groups *= 2)
      for (const int cluster : {1, 2, 4, 8}) {
        Sm90ForwardConfig c;
        c.head_dim = head_dim;
        c.warpgroups = warpgroups;
        c.block_n = 64;
        c.stages = 1;
        c.schedule = Schedule::in_turn;
        c.row_groups = row_groups;
        c.cluster = cluster;
        c.sum_rounded_p = false;
        for (const bool pack_gqa : {false, true}) {
          c.pack_gqa = pack_gqa;
          configs.push_back(c);
        }
      }
  return configs;
}

// Cases with 16-byte aligned rows, which TMA needs, and varlen batches for configurations that take
// them.
void add_config_cases(std::vector<Case>& cases, const Sm90ForwardConfig& config, std::size_t count,
                      std::uint64_t& seed) {
  for (std::size_t i = 0; i < count; ++seed) {
    Case c = without_modifiers(random_case(seed));
    c.input = static_cast<DType>(config.element);
    c.v = c.kv = {};
    c.out = static_cast<DType>(config.output.element);
    c.options.precision = Precision::native;
    c.options.quantization = {};
    // Every other case has padding columns.
    c.head_dim = config.head_dim - static_cast<std::int64_t>(i % 2 == 0 ? 0 : 8 * (1 + i / 2 % 3));
    if (problem_for(c).row_alignment < 16 ||
        (sm90::is_split_kv(config) && c.layout == Layout::varlen))
      continue;
    Sm90ForwardConfig forced = config;
    forced.sum_rounded_p = config.sum_rounded_p && !c.lse;  // as in choose_sm90_forward
    c.config = to_text(forced);
    cases.push_back(c);
    ++i;
  }
}

std::vector<KernelSource> kernels_of_case(Device device, const Case& c) {
  if (!c.config.empty()) return forced_kernel(device, c);
  const CaseProblem run_problem = problem_for(c);
  const Result<std::vector<KernelSource>> kernels =
      gpu_kernels(run_problem.problem, device, run_problem.row_alignment);
  return kernels.ok() ? *kernels : std::vector<KernelSource>();
}

KernelsOf kernel_names(Device device) {
  return [device](const Case& c) {
    std::vector<std::string> names;
    for (const KernelSource& kernel : kernels_of_case(device, c))
      names.push_back(kernel.name_expression);
    return names;
  };
}

}  // namespace

std::vector<Case> gpu_only_served(Device device, const std::vector<Case>& cases,
                                  std::size_t most_kernels) {
  return only_served(cases, kernel_names(device), most_kernels);
}

std::vector<Case> gpu_cases(Device device, std::uint64_t seed) {
  // A kernel takes one to three seconds to compile, a quantizer half a second: this many take less
  // than a minute on sixteen cores.
  constexpr std::size_t kCases = 2400, kKernels = 480;
  return served_cases(seed, kCases, kernel_names(device), kKernels);
}

std::vector<Case> emulator_cases(Device device, std::uint64_t seed, std::int64_t count) {
  const auto serves = [device](const Case& c) {
    return explain(problem_for(c).problem, device).ok();
  };
  std::vector<Case> cases;
  for (std::uint64_t next = seed * 1'000'000; static_cast<std::int64_t>(cases.size()) < count;
       ++next) {
    Case c = small_random_case(next);
    if (!serves(c)) c = without_modifiers(c);
    if (serves(c)) cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<Case> config_cases(std::uint64_t seed) {
  constexpr std::size_t kCasesOfRow = 56, kCasesOfDivision = 6;
  std::uint64_t next = seed * 1'000'000;
  std::vector<Case> cases;
  for (const sm90::TableRow& row : sm90::kTable)
    for (const Element element : sm90::kShippedElements)
      add_config_cases(cases, sm90::config_of(row, element), kCasesOfRow, next);
  for (const int head_dim : {64, 96, 128, 192, 256})
    for (const Sm90ForwardConfig& config : key_divisions(head_dim))
      add_config_cases(cases, config, kCasesOfDivision, next);
  return cases;
}

Result<std::vector<Case>> cases_of_emulator(std::uint64_t seed) {
  if (!has_emulator())
    return Status(ErrorCode::unsupported,
                  "suite \"emulated\" needs the emulator, which this library was built without.");
  std::vector<Case> cases;
  for (Case& c : all_cases(seed)) {
    if (c.values != InputValues::normal)
      continue;  // The emulator would take hours for so many keys.
    CaseProblem run_problem = problem_for(c);
    Result<Explanation> there = explain(run_problem.problem, kEmulatedHopper);
    if (!there.ok()) {  // perhaps for its modifiers
      c = without_modifiers(c);
      run_problem = problem_for(c);
      there = explain(run_problem.problem, kEmulatedHopper);
    }
    if (!there.ok() || there->kernel != "sm90_forward" || run_problem.row_alignment < 16) continue;
    c.config = there->config;
    cases.push_back(std::move(c));
  }
  return cases;
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
  const auto work = [&](int thread) {
    for (std::size_t i = next++; i < list.size(); i = next++) {
      (void)kernel_store().get(list[i], {.allow_spills = true});
      if (thread == 0 && progress) progress(static_cast<std::int64_t>(i + 1), total);
    }
  };
  cpu::on_own_threads(static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U)), work);
  return total;
}

CheckOracle oracle_for(Device device) {
  if (device.kind != Device::Kind::cuda) return {};
  const Result<Oracle> oracle = gpu_oracle(device);
  return oracle.ok() ? CheckOracle{*oracle, name(device)} : CheckOracle{};
}

}  // namespace octavo::evidence
