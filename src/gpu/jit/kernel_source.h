// A kernel before it is compiled (source, configuration and architecture) and after.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "config/quantize.h"
#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "config/sm80_forward.h"
#include "config/sm90_forward.h"

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
KernelSource kernel_source(const Sm80BackwardConfig& config, bool ptx = false);
KernelSource kernel_source(const RowStatsConfig& config, bool ptx = false);
// Never PTX: wgmma does not exist on later chips.
KernelSource kernel_source(const Sm90ForwardConfig& config);

// The architecture whose code a chip should run: a cubin of its own family, or PTX of the newest
// architecture for later chips.
struct CodeFor {
  int arch = 0;  // 0: the chip is older than sm_80
  bool ptx = false;
};
CodeFor code_for(int chip_arch);

}  // namespace octavo
