// The CPU backend: tiled attention with an online softmax, SIMD, on all cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The scales and means of the library's quantization, plus a scratch tile per worker; under 2 MB
// per thread for inputs that need no quantization, for any lengths.
std::size_t workspace_bytes(const Problem& problem, int threads);

// `problem` is validated and matches `arguments`. Does not allocate, except for the search of
// ScaleRule::least_squares. The number of threads is limited by thread_count() and by the
// workspace; the result does not depend on it.
Status attention(const Problem& problem, const Arguments& arguments, Workspace workspace);

// "tile=256x64 target=AVX3_SKX threads=2", for explain and logs.
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
