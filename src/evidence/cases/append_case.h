// SPDX-License-Identifier: Apache-2.0
// Cases of the kernel that appends to a KV cache.
#pragma once

#include "config/append.h"
#include "emulator/kernels/append.h"
#include "evidence/cases/emulated_cases.h"

namespace octavo::evidence {

// A case appends seqlen_q tokens to each of `batch` sequences. The first sequence has seqlen_kv
// rows, and the last one has too few pages. K is rotated if the case is causal, in halves or
// interleaved.
std::vector<Case> cases_for(const AppendConfig& config);
Result<EmulatedCase> append_case(const emulator::EmulatedAppend& kernel, const GpuInfo& chip,
                                 const Case& c);

}  // namespace octavo::evidence
