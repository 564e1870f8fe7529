// SPDX-License-Identifier: Apache-2.0
// Kernels for cache tests: any bytes will do.
#pragma once

#include <string>

#include "gpu/jit/kernel_source.h"
#include "gpu/jit/sha256.h"

namespace octavo {

inline std::string fake_key(const std::string& name) { return sha256_hex(name); }

inline CompiledKernel fake_kernel(const std::string& name, std::size_t bytes = 50000) {
  CompiledKernel kernel;
  kernel.image.resize(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    kernel.image[i] = static_cast<std::byte>(i * 31 + name[i % name.size()]);
  }
  kernel.name_expression = "sm80::" + name;
  kernel.lowered_name = "_Z" + name;
  kernel.options = "-std=c++20";
  kernel.compiler = "NVRTC 13.0";
  kernel.arch = 89;
  kernel.compile_ms = 1234.5;
  kernel.sha256 = sha256_hex(kernel.image);
  return kernel;
}

}  // namespace octavo
