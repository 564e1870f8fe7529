// SPDX-License-Identifier: Apache-2.0
// TMA loads of rows, and stores of constants into shared memory, by the producer warp and by the
// split-KV kernel.
#pragma once

#include "config/sm90_forward.h"
#include "device/ptx/memory.cuh"
#include "device/ptx/term.cuh"
#include "device/ptx/tma.cuh"
#include "device/ptx/warpgroup.cuh"

namespace octavo::sm90 {

// Loads `rows` rows of a head, from row `token` and column `first_column` on, panel by panel.
OCTAVO_DEVICE void load_rows(const ptx::TensorMap& map, u32 to, u32 bar, int rows, i32 token,
                             i32 head, i32 batch, Panels panels, i32 first_column = 0) {
  OCTAVO_UNROLL
  for (int panel = 0; panel < panels.count; ++panel)
    ptx::tma_load(to + panel * rows * panels.row_bytes, &map, bar,
                  {first_column + panel * panels.columns, token, head, batch});
}

// Called by kThreads threads; `thread` is the number of this one.
template <int kThreads>
OCTAVO_DEVICE void fill_shared(u32 to, u32 bytes, u32 thread, u32 word) {
  for (u32 at = thread * 4; at < bytes; at += kThreads * 4) ptx::store_shared_b32(to + at, word);
}

// Waits for an earlier grid that may still be writing the scales.
template <class G>
OCTAVO_DEVICE void wait_for_written_scales() {
  if constexpr (!is_split_kv(G::C))
    ptx::spare("they are read after a barrier at which the producer arrives, having waited");
  ptx::wait_for_earlier_grids();
}

}  // namespace octavo::sm90
