// The on-disk cache of compiled kernels: one directory per kernel, named by its key.
//
//   <root>/<key>/kernel.cubin (or kernel.ptx), meta.json
//   <root>/.tmp-...                                       an entry being written, or being removed
//
// Many processes share a root without locks. An entry is written under a temporary name, synced and
// renamed, so it is there whole or not at all; who loses a race drops its own. It is verified each
// time it is loaded, and a damaged one is removed. Only the owner can read it, and entries of
// others are ignored. Nothing here is ever needed: what fails is said, and the caller compiles.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

class CubinCache {
 public:
  explicit CubinCache(std::string root) : root_(std::move(root)) {}

  // $OCTAVO_CACHE_DIR, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo; empty without a home.
  static std::string default_root();
  const std::string& root() const { return root_; }

  // ErrorCode::unsupported: there is no such entry. Any other error: there was one, it is not to be
  // trusted, and it is removed if it is ours.
  Result<CompiledKernel> load(std::string_view key) const;
  Status store(std::string_view key, const CompiledKernel& kernel) const;

  struct Entry {
    std::string key;
    CompiledKernel kernel;  // without its image
    std::uint64_t bytes = 0;
    std::int64_t modified = 0;  // seconds since 1970
    Status status;              // why it would not be loaded, as far as meta.json tells
  };
  // By age, oldest first. An absent root has no entries.
  Result<std::vector<Entry>> list() const;

  // Entries whose key starts with `prefix` ("": all of them, and what killed writers left behind);
  // how many were removed.
  Result<int> remove(std::string_view prefix) const;

 private:
  std::string root_;
};

// The kernel from the cache, or from `compile`, which is then stored. A cache that cannot be read
// or written never fails the call: `note` says what was wrong with it.
struct Cached {
  CompiledKernel kernel;
  bool from_disk = false;
  std::string note;
};
Result<Cached> get_or_compile(const CubinCache& cache, std::string_view key,
                              const std::function<Result<CompiledKernel>()>& compile);

// For where there is no compiler: what any version of it once made of the same source, the latest
// first. An entry's name covers the sources and the options too, so it is made again from the
// version that the entry states; one that is damaged, or says what it is not, is passed over.
Result<CompiledKernel> load_of_any_compiler(const CubinCache& cache, const KernelSource& source);

}  // namespace octavo
