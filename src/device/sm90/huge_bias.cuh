// SPDX-License-Identifier: Apache-2.0
// The units of scores and ref_max in rows with a huge bias. Only kernels with a bias have this
// code.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// Scores around a huge bias, such as -1e9, differ by 16 or more, or not at all. A row that has no
// others keeps its scores and ref_max in natural units. In log2 units the product of score and
// kLog2E would be rounded in ref_max but not in P, which could become anything from 2^-64 to 2^64.
inline constexpr float kHugeLevel = 0x1p27f;

// `row_level`: the threshold of a row, or its largest score.
template <class G>
OCTAVO_DEVICE bool is_huge(float row_level) {
  return G::C.modifiers.bias && ptx::abs_f32(row_level) > kHugeLevel;
}
// The ref_max of a row in log2 units, huge or not. Values that would overflow become the lowest or
// the largest float.
template <class G, class Rows>
OCTAVO_DEVICE float ref_max_log2(const Rows& rows, u32 r) {
  return rows.ref_max[r];
}
template <class G, class Rows>
requires(G::C.modifiers.bias) OCTAVO_DEVICE float ref_max_log2(const Rows& rows, u32 r) {
  const float scaled = rows.ref_max[r] * kLog2E;
  const float finite = ptx::min_f32(ptx::max_f32(scaled, kLowest), -kLowest);
  return is_huge<G>(rows.threshold[r]) ? finite : rows.ref_max[r];
}

}  // namespace octavo::sm90
