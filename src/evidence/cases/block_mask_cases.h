// Cases with a block mask: the suite `block_mask`, and the lists and bits of a case.
#pragma once

#include <cstdint>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"

namespace octavo::evidence {

// Every pair of causal mask or window, modifier, type, ratio of heads and size of blocks is likely:
// all of them follow from the seed.
Case random_block_mask_case(std::uint64_t seed);
std::vector<Case> block_mask_cases(std::uint64_t seed, std::size_t count = 400);

// The lists of c.block_mask, in `arrays`: a third of the blocks is hidden, the others are partial
// or full. Whether a batch entry or a head has lists of its own, and whether partial blocks have
// bits, follows from the seed. Places behind the last entry of a list hold what no kernel may read.
BlockMask make_block_mask(const Case& c, BlockMaskArrays& arrays);

}  // namespace octavo::evidence
