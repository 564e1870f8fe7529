// SPDX-License-Identifier: Apache-2.0
#include "evidence/counters/occupancy.h"

#include <algorithm>
#include <array>

#include "config/portable.h"

namespace octavo::evidence {
namespace {

struct SmLimits {
  int arch, warps, blocks, smem_bytes;
};
// From the table of compute capabilities in the CUDA programming guide.
constexpr std::array<SmLimits, 3> kLimits = {
    {{80, 64, 32, 164 * 1024}, {89, 48, 24, 100 * 1024}, {90, 64, 32, 228 * 1024}}};

}  // namespace

std::optional<double> occupancy_pct(const KernelInfo& kernel) {
  constexpr int kRegisters = 65536, kWarp = 32, kRegisterUnit = 256, kReservedSmem = 1024;
  const auto limits = std::find_if(kLimits.begin(), kLimits.end(),
                                   [&](const SmLimits& l) { return l.arch == kernel.arch; });
  if (limits == kLimits.end() || !kernel.code || kernel.threads < 1 || kernel.code->registers < 1)
    return std::nullopt;
  const int warps = div_up(kernel.threads, kWarp);
  // Registers are allocated to a warp in units.
  const int of_warp = div_up(kernel.code->registers * kWarp, kRegisterUnit) * kRegisterUnit;
  const int smem = kernel.dynamic_smem_bytes + kernel.code->static_smem_bytes + kReservedSmem;
  const int blocks = std::min({limits->blocks, limits->warps / warps,
                               kRegisters / (of_warp * warps), limits->smem_bytes / smem});
  if (blocks < 1) return std::nullopt;
  return 100.0 * blocks * warps / limits->warps;
}

}  // namespace octavo::evidence
