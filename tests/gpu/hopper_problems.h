// SPDX-License-Identifier: Apache-2.0
// A chip and simple problems for tests of Hopper's dispatch.
#pragma once

#include <cstdint>

#include "gpu/driver/driver.h"
#include "gpu/forward/sm80_forward.h"
#include "octavo/octavo.hpp"

namespace octavo {

inline GpuInfo h200() {
  GpuInfo gpu;
  gpu.arch = 90;
  gpu.sms = 132;
  gpu.smem_per_block_optin = max_smem_bytes(90);
  gpu.l2_bytes = 60 << 20;
  return gpu;
}

inline Problem problem(std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d,
                       Causal causal = Causal::none) {
  Problem p;
  p.batch = b;
  p.heads_q = p.heads_kv = h;
  p.seqlen_q = p.seqlen_kv = s;
  p.head_dim = p.head_dim_v = d;
  p.options.causal = causal;
  return p;
}

}  // namespace octavo
