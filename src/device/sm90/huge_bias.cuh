// The units in which rows with a huge bias are counted. Only kernels with a bias contain such code.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

// Scores around a huge bias, such as -1e9, differ by 16 or more, or not at all. A row of nothing
// else keeps its scores and ref_max in natural units: in log2 units the product of score and kLog2E
// would be rounded in ref_max and not in P, which would be anything from 2^-64 to 2^64.
inline constexpr float kHugeLevel = 0x1p27f;

// `level`: the threshold of a row, or its largest score.
template <class G>
OCTAVO_DEVICE bool is_huge(float level) {
  return G::C.modifiers.bias && ptx::abs_f32(level) > kHugeLevel;
}
// The ref_max of a row in log2 units, whatever its level. Its lowest value stands for all that
// would overflow.
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
