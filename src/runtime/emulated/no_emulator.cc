// SPDX-License-Identifier: Apache-2.0
// Replaces the emulator in a library that is built without it.
#include "base/error.h"
#include "octavo/emulator.hpp"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/plan/gpu_backward_plan.h"

namespace octavo {
namespace {

Status absent() {
  return unsupported("device", "emulator (this library was built without it)", "cpu, cuda");
}

}  // namespace

Result<const Gpu*> emulated_gpu(Device /*device*/) { return absent(); }

Result<std::shared_ptr<const BackwardPlan::Impl>> make_emulator_backward_plan(
    const Problem& /*problem*/, Device /*device*/) {
  return absent();
}

std::string describe_emulator(Device /*device*/) { return ""; }

bool has_emulator() { return false; }

void set_emulator_schedule(std::optional<std::uint64_t> /*seed*/) {}

std::vector<EmulatedKernel> emulated_kernels() { return {}; }

std::vector<SelftestResult> emulator_selftest(int /*schedules*/) { return {}; }

Result<ConformanceReport> emulator_conformance(const std::string& /*golden*/) { return absent(); }

Result<std::vector<MutantReport>> emulator_mutants(const std::string& /*kernel*/,
                                                   const EmulatorProgress& /*progress*/) {
  return absent();
}

Result<std::vector<MeasureReport>> emulator_measure(const std::string& /*kernel*/,
                                                    const EmulatorProgress& /*progress*/) {
  return absent();
}

}  // namespace octavo
