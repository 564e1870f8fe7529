// SPDX-License-Identifier: Apache-2.0
// The gates before and after the measurement: policy, compile, emulator, correctness, sanitizer,
// and counters. docs/evolve.md says what each looks at, and what it cannot see.
#pragma once

#include "evolve/gate.h"

namespace octavo::evolve {

// In the order of gate.h; the measurement comes before "counters".
Gates standard_gates(const Task& task);

std::unique_ptr<Gate> policy_gate();
std::unique_ptr<Gate> compile_gate();
std::unique_ptr<Gate> emulator_gate();
std::unique_ptr<Gate> correctness_gate();
std::unique_ptr<Gate> sanitizer_gate();
std::unique_ptr<Gate> counters_gate();

}  // namespace octavo::evolve
