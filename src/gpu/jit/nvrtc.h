// SPDX-License-Identifier: Apache-2.0
// NVRTC, the run-time compiler, opened at run time. Without it the embedded kernels still run.
#pragma once

#include <string>
#include <vector>

#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The version, such as "NVRTC 13.0", or the reason why there is no compiler. If $OCTAVO_NVRTC is
// set, only that library is tried; otherwise libnvrtc of CUDA 13, then 12, on the loader's path and
// then in the toolkit's usual folders.
Result<std::string> nvrtc_version();

// Every option a kernel is compiled with; part of its cache key.
std::vector<std::string> nvrtc_options(int arch, bool ptx);

// Thread-safe. On failure the message has the compiler's first errors.
Result<CompiledKernel> compile(const KernelSource& source);

// Any text that may include the embedded sources, for tests. Without a name expression there is no
// lowered name.
struct ProgramText {
  std::string text;
  std::string name_expression;
  std::vector<std::string> options;
  bool ptx = false;
};
Result<CompiledKernel> compile(const ProgramText& program);

}  // namespace octavo
