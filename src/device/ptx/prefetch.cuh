// SPDX-License-Identifier: Apache-2.0
// Brings global memory into L2.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// prefetch.global.L2 [p];
OCTAVO_PTX void prefetch_l2(const void* p OCTAVO_AND_SITE)
    OCTAVO_BODY({ asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); });

}  // namespace octavo::ptx
