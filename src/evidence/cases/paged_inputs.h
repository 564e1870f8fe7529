// SPDX-License-Identifier: Apache-2.0
// The paged cache of a case: its pages, their scales and the page table, from dense K and V.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"
#include "octavo/octavo.hpp"

namespace octavo::evidence {

// The keys of each sequence, as rows of a dense tensor.
std::vector<Span> cache_spans(const Case& c);

// The number of pages of the cache, of which the sequences use all but a few.
std::int64_t cache_pages(const Case& c, const std::vector<Span>& spans);

// The shape of K or V: (pages, heads, page_size, head_dim), or half as many bytes in int4.
std::array<std::int64_t, 4> cache_shape(const Case& c, std::int64_t pages);

// Copies the rows that sequences share from the first sequence of a dense K or V to the others.
void share_prefix(const Case& c, const Tensor& dense, const std::vector<Span>& spans);

// Builds in.cache from the dense tensors in.k and in.v, and quantizes it to 8 or 4 bits if the case
// has such a cache. Pages are in random order. Rows, pages and scales that no sequence uses hold
// NaN, and table entries beyond a sequence are no page.
Status make_cache(const Case& c, Inputs& in);

// The same call with the paged cache for K and V, and with the values of the cache as dense ones.
Arguments with_cache(const Case& c, const Inputs& in, const Arguments& dense);
Arguments with_cached_values(const Inputs& in, const Arguments& dense);

}  // namespace octavo::evidence
