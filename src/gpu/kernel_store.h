// The one way to a compiled kernel: memory, then the set compiled ahead of time, then the cache on
// disk, then the compiler. Without a compiler the others still serve.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "gpu/cubin_cache.h"
#include "gpu/cubin_info.h"
#include "gpu/kernel_archive.h"
#include "gpu/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

enum class KernelOrigin { embedded, disk, compiled };
std::string_view name(KernelOrigin origin);

struct LoadedKernel {
  CompiledKernel kernel;
  CubinInfo info;  // empty for PTX
  KernelOrigin origin = KernelOrigin::compiled;
  std::string note;  // what was wrong with the cache, if anything
};

class KernelStore {
 public:
  using Compiler = std::function<Result<CompiledKernel>(const KernelSource&)>;
  // What the store is made of; the defaults are the library's own.
  struct Parts {
    const KernelArchive* archive = &embedded_kernels();
    CubinCache cache{CubinCache::default_root()};
    std::function<Result<std::string>()> compiler_version;
    Compiler compile;
  };
  KernelStore();
  explicit KernelStore(Parts parts) : parts_(std::move(parts)) {}

  // Compiled at most once a process, whoever asks. A cubin that spills or was made for the debugger
  // is refused unless the policy allows it; of PTX only the driver, which compiles it, can tell.
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
