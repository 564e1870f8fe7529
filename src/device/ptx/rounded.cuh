// SPDX-License-Identifier: Apache-2.0
// FP32 arithmetic that is rounded once, keeps denormals and is never fused with a neighbouring
// operation. Code whose results must equal the CPU's bits uses these.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::ptx {

// add.rn.f32
OCTAVO_PTX float add_rn(float a, float b) OCTAVO_BODY({
  float d;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
});
// sub.rn.f32
OCTAVO_PTX float subtract_rn(float a, float b) OCTAVO_BODY({
  float d;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
});
// mul.rn.f32
OCTAVO_PTX float multiply_rn(float a, float b) OCTAVO_BODY({
  float d;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
});
// abs.f32;  NaN for NaN
OCTAVO_PTX float absolute(float a) OCTAVO_BODY({
  float d;
  asm("abs.f32 %0, %1;" : "=f"(d) : "f"(a));
  return d;
});
// div.rn.f32
OCTAVO_PTX float divide_rn(float a, float b) OCTAVO_BODY({
  float d;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
});

}  // namespace octavo::ptx
