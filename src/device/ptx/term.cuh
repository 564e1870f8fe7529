// SPDX-License-Identifier: Apache-2.0
// Hooks for mutation testing. The emulator disables calls and mask terms one at a time and checks
// that a test fails.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

#if defined(__CUDACC__)

template <class T>
OCTAVO_DEVICE T mask_term(T x, T /*without*/) {
  return x;
}
OCTAVO_DEVICE void spare(const char* /*why*/) {}

#else

// Marks the next call as redundant, with the reason. It stays in the code, and no test is expected
// to fail without it.
void spare(const char* why);

bool mask_term_is_off(Site site);

// Returns `x`, or `without` while the emulator disables the mask term of this line.
template <class T>
inline T mask_term(T x, T without, Site site = Site::here()) {
  return mask_term_is_off(site) ? without : x;
}

#endif

}  // namespace octavo::ptx
