// SPDX-License-Identifier: Apache-2.0
// Unified diffs over the embedded device sources, as generators write them.
//
// A diff is applied exactly: every line of context must be there, character by character. A hunk
// may have moved to another line if the lines it names occur only once, which they must, because
// the patches of several levers are written against the same sources and applied one after the
// other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo::evolve {

// Larger diffs are not read: a candidate is a change of a kernel, not another one.
inline constexpr std::size_t kMostPatchBytes = std::size_t{256} << 10;
// The limit of one embedded source (tools/embed_sources.cmake).
inline constexpr std::size_t kMostSourceBytes = 60000;

// A source before and after a patch.
struct ChangedSource {
  std::string name;  // "device/sm80/forward.cuh"
  std::string before, after;
};

struct Patched {
  std::vector<ChangedSource> sources;  // in the order of their names
  SourceOverlay overlay() const;
};

// Applies one diff, or several one after the other, to the sources that the library was built with.
// Paths may begin with a/ or b/, and with src/. No diff at all is no change. The error of a diff
// that cannot be applied says in one sentence which of these it is: not a diff, too large, not
// plain ASCII, a path outside the device sources, a file that is created, deleted or renamed, a
// hunk that contradicts its header, or a hunk whose lines are not there, or there more than once.
Result<Patched> apply_patch(std::string_view diff);

}  // namespace octavo::evolve
