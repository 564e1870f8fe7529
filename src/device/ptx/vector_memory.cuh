// SPDX-License-Identifier: Apache-2.0
// Wide loads from global memory into registers. The address is a multiple of the width.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// ld.global.nc.b32, .v2.b32, .v4.b32;  for data that nothing writes while the grid runs
OCTAVO_PTX u32 load_global_b32(const void* p OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 x;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
});
OCTAVO_PTX void load_global_b64(const void* p, u32& x0, u32& x1 OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(x0), "=r"(x1) : "l"(p));
});
OCTAVO_PTX void load_global_b128(const void* p, u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(p));
});
// ld.global.b32, .v2.b32, .v4.b32;  the same for data that an earlier grid may still be writing
// when this one starts, in threads that come after the wait for that grid
OCTAVO_PTX u32 load_coherent_b32(const void* p OCTAVO_AND_SITE) OCTAVO_BODY({
  u32 x;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
});
OCTAVO_PTX void load_coherent_b64(const void* p, u32& x0, u32& x1 OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(x0), "=r"(x1) : "l"(p));
});
OCTAVO_PTX void load_coherent_b128(const void* p, u32 (&x)[4] OCTAVO_AND_SITE) OCTAVO_BODY({
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(p));
});

}  // namespace octavo::ptx
