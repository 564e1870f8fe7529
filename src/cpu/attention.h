// SPDX-License-Identifier: Apache-2.0
// The CPU backend: tiled attention with an online softmax, SIMD, on all cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The size of the workspace: scales and means of the library's quantization, and a scratch for each
// thread. For inputs that need no quantization it is below 2 MB for each thread, whatever the
// lengths.
std::size_t workspace_bytes(const Problem& problem, int threads);

// `problem` is validated and matches `arguments`. Does not allocate, except for the search of
// ScaleRule::least_squares. The number of threads is limited by thread_count() and by the
// workspace; the result does not depend on it.
Status attention(const Problem& problem, const Arguments& arguments, Workspace workspace);

// Describes the configuration for explain() and logs, such as "tile=256x64 target=AVX3_SKX
// threads=2".
std::string describe_config(const Problem& problem, int threads);

int thread_count();
void set_thread_count(int threads);  // 0: one per core

// Measures the machine's peak rate of fp32 multiply-adds on all threads, from registers only.
class FmaMeter {
 public:
  FmaMeter();
  double gflops(double seconds) const;  // measures for this long

 private:
  std::int64_t rounds_;
};

}  // namespace octavo::cpu
