// SPDX-License-Identifier: Apache-2.0
// Double precision. Only the oracle uses it.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// exp and log of the CUDA library, 1 ulp; PTX has only approximate ones, in f32.
OCTAVO_PTX double exp_f64(double x) OCTAVO_BODY({ return ::exp(x); });
OCTAVO_PTX double log_f64(double x) OCTAVO_BODY({ return ::log(x); });

// shfl.sync.bfly.b32, twice;  the value of lane ^ mask
OCTAVO_PTX double shuffle_xor_f64(double x, int mask OCTAVO_AND_SITE)
    OCTAVO_BODY({ return __shfl_xor_sync(0xffffffffu, x, mask); });

// ld.global.f64, st.global.f64
OCTAVO_PTX double load_global_f64(const double* p OCTAVO_AND_SITE) OCTAVO_BODY({ return *p; });
OCTAVO_PTX void store_global_f64(double* p, double x OCTAVO_AND_SITE) OCTAVO_BODY({ *p = x; });

}  // namespace octavo::ptx
