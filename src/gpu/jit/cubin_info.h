// SPDX-License-Identifier: Apache-2.0
// Reads a cubin's registers, shared and local memory, and instruction counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// Counts by the opcode field of each instruction of sm_80 to sm_90.
struct InstructionCounts {
  int total = 0;
  int hmma = 0;           // tensor cores: 16-bit mma.sync
  int imma = 0;           // INT8 mma.sync
  int qmma = 0;           // FP8 mma.sync, sm_89; sm_90 has none and converts to HMMA
  int wgmma_f16 = 0;      // HGMMA
  int wgmma_fp8 = 0;      // QGMMA
  int wgmma_int8 = 0;     // IGMMA
  int ldmatrix = 0;       // LDSM
  int exp2 = 0;           // MUFU.EX2
  int shared_stores = 0;  // STS
  int shared_loads = 0;   // LDS
  int local_stores = 0;   // STL
  int local_loads = 0;    // LDL
  int async_copies = 0;   // LDGSTS, cp.async
  int mma() const { return hmma + imma + qmma + wgmma_f16 + wgmma_fp8 + wgmma_int8; }
};

struct CubinKernel {
  std::string symbol;
  int registers = 0;
  int static_smem_bytes = 0;
  int stack_bytes = 0;  // local memory of a thread: spilled registers, arrays indexed at run time
  std::size_t code_offset = 0, code_bytes = 0;  // the machine code in the cubin
  InstructionCounts instructions;
  bool spills() const {
    return stack_bytes > 0 || instructions.local_loads > 0 || instructions.local_stores > 0;
  }
};

struct CubinInfo {
  int arch = 0;        // 90 for sm_90 and sm_90a
  bool debug = false;  // compiled with -G: unoptimised
  std::vector<CubinKernel> kernels;
  const CubinKernel* find(std::string_view symbol) const;
};

// Reads a cubin. The bytes are not trusted: malformed ones are an error.
Result<CubinInfo> read_cubin(std::span<const std::byte> cubin);

// Rejects a kernel that spills or was compiled for the debugger: both are an order of magnitude
// slower than the measured kernels.
struct CubinPolicy {
  bool allow_spills = false;
  bool allow_debug = false;
};
Status check_cubin(const CubinInfo& info, std::string_view symbol, const CubinPolicy& policy);

}  // namespace octavo
