// SPDX-License-Identifier: Apache-2.0
// Checks a caller's problem, once, before anything is planned or written.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/tensor_checks.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The most elements of a tensor. The limit is far below the end of int64, so that no later sum or
// product of sizes overflows.
inline constexpr std::int64_t kLargestElements = std::int64_t{1} << 58;

// Sizes, types, mask and precision of a problem.
Status validate(const Problem& problem);

// As validate(), for the backward pass, which supports fewer types and precisions.
Status validate_backward(const Problem& problem);

// The most queries of a sequence with a draft tree: the bits of a word.
inline constexpr std::int64_t kDraftTreeQueries = 32;

// The page size of a paged cache; `what` is its name in messages.
Status validate_page_size(std::string_view what, std::int64_t page_size);

// The channels of a group of an int4 cache.
Status validate_int4_group(std::string_view what, std::int64_t channels, std::int64_t head_dim);

// Checks that a run's problem is the plan's except for lengths and batch.
Status validate_run(const Problem& planned, const Problem& run_problem);

// Checks the contents of arrays that the host can read. The cu_seqlens of a varlen batch must not
// decrease (entries outside the tensor are clamped, and are no error). The rows of a padded batch
// must lie inside the tensors. The pages that sequences use must exist. The lists of a block mask
// must ascend and stay within the keys.
Status validate_lengths(const Arguments& arguments);

}  // namespace octavo
