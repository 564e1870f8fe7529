// SPDX-License-Identifier: Apache-2.0
// The ladder's kernels as the checks run them.
#pragma once

#include <vector>

#include "config/ladder.h"
#include "evidence/cases/cases.h"
#include "evidence/cases/runner.h"

namespace octavo::evidence {

// A kernel of the ladder on a GPU, or on the emulated one.
MakeKernel kernel_of_ladder(const LadderConfig& config);

// Small problems with the edges of a kernel's tiles: rows and keys that end inside one, more blocks
// than it has stages, a diagonal through blocks, a single row.
std::vector<Case> cases_for(const LadderConfig& config);

}  // namespace octavo::evidence
