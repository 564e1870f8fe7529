// SPDX-License-Identifier: Apache-2.0
// stmatrix: stores accumulator fragments as rows in shared memory.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// stmatrix.sync.aligned.m8n8.x4.shared.b16 [address], {r0, r1, r2, r3};   PTX 7.8, sm_90
// Four 8x8 matrices of 16-bit words, one row address per lane (lanes 8i to 8i+7: matrix i). Lane l
// supplies words (l%4)*2 and +1 of row l/4.
OCTAVO_PTX void stmatrix_x4(u32 address, const u32 (&r)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
});
// The same, each matrix transposed.
OCTAVO_PTX void stmatrix_x4_trans(u32 address, const u32 (&r)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
});
// stmatrix.sync.aligned.m8n8.x2.shared.b16 [address], {r0, r1};  addresses of lanes 0 to 15
OCTAVO_PTX void stmatrix_x2(u32 address, const u32 (&r)[2] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]),
               "r"(r[1])
               : "memory");
});

}  // namespace octavo::ptx
