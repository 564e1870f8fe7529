// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CPU backend: tiled, SIMD, on all cores, with the same bits for any
// number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// How the query rows that share a KV head are divided into tasks. A plan fixes it, so that a run
// with smaller lengths needs no larger workspace.
struct BackwardSlicing {
  std::int64_t rows = 0;  // of a task, at most
  bool stored = false;    // the sums of dK and dV of each task are stored and added up afterwards
};
BackwardSlicing backward_slicing(const Problem& planned);

// `arguments` may be null: then the lengths are those of the problem.
std::size_t backward_workspace_bytes(const BackwardSlicing& slicing, const Problem& problem,
                                     const BackwardArguments* arguments, int threads);

// `problem` is validated and matches `arguments`. Does not allocate. The number of threads is
// limited by thread_count() and by the workspace; the result does not depend on it.
Status attention_backward(const BackwardSlicing& slicing, const Problem& problem,
                          const BackwardArguments& arguments, Workspace workspace);

// Describes the configuration for explain() and logs, such as "block=48x64 slices=4 target=AVX3_SKX
// threads=2".
std::string describe_backward_config(const Problem& problem, int threads);

}  // namespace octavo::cpu
