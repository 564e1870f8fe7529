// Which configuration of the sm80 forward kernel serves a problem.
#pragma once

#include <string>

#include "config/sm80_forward.h"
#include "gpu/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// That the sm80 family serves the problem at all, whatever its alignment, once the operands that
// its precision rounds are rounded (prepare_operands.h).
Status sm80_forward_serves(const Problem& problem);

// That it reads V as the problem has it: by rows. A transposed one is for kernels that others take.
Status sm80_forward_reads_v(const Problem& problem);

struct ChosenSm80Forward {
  Sm80Forward config;
  std::string reason;
};
// `load_bytes`: the widest access that every row, of what the kernel sees, allows.
ChosenSm80Forward choose_sm80_forward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

}  // namespace octavo
