// A compiled kernel as the cache and the embedded archive store it: the image, and a meta.json that
// records its sources and detects damage to either.
#pragma once

#include <span>
#include <string>
#include <string_view>

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

// Both together; an error if the image is not the one that meta.json describes.
Result<CompiledKernel> parse_entry(std::string_view key, std::string_view meta,
                                   std::vector<std::byte> image);

}  // namespace octavo
