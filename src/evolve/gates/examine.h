// SPDX-License-Identifier: Apache-2.0
// A candidate in a file, for a program that runs it under a tool: `octavo evolve examine FILE`.
#pragma once

#include <string>

#include "evolve/gate.h"

namespace octavo::evolve {

Status write_examination(const Candidate& candidate, const Context& context,
                         const std::string& path);

// Runs the candidate of such a file on the GPU, without a child of its own, on the edges of its
// tiles and on problems drawn from the file's seed. The error says what failed.
Status examine(const std::string& path);

}  // namespace octavo::evolve
