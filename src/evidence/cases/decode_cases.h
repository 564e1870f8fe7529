// SPDX-License-Identifier: Apache-2.0
// Cases with a paged KV cache: few queries of each sequence attend to many keys.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "evidence/cases/cases.h"

namespace octavo::evidence {

// The axes whose every pair of values occurs in the suite.
enum DecodeAxis {
  kPageSize,        // 16, 64, 128, 256
  kPageLayout,      // (pages, heads, page, dim), (pages, page, heads, dim), strides with gaps, with
                    // aligned gaps
  kCacheFormat,     // 16 bits, e4m3, e5m2, int8, int4
  kCacheScales,     // of 8 bits: per tensor, head, row, page
  kHeadRatio,       // 1, 4, 8, 16, and the odd ones 3 and 7
  kLengths,         // KeyLengths
  kQueries,         // 1, 2, 3 to 8, 9 to 16, more
  kCacheDim,        // 64, 80, 96, 128, 256
  kCacheModifiers,  // none, window, softcap, ALiBi, sinks, all of them
  kDecodeAxes
};
using DecodeValues = std::array<int, kDecodeAxes>;
inline constexpr DecodeValues kDecodeSizes = {4, 4, 5, 4, 6, kKeyLengths, 5, 5, 6};

// A case with these axis values; the seed determines the rest.
Case make_decode_case(const DecodeValues& values, std::uint64_t seed);

// A covering set, then random draws until there are `count` distinct names.
std::vector<Case> decode_cases(std::uint64_t seed, std::size_t count = 1000);

}  // namespace octavo::evidence
