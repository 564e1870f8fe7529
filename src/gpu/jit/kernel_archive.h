// SPDX-License-Identifier: Apache-2.0
// Compiled kernels as bytes. An entry of the disk cache or of an archive is the image and a
// meta.json that records its sources and detects damage to either. The archive holds the kernels
// compiled ahead of time, as one byte array: entries, one after another.
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

// SHA-256 in hex over everything that determines the compiled code: the sources that the kernel
// includes, the name expression, the options, the compiler's version and the arch. An empty
// `compiler` gives the key of the ahead-of-time set, which is found without a compiler.
std::string cache_key(const KernelSource& source, std::string_view compiler);

inline std::string image_name(bool ptx) { return ptx ? "kernel.ptx" : "kernel.cubin"; }

std::string meta_text(std::string_view key, const CompiledKernel& kernel);

// The inverse of meta_text, without an image; an error if meta_text did not write it for `key`.
Result<CompiledKernel> parse_meta(std::string_view key, std::string_view meta);

// Reads meta.json and image; an error if the image is not the one that meta.json describes.
Result<CompiledKernel> parse_entry(std::string_view key, std::string_view meta,
                                   std::vector<std::byte> image);

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
