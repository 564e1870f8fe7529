// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/standard_gates.h"

namespace octavo::evolve {

Gates standard_gates(const Task& /*task*/) {
  Gates gates;
  gates.push_back(policy_gate());
  gates.push_back(compile_gate());
  gates.push_back(emulator_gate());
  gates.push_back(correctness_gate());
  gates.push_back(sanitizer_gate());
  gates.push_back(counters_gate());
  return gates;
}

}  // namespace octavo::evolve
