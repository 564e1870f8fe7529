// A kernel before it is compiled (source, configuration and architecture) and after, and the device
// sources (src/config and src/device) embedded in the library, so that NVRTC can compile them on
// machines without a source tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/append.h"
#include "config/decode.h"
#include "config/quantize.h"
#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "config/sm80_forward.h"
#include "config/sm90_backward.h"
#include "config/sm90_forward.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct KernelSource {
  std::string include;          // "device/sm80/forward.cuh", one of embedded_sources()
  std::string name_expression;  // the instantiation, as C++ spells it in namespace octavo
  int arch = 80;                // 80, 89 or 90 (compiled for sm_90a)
  bool ptx = false;             // PTX for later chips, not a cubin
  bool operator==(const KernelSource&) const = default;
};

struct CompiledKernel {
  std::vector<std::byte> image;  // a cubin (ELF), or PTX text that ends with a zero byte
  std::string lowered_name;      // the symbol to look up in the module
  // How it was compiled.
  std::string name_expression;
  std::string options;
  std::string compiler;  // "NVRTC 13.0"
  int arch = 0;
  bool ptx = false;
  double compile_ms = 0;  // CPU time
  std::string sha256;     // of the image
  std::string log;        // compiler output: registers and spills; not stored in the cache
};

KernelSource kernel_source(const Sm80ForwardConfig& config, bool ptx = false);
KernelSource kernel_source(const QuantizeConfig& config, bool ptx = false);
KernelSource kernel_source(const DecodeConfig& config, bool ptx = false);
// The kernel that adds up the partial results of the decode kernel.
KernelSource combine_source(const DecodeConfig& config, bool ptx = false);
KernelSource kernel_source(const AppendConfig& config, bool ptx = false);
KernelSource kernel_source(const Sm80BackwardConfig& config, bool ptx = false);
KernelSource kernel_source(const Sm90BackwardConfig& config);
// The kernel that rounds and stores the FP32 dQ of the backward kernel.
KernelSource finish_dq_source(const Sm90BackwardConfig& config);
KernelSource kernel_source(const RowStatsConfig& config, bool ptx = false);
// The kernel of the gradients of sinks, which reads the row statistics.
KernelSource sink_gradients_source(const RowStatsConfig& config, bool ptx = false);
// Never PTX: wgmma does not exist on later chips.
KernelSource kernel_source(const Sm90ForwardConfig& config);

// The architecture whose code a chip should run: a cubin of its own family, or PTX of the newest
// architecture for later chips.
struct CodeFor {
  int arch = 0;  // 0: the chip is older than sm_80
  bool ptx = false;
};
CodeFor code_for(int chip_arch);

// A kernel family can be forced by an environment variable: sm_90 also runs the sm80 family, and
// every chip runs the decode kernel; each must be measurable there.
enum class KernelFamily : std::uint8_t { sm80, sm90, decode };

// The value of $OCTAVO_KERNELS; none if it is unset or empty, and the problem and the chip decide.
// Read for every plan.
Result<std::optional<KernelFamily>> forced_kernel_family();
bool is_forced(KernelFamily family);

// The error if the sm90 family is forced but does not support the problem; `what` ends the message:
// "for rows aligned to 8 bytes".
Status no_other_family(std::string_view what);

// A file of src/config or src/device.
struct EmbeddedSource {
  const char* name;  // the include path: "device/sm80/forward.cuh"
  const char* text;
};

// All files, sorted by name. Generated at build time by tools/embed_sources.cmake.
std::span<const EmbeddedSource> embedded_sources();

// Null if there is no file of that name.
const EmbeddedSource* find_embedded_source(std::string_view name);

// SHA-256, in hex, of the file and of everything that it includes, so that a change of one kernel
// leaves the cubins of the others valid. Empty for an unknown name.
std::string sources_digest(std::string_view name);

}  // namespace octavo
