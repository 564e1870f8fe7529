// Cases of the kernel that appends to a KV cache.
#pragma once

#include "config/append.h"
#include "emulator/kernels/append.h"
#include "evidence/cases/emulated_cases.h"

namespace octavo::evidence {

// seqlen_q new tokens for each of `batch` sequences, the first of which has seqlen_kv rows and the
// last too little room. K is rotated if the case is causal, in halves or interleaved.
std::vector<Case> cases_for(const AppendConfig& config);
Result<EmulatedCase> append_case(const emulator::EmulatedAppend& kernel, const GpuInfo& chip,
                                 const Case& c);

}  // namespace octavo::evidence
