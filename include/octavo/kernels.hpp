// SPDX-License-Identifier: Apache-2.0
// Lists the GPU kernels of this library, those compiled ahead of time and those in the disk cache,
// and tells where a kernel would come from and which one a GPU would run. Needs no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// What the compiled code of a kernel says about it.
struct KernelCode {
  int registers = 0;  // per thread
  int static_smem_bytes = 0;
  int local_bytes = 0;  // per thread: spilled registers; 0 in every shipped kernel
  int local_instructions = 0;
  int instructions = 0;
  int mma_f16 = 0;  // tensor core instructions, by operand type
  int mma_fp8 = 0;
  int mma_int8 = 0;
  int ldmatrix = 0;
  int exp2 = 0;
  int shared_stores = 0;
  bool debug = false;
};

struct KernelInfo {
  std::string kernel;  // "sm80_forward", "sm90_forward"
  std::string config;  // the text that --config takes
  std::string brief;   // the fields that differ from the defaults, without the arch
  int arch = 0;        // 80, 89, 90
  bool ptx = false;    // PTX for later chips: has no machine code
  int threads = 0;     // per CTA; this and dynamic_smem_bytes come from the configuration
  int dynamic_smem_bytes = 0;
  std::size_t image_bytes = 0;
  double compile_ms = 0;  // CPU time
  std::string compiler;   // "NVRTC 13.0"
  std::string options;
  std::string symbol;
  std::string sha256;  // of the image
  std::optional<KernelCode> code{};
  Status status;  // why it is missing or must not be used
};

// Every kernel of the shipped set, including those missing from this build.
OCTAVO_API std::vector<KernelInfo> shipped_kernel_list();
// False if the library was built without NVRTC.
OCTAVO_API bool has_shipped_kernels();

struct CachedKernelInfo {
  std::string key;
  std::string name_expression;
  std::string brief;  // of its configuration; empty if this library does not know its fields
  int arch = 0;
  bool ptx = false;
  std::uint64_t bytes = 0;    // on disk
  std::int64_t modified = 0;  // seconds since 1970
  double compile_ms = 0;
  std::string compiler;
  Status status;  // why it would not be loaded
};
// $OCTAVO_CACHE_DIR, else $XDG_CACHE_HOME/octavo, else ~/.cache/octavo; empty: there is none.
OCTAVO_API std::string kernel_cache_directory();
OCTAVO_API Result<std::vector<CachedKernelInfo>> cached_kernels();
// Removes the kernels whose key starts with `prefix` ("": all) and returns their number.
OCTAVO_API Result<int> remove_cached_kernels(std::string_view prefix);

struct KernelExplanation {
  std::string name_expression;  // what is compiled
  std::string options;
  std::string sources_sha256;  // of the device sources it includes
  std::string compiler;        // or why there is none
  std::string key;             // in the cache; empty without a compiler
  std::string directory;       // where that entry is, or would be
  enum class Where : std::uint8_t { embedded, disk, nowhere } where = Where::nowhere;
  KernelInfo info{};
};
// Gets the kernel of a configuration from the library or the cache, or compiles it, and returns its
// code statistics, even if the kernel must not be used.
OCTAVO_API Result<KernelInfo> compile_kernel(std::string_view config);
// Tells where the kernel of a configuration would come from. Compiles nothing.
OCTAVO_API Result<KernelExplanation> explain_kernel(std::string_view config);

// A GPU whose choice of kernels is known without it.
struct KnownGpu {
  std::string name;     // "h100"
  std::string product;  // "NVIDIA H100 SXM"
  int arch = 0;         // 90
  int sms = 0;          // that a grid fills
};
OCTAVO_API std::vector<KnownGpu> known_gpus();
// Tells what explain() would say on that GPU, which need not be present: the choice depends on the
// problem and on the numbers of the chip alone. Loads and compiles nothing.
OCTAVO_API Result<Explanation> explain_on_known_gpu(const Problem& problem, std::string_view gpu);

}  // namespace octavo
