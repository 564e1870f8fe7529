// SPDX-License-Identifier: Apache-2.0
// Configuration of the kernel that prepares the backward pass (device/backward/row_stats.cuh).
#pragma once

#include "config/element.h"
#include "config/portable.h"

namespace octavo {

struct RowStatsConfig {
  int arch = 80;
  Element element = Element::f16;  // of O and dO: f16 or bf16
  int load_bytes = 16;             // widest load that every row's address allows
  bool padded = false;             // padded batches

  bool operator==(const RowStatsConfig&) const = default;
};

namespace row_stats {

// The arrays of the backward pass have whole blocks of this many rows. A block of queries of any
// backward kernel divides it.
inline constexpr int kPaddedRows = 128;

inline constexpr int kThreads = 256;
inline constexpr int kLanesPerRow = 8;
inline constexpr int kRowsPerCta = kThreads / kLanesPerRow;
static_assert(kPaddedRows % kRowsPerCta == 0);

}  // namespace row_stats

}  // namespace octavo
