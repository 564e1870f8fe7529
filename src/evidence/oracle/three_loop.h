// SPDX-License-Identifier: Apache-2.0
// The baseline of `octavo bench`: plain attention without tiles, intrinsics or special compiler
// flags.
#pragma once

#include <cstdint>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// q, k, v, out: f32, (batch, heads, length, head_dim), contiguous. Computes a row of scores, its
// softmax, and the weighted sum of V; the threads divide the rows.
void three_loop(const float* q, const float* k, const float* v, float* out, std::int64_t batch,
                std::int64_t heads, std::int64_t length, std::int64_t head_dim,
                const Options& options, int threads);

}  // namespace octavo::evidence
