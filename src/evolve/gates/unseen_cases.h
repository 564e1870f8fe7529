// SPDX-License-Identifier: Apache-2.0
// Problems that nobody has seen before: they are drawn from a seed that is chosen after the
// candidate was written.
#pragma once

#include <vector>

#include "evidence/cases/cases.h"
#include "evolve/gate.h"
#include "evolve/gates/kernel_family.h"

namespace octavo::evolve {

// `count` problems that a kernel of this configuration serves: lengths around and between the edges
// of its tiles, masks, layouts, distributions of values, and scales of the scores so small that all
// keys count and so large that one key dominates.
std::vector<evidence::Case> unseen_cases(const KernelConfig& config, std::uint64_t seed, int count,
                                         std::int64_t longest);

// The shapes of the task, as problems of this kernel. Few of their rows are judged.
std::vector<evidence::Case> public_cases(const Task& task, const KernelConfig& config);

}  // namespace octavo::evolve
