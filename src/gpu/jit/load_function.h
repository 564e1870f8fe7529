// Loads kernels onto a GPU.
#pragma once

#include <string>

#include "gpu/driver/context.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Finds or compiles the kernel and loads it, once per process: plans of one kernel share its
// module, which stays loaded. `dynamic_smem_bytes` is the most that its launches may use.
Result<cuda::Function> load_function(const Gpu& gpu, const KernelSource& source,
                                     int dynamic_smem_bytes, const CubinPolicy& policy = {});

// The problem with the disk cache when this kernel was loaded; empty if there was none.
std::string cache_note(const KernelSource& source, const CubinPolicy& policy = {});

}  // namespace octavo
