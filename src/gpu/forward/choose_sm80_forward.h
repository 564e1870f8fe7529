// Chooses the configuration of the sm80 forward kernel for a problem.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Checks that a GPU supports the problem with any alignment, after the operands have been prepared
// (prepare_operands.h).
Status sm80_forward_serves(const Problem& problem);

// Checks that the sm80 family can read the prepared V: VLayout::rows, in the type of Q and K. Only
// the Hopper kernel reads others.
Status sm80_forward_reads(const Problem& problem);

struct ChosenSm80Forward {
  Sm80ForwardConfig config;
  std::string reason;
};
// `load_bytes`: the row alignment of the prepared tensors, in bytes.
ChosenSm80Forward choose_sm80_forward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

}  // namespace octavo
