// SPDX-License-Identifier: Apache-2.0
// The state of a thread's rows in an mma.sync kernel: O, and the online softmax.
#pragma once

#include "device/core/score_rows.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/target.cuh"

namespace octavo {

// kTilesM tiles of 16 rows, in each of which the thread has two (score_rows.cuh), and kTilesD tiles
// of eight columns of O.
template <int kTilesM, int kTilesD>
struct MmaState {
  float o[kTilesM][kTilesD][4];
  float ref_max[kTilesM][2];  // reference maximum of a row: near its largest score so far, in log2
  float sum[kTilesM][2];      // the thread's part of the sum of P

  OCTAVO_DEVICE void clear() {
    OCTAVO_UNROLL
    for (int m = 0; m < kTilesM; ++m) {
      OCTAVO_UNROLL
      for (int r = 0; r < 2; ++r) {
        ref_max[m][r] = kLowest;
        sum[m][r] = 0;
      }
      OCTAVO_UNROLL
      for (int n = 0; n < kTilesD; ++n) {
        OCTAVO_UNROLL
        for (int e = 0; e < 4; ++e) o[m][n][e] = 0;
      }
    }
  }
  // Raises the reference maximum of a row, and rescales its sum and its O.
  OCTAVO_DEVICE void raise_ref_max(int m, int r, float to) {
    const float alpha = ptx::exp2_approx(ref_max[m][r] - to);
    ref_max[m][r] = to;
    sum[m][r] *= alpha;
    OCTAVO_UNROLL
    for (int n = 0; n < kTilesD; ++n) {
      OCTAVO_UNROLL
      for (int e = r * 2; e < r * 2 + 2; ++e) o[m][n][e] *= alpha;
    }
  }
};

}  // namespace octavo
