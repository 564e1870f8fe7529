// SPDX-License-Identifier: Apache-2.0
// What a problem becomes on a GPU: decided once, when a plan is made or when the shapes of a run
// change, and passed down. Nothing below recomputes it.
#pragma once

#include <array>
#include <cstddef>

#include "gpu/forward/tile_order.h"
#include "gpu/quantize/operand_conversion.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct Resolved {
  Problem run_problem;     // the caller's
  OperandFormats formats;  // to which Q, K and V are converted first
  Problem kernel_problem;  // the forward kernel's; `run_problem` if nothing is converted
  Conversions conversions;
  std::array<OperandOffsets, 3> offsets{};  // of the converted Q, K and V in the workspace
  std::size_t workspace_bytes = 0;
  TileOrder order{};  // of the Hopper kernel; set when its configuration is known

  bool converts() const {
    return conversions.q.needed() || conversions.k.needed() || conversions.v.needed();
  }
};

// An error if no GPU kernel runs the problem, whatever the alignment of its tensors: every GPU
// problem passes here first. Whether a kernel family does: sm80_forward_supports(),
// sm90_forward_supports(). `layout`: of the V that the forward kernel reads. Without arguments, a
// varlen batch counts every sequence at its maximum length. `any_columns`: a quantizer of more
// columns may replace the chosen one.
Result<Resolved> resolve(const Problem& run_problem, const Arguments* arguments = nullptr,
                         VLayout layout = VLayout::rows, bool any_columns = false);

// 8-bit Q and K with 16-bit V, and one FP8 format for Q and K with the other for V: only Hopper
// kernels read them.
bool is_mixed(const Problem& kernel_problem);
bool is_fp8_of_both_kinds(const Problem& kernel_problem);

}  // namespace octavo
