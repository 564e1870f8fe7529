// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "device/quantize_run.h"
#include "gpu/forward/forward_params.h"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::test {

QuantizeLeft quantize_in_emulator(const QuantizeGiven& given) {
  QuantizeLeft left;
  const Result<Problem> run_problem = problem_of(given.arguments, given.options);
  if (!run_problem.ok()) {
    ADD_FAILURE() << run_problem.status().message();
    return left;
  }
  const Result<Resolved> resolved = resolve(*run_problem, &given.arguments, given.layout, true);
  if (!resolved.ok()) {
    ADD_FAILURE() << resolved.status().message();
    return left;
  }
  const auto head_dim = static_cast<int>(run_problem->head_dim);
  const auto substitute = [&](QuantizeConfig config, std::int64_t) {
    if (config.to == Element::e4m3) config.to = element_of(given.format);
    const emulator::EmulatedQuantize* const found = emulator::find_quantize(config, head_dim);
    return found != nullptr ? found->config : config;
  };
  std::byte* const workspace = aligned_workspace(left, resolved->workspace_bytes);
  const bool hopper = given.layout == VLayout::transposed;
  const GpuInfo& chip = emulated_gpu({Device::Kind::emulator, hopper ? 90 : 0}).value()->info;
  left.call = prepare_call(*resolved, given.arguments, workspace, chip.arch, substitute);
  set_format(given, left);
  for (std::size_t i = 0; i < left.call.count; ++i) {
    const QuantizeLaunch& pass = left.call.launches[i];
    const emulator::EmulatedQuantize* const kernel = emulator::find_quantize(pass.config, head_dim);
    if (kernel == nullptr) {
      ADD_FAILURE() << "the emulator has no such kernel";
      return left;
    }
    const Status status =
        run_emulated(*kernel, chip, pass, {}, [](const emulator::Machine& machine) {
          EXPECT_TRUE(machine.report().clean()) << machine.report().text();
        });
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return left;
}

}  // namespace octavo::test
