// Kernels in a GPU's memory.
#pragma once

#include <string>

#include "gpu/context.h"
#include "gpu/cubin_info.h"
#include "gpu/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Finds or compiles the kernel and loads it, once a process: plans of one kernel share its module,
// which stays loaded. `dynamic_smem_bytes` is what its launches may ask for.
Result<cuda::Function> load_function(const Gpu& gpu, const KernelSource& source,
                                     int dynamic_smem_bytes, const CubinPolicy& policy = {});

// What was wrong with the cache on disk when this kernel was loaded; empty: nothing.
std::string cache_note(const KernelSource& source, const CubinPolicy& policy = {});

}  // namespace octavo
