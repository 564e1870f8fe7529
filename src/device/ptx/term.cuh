// What concerns only the emulator, which switches off calls and terms of a mask to see whether
// anything notices.
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

// Says why nothing notices when the next call is switched off.
void spare(const char* why);

bool mask_term_is_off(Site site);

// `x`; `without` where this line's term is the one that is switched off.
template <class T>
inline T mask_term(T x, T without, Site site = Site::here()) {
  return mask_term_is_off(site) ? without : x;
}

#endif

}  // namespace octavo::ptx
