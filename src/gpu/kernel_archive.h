// The kernels compiled ahead of time, as one run of bytes: cache entries, one after another.
//
//   "octavo kernels 1\n", then per entry "<key> <bytes of meta.json> <bytes of image>\n" and those
//   bytes. Keys are made without a compiler version: an entry is found where there is no compiler.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

class KernelArchive {
 public:
  KernelArchive() = default;  // empty

  // The bytes must outlive the archive. Images are verified when they are taken out.
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

// What this library was built with; empty when it was built without NVRTC.
const KernelArchive& embedded_kernels();

namespace detail {
// Defined by shipped_image.cc, and by the tool that makes what that file embeds.
std::span<const std::byte> embedded_archive_bytes();
}  // namespace detail

}  // namespace octavo
