// SPDX-License-Identifier: Apache-2.0
// Storage types of a kernel's operands.
#pragma once

#include "config/portable.h"

namespace octavo {

// The numbers of DType. int4 counts bytes, of two values each: of KV caches only.
enum class Element : int { f32, f16, bf16, e4m3, e5m2, int8, sim8, int4 = 8 };

OCTAVO_HD constexpr int element_bytes(Element e) {
  return e == Element::f32 ? 4 : e <= Element::bf16 ? 2 : 1;
}

}  // namespace octavo
