// SPDX-License-Identifier: Apache-2.0
// Runs one emulated Hopper kernel in a check, with its operands prepared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "evidence/cases/emulated_cases.h"
#include "evidence/gates/check.h"
#include "gpu/forward/sm90_forward.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {

// `seed`: of the emulator's schedule.
inline Runner runner_of(const emulator::EmulatedSm90Forward& kernel,
                        std::optional<std::uint64_t> seed) {
  return plain_runner([&kernel, seed](const Arguments& arguments, const Options& options) {
    const Result<Problem> run_problem = problem_of(arguments, options);
    if (!run_problem.ok()) return run_problem.status();
    std::vector<std::byte> memory;
    const Result<Arguments> given =
        with_operands_for(kernel.config, *run_problem, arguments, memory);
    if (!given.ok()) return given.status();
    if (!sm90_forward_can_address(*given))
      return Status{ErrorCode::device_error, "TMA does not reach the tensors"};
    emulator::Settings settings;
    settings.seed = seed;
    Status found;
    const Status status =
        run_emulated(kernel, narrow_sm90_chip(), *run_problem, *given, settings,
                     [&found](const emulator::Machine& machine) {
                       if (!machine.report().clean())
                         found = {ErrorCode::device_error, machine.report().text()};
                     });
    return status.ok() ? found : status;
  });
}

}  // namespace octavo::evidence
