// SPDX-License-Identifier: Apache-2.0
// Host code of the kernel that appends to a KV cache: its configuration, loading and launch.
#pragma once

#include <utility>
#include <vector>

#include "attention/cache_memory.h"
#include "config/append.h"
#include "device/cache/params.cuh"
#include "gpu/driver/context.h"
#include "octavo/kv_cache.hpp"
#include "octavo/octavo.hpp"

namespace octavo {

// New rows for the sequences of a batch: k and v are (batch, heads, tokens, head_dim).
struct AppendCall {
  CacheMemory cache;
  CacheBatch batch;
  ConstTensor k, v;
  Rotary rotary;
};

// Whether a chip can append to such a cache and decode from it.
Status check_gpu_cache(const KvCacheOptions& options, const GpuInfo& gpu);

AppendConfig choose_append(const AppendCall& call, const GpuInfo& gpu);
append::Params append_params(const AppendCall& call);

// The loaded kernels of a cache, one for each type and alignment of new rows. The first call that
// needs a kernel loads it, and must not be inside a CUDA graph capture.
class LoadedAppends {
 public:
  explicit LoadedAppends(const Gpu& gpu) : gpu_(gpu) {}

  Status launch(const AppendCall& call, Stream stream);

 private:
  Result<cuda::Function> function(const AppendConfig& config);

  const Gpu& gpu_;
  std::vector<std::pair<AppendConfig, cuda::Function>> loaded_;
};

Status launch_append(const Gpu& gpu, const AppendConfig& config, cuda::Function function,
                     const AppendCall& call, Stream stream);

}  // namespace octavo
