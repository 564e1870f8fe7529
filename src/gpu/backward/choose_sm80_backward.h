// Chooses the configurations of the sm80 backward kernels for a problem.
#pragma once

#include <string>

#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Checks that the kernels compute the gradients of the problem, with any alignment.
Status sm80_backward_serves(const Problem& problem);

// The three launches of a backward pass.
struct ChosenSm80Backward {
  RowStatsConfig row_stats;
  Sm80BackwardConfig dkv, dq;
  std::string reason;
};
// `load_bytes`: the row alignment of the tensors, in bytes.
ChosenSm80Backward choose_sm80_backward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

// Both configurations as text, for explanations.
std::string describe_sm80_backward(const ChosenSm80Backward& chosen);

}  // namespace octavo
