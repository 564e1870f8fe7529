// SPDX-License-Identifier: Apache-2.0
// The on-disk cache of compiled kernels: one directory per kernel, named by its key.
//
//   <root>/<key>/kernel.cubin (or kernel.ptx), meta.json
//   <root>/.tmp-...                                       an entry being written, or being removed
//
// Many processes share a root without locks. An entry is written under a temporary name, synced and
// renamed, so it is complete or absent; the loser of a race drops its own. An entry is verified
// each time it is loaded, and a damaged one is removed. Only the owner can read it, and entries of
// other users are ignored. The cache is optional: a failure is reported, and the caller compiles.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

class CubinCache {
 public:
  explicit CubinCache(std::string root) : root_(std::move(root)) {}

  // $OCTAVO_CACHE_DIR, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo; empty without a home.
  static std::string default_root();
  const std::string& root() const { return root_; }

  // ErrorCode::unsupported: there is no such entry. Any other error: the entry cannot be trusted,
  // and it is removed if this user owns it.
  Result<CompiledKernel> load(std::string_view key) const;
  Status store(std::string_view key, const CompiledKernel& kernel) const;

  struct Entry {
    std::string key;
    CompiledKernel kernel;  // without its image
    std::uint64_t bytes = 0;
    std::int64_t modified = 0;  // seconds since 1970
    Status status;              // why it would not be loaded, as far as meta.json shows
  };
  // Oldest first. A missing root has no entries.
  Result<std::vector<Entry>> list() const;

  // Removes entries whose key starts with `prefix` ("": all, and the leftovers of killed writers)
  // and returns their number.
  Result<int> remove(std::string_view prefix) const;

 private:
  std::string root_;
};

// Gets the kernel from the cache, or from `compile`, whose result is then stored. A cache that
// cannot be read or written does not fail the call: `note` describes the problem.
struct Cached {
  CompiledKernel kernel;
  bool from_disk = false;
  std::string note;
};
Result<Cached> get_or_compile(const CubinCache& cache, std::string_view key,
                              const std::function<Result<CompiledKernel>()>& compile);

// For machines without a compiler: loads a cached kernel that any version of the compiler made from
// the same source, the latest version first. The key covers sources and options, so it is
// recomputed with the version that the entry states; an entry that is damaged or does not match its
// key is skipped.
Result<CompiledKernel> load_of_any_compiler(const CubinCache& cache, const KernelSource& source);

}  // namespace octavo
