// SPDX-License-Identifier: Apache-2.0
// Configuration of the kernel that appends rows to a KV cache (device/cache/append.cuh), as a
// value.
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

struct AppendConfig {
  int arch = 80;                // the chip it is compiled for
  Element from = Element::f16;  // of the new rows: f32, f16 or bf16
  Element to = Element::f16;    // of the cache: f16 or bf16; 8-bit, with a scale for each row; int4
  int columns = 64;             // head_dim rounded up to 64, 128 or 256
  int load_bytes = 16;  // bytes per load: 16 if all new rows are so aligned, else one element
  int group = 0;        // int4: channels that share a scale and a zero, 32 or 64; else 0

  bool operator==(const AppendConfig&) const = default;
};

namespace append {

inline constexpr int kThreads = 128;
inline constexpr int kVector = 8;  // columns per lane

// Lanes per row, and rows per CTA.
OCTAVO_HD constexpr int lanes(const AppendConfig& c) { return c.columns / kVector; }
OCTAVO_HD constexpr int rows_of_cta(const AppendConfig& c) { return kThreads / lanes(c); }

}  // namespace append

}  // namespace octavo
