// Which configuration of the sm80 forward kernel serves a problem.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "gpu/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// That a GPU serves the problem at all, whatever its alignment, once the operands that its
// precision rounds are rounded (prepare_operands.h).
Status sm80_forward_serves(const Problem& problem);

// That the sm80 family reads V as the problem then has it: by rows, in the type of Q and K. Others
// are for kernels of sm_90 alone.
Status sm80_forward_reads(const Problem& problem);

struct ChosenSm80Forward {
  Sm80ForwardConfig config;
  std::string reason;
};
// `load_bytes`: the widest access that every row, of what the kernel sees, allows.
ChosenSm80Forward choose_sm80_forward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

}  // namespace octavo
