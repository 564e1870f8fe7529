// SPDX-License-Identifier: Apache-2.0
// Finds a compiled kernel: in memory, in the set compiled ahead of time, in the disk cache, or by
// compiling it. Without a compiler the other sources still work.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpu/jit/cubin_cache.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

enum class KernelOrigin { embedded, disk, compiled };
std::string_view name(KernelOrigin origin);

struct LoadedKernel {
  CompiledKernel kernel;
  CubinInfo info;  // empty for PTX
  KernelOrigin origin = KernelOrigin::compiled;
  std::string note;  // a problem with the cache, if any
};

class KernelStore {
 public:
  using Compiler = std::function<Result<CompiledKernel>(const KernelSource&)>;
  // The parts of the store; the defaults are those of the library.
  struct Parts {
    const KernelArchive* archive = &embedded_kernels();
    CubinCache cache{CubinCache::default_root()};
    std::function<Result<std::string>()> compiler_version;
    Compiler compile;
  };
  KernelStore();
  explicit KernelStore(Parts parts) : parts_(std::move(parts)) {}

  // Compiles a kernel at most once per process. A cubin that spills or was compiled for the
  // debugger is rejected unless the policy allows it. PTX cannot be checked, because the driver
  // compiles it.
  Result<std::shared_ptr<const LoadedKernel>> get(const KernelSource& source,
                                                  const CubinPolicy& policy = {});

  const CubinCache& cache() const { return parts_.cache; }

 private:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const LoadedKernel> kernel;
  };
  Result<std::shared_ptr<const LoadedKernel>> make(const KernelSource& source) const;

  Parts parts_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_;  // by name expression, arch and kind
};

KernelStore& kernel_store();

}  // namespace octavo
