// SPDX-License-Identifier: Apache-2.0
// A position in a ring of pipeline stages.
#pragma once

#include "device/ptx/target.cuh"

namespace octavo::sm90 {

// The pipeline stage that is next, and the parity of the phase that fills it. Buffers are used in
// turn from `first` on. One counter is one register where stage and phase would be two.
template <int kStages>
struct PipelineState {
  u32 first = 0;
  u32 count = 0;
  OCTAVO_DEVICE u32 stage() const { return first + count % kStages; }
  OCTAVO_DEVICE u32 phase() const { return count / kStages & 1; }
  OCTAVO_DEVICE void advance() { ++count; }
  OCTAVO_DEVICE PipelineState next() const { return {first, count + 1}; }
};

}  // namespace octavo::sm90
