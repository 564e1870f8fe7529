// SPDX-License-Identifier: Apache-2.0
// Merges attention over parts of the keys, on the CPU.
#pragma once

#include <span>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// The tensors are validated; lse may have null data.
void merge_states(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses,
                  const Tensor& out, const Tensor& lse);

}  // namespace octavo::cpu
