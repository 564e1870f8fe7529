// SPDX-License-Identifier: Apache-2.0
// Cases with a block mask: the suite `block_mask`, and the lists and bits of a case.
#pragma once

#include <cstdint>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"

namespace octavo::evidence {

// A random case. Causal mask or window, modifiers, types, ratio of heads and size of blocks follow
// from the seed, so that every pair of these is likely to occur.
Case random_block_mask_case(std::uint64_t seed);
std::vector<Case> block_mask_cases(std::uint64_t seed, std::size_t count = 400);

// The lists of c.block_mask, in `arrays`: a third of the blocks is hidden, the others are partial
// or full. Whether a batch entry or a head has lists of its own, and whether partial blocks have
// bits, follows from the seed. Entries after the last one in use hold values that no kernel may
// read.
BlockMask make_block_mask(const Case& c, BlockMaskArrays& arrays);

}  // namespace octavo::evidence
