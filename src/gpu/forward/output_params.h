// Forward kernel parameters for the scales of an 8-bit output and for out_amax.
#pragma once

#include "attention/operand_scales.h"
#include "device/core/params.cuh"
#include "gpu/driver/driver.h"
#include "gpu/forward/forward_params.h"
#include "octavo/octavo.hpp"

namespace octavo {

inline OutputParams output_params(const Problem& run_problem, const Arguments& a) {
  OutputParams p;
  const ScaleParams scales = scale_params(a, a.out, a.out_scales, run_problem.seqlen_q);
  p.scales = scales.data;
  p.scale_batch = scales.batch;
  p.scale_head = scales.head;
  p.amax = a.out_amax;
  if (run_problem.out_scales == Granularity::head) {
    p.amax_batch = run_problem.heads_q;
    p.amax_head = 1;
  }
  return p;
}

// Clears out_amax in the stream before a kernel that updates it. A graph capture records it too.
inline Status clear_amax(const Driver& driver, float* amax, std::int64_t floats, Stream stream) {
  if (floats == 0) return {};
  OCTAVO_GPU_TRY(driver,
                 driver.memset_d32_async(reinterpret_cast<cuda::DevicePointer>(amax), 0,
                                         static_cast<std::size_t>(floats),
                                         static_cast<cuda::StreamHandle>(stream)),
                 "cuMemsetD32Async");
  return {};
}

}  // namespace octavo
