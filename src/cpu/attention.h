// The CPU backend: tiled attention with an online softmax, SIMD, on all cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// Scales and means of our own quantization, plus a scratch tile per worker; under 2 MB a thread
// for inputs that need no quantization, whatever the lengths.
std::size_t workspace_bytes(const Problem& problem, int threads);

// `problem` is validated, and `arguments` pose it. Allocates nothing, but for the search of
// ScaleRule::least_squares. Runs on as many threads as there are and as the workspace has room for;
// the result does not depend on their number.
Status attention(const Problem& problem, const Arguments& arguments, Workspace workspace);

// "tile=256x64 target=AVX3_SKX threads=2", for explain and logs.
std::string describe_config(const Problem& problem, int threads);

int thread_count();
void set_thread_count(int threads);  // 0: one per core

// fp32 multiply-adds of all threads, from registers alone: what the machine could do at best.
class FmaMeter {
 public:
  FmaMeter();
  double gflops(double seconds) const;  // over so long, now

 private:
  std::int64_t rounds_;
};

}  // namespace octavo::cpu
