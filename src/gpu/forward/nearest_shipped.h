// Finds a shipped kernel to use if the chosen one cannot be compiled.
#pragma once

#include <optional>

#include "config/sm80_forward.h"

namespace octavo {

// The nearest shipped configuration that computes the same problems as `wanted` on a chip of that
// arch and shared memory: the same types and scales, head_dim at least as large, load_bytes at most
// as large. Empty if there is none.
std::optional<Sm80ForwardConfig> nearest_shipped(const Sm80ForwardConfig& wanted, int chip_arch,
                                                 int smem_bytes);

}  // namespace octavo
