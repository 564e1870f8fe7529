// What stands in for a kernel that cannot be compiled here.
#pragma once

#include <optional>

#include "config/sm80_forward.h"

namespace octavo {

// Of the shipped configurations that are right wherever `wanted` is, on a chip of that arch and
// shared memory, the one that resembles it most: the same types and scales, rows at least as wide,
// loads no wider. None: no shipped kernel serves.
std::optional<Sm80ForwardConfig> nearest_shipped(const Sm80ForwardConfig& wanted, int chip_arch,
                                                 int smem_bytes);

}  // namespace octavo
