// The kernels compiled ahead of time, as one byte array: cache entries, one after another.
//
//   "octavo kernels 1\n", then per entry "<key> <bytes of meta.json> <bytes of image>\n" and those
//   bytes. Keys do not include a compiler version, so that an entry is found without a compiler.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

class KernelArchive {
 public:
  KernelArchive() = default;  // empty

  // The bytes must outlive the archive. Images are verified when they are loaded.
  static Result<KernelArchive> open(std::span<const std::byte> bytes);

  std::size_t size() const { return entries_.size(); }
  std::vector<std::string> keys() const;
  // ErrorCode::unsupported: there is no such entry.
  Result<CompiledKernel> load(std::string_view key) const;

  struct Item {
    std::string key;
    CompiledKernel kernel;
  };
  static std::string write(const std::vector<Item>& items);

 private:
  struct Entry {
    std::string_view meta;
    std::span<const std::byte> image;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

// The kernels built into this library; empty if it was built without NVRTC.
const KernelArchive& embedded_kernels();

namespace detail {
// Defined by shipped_image.cc, and by the tool that creates the archive that it embeds.
std::span<const std::byte> embedded_archive_bytes();
}  // namespace detail

}  // namespace octavo
