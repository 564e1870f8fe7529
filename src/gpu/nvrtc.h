// NVRTC, the run-time compiler, opened at run time: without it the embedded kernels still run.
#pragma once

#include <string>
#include <vector>

#include "gpu/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// "NVRTC 13.0", or why there is none. $OCTAVO_NVRTC, if set, is the only library tried; else
// libnvrtc of CUDA 13, then 12, as the loader finds it, then in the toolkit's usual folders.
Result<std::string> nvrtc_version();

// Every option a kernel is compiled with; part of its cache key.
std::vector<std::string> nvrtc_options(int arch, bool ptx);

// May be called from many threads at once. On failure the sentence has the compiler's first errors.
Result<CompiledKernel> compile(const KernelSource& source);

// Any text that may include the embedded sources; what tests compile. Without a name expression
// there is no lowered name.
struct ProgramText {
  std::string text;
  std::string name_expression;
  std::vector<std::string> options;
  bool ptx = false;
};
Result<CompiledKernel> compile(const ProgramText& program);

}  // namespace octavo
