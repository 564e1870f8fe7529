// The source file and template instantiation of a configuration.
#include "gpu/jit/kernel_source.h"

#include <fmt/format.h>

#include "gpu/jit/config_text.h"

namespace octavo {

KernelSource kernel_source(const Sm80ForwardConfig& config, bool ptx) {
  return {.include = "device/sm80/forward.cuh",
          .name_expression = fmt::format("sm80::sm80_forward<sm80::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const QuantizeConfig& config, bool ptx) {
  if (config.operands)
    return {.include = "device/quantize/operands.cuh",
            .name_expression = fmt::format("quantizer::quantize_operands<quantizer::ConfigOf<{}>>",
                                           to_text(config)),
            .arch = config.arch,
            .ptx = ptx};
  return {.include = "device/quantize/quantize.cuh",
          .name_expression =
              fmt::format("quantizer::quantize_rows<quantizer::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const Sm90ForwardConfig& config) {
  return {.include = "device/sm90/forward.cuh",
          .name_expression = fmt::format("sm90::sm90_forward<sm90::ConfigOf<{}>>", to_text(config)),
          .arch = 90};
}

KernelSource kernel_source(const Sm80BackwardConfig& config, bool ptx) {
  return {.include = "device/sm80/backward.cuh",
          .name_expression =
              fmt::format("sm80::sm80_backward<sm80::BackwardConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const RowStatsConfig& config, bool ptx) {
  return {.include = "device/backward/row_stats.cuh",
          .name_expression =
              fmt::format("row_stats::row_stats<row_stats::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

CodeFor code_for(int chip_arch) {
  if (chip_arch < 80) return {};
  if (chip_arch < 89) return {.arch = 80, .ptx = false};  // sm_86, sm_87 run sm_80 cubins
  if (chip_arch < 90) return {.arch = 89, .ptx = false};
  if (chip_arch == 90) return {.arch = 90, .ptx = false};
  return {.arch = 89, .ptx = true};
}

}  // namespace octavo
