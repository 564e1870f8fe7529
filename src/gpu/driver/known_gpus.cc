// SPDX-License-Identifier: Apache-2.0
// GPUs by name, so that the choice of a kernel can be explained where none is present.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <vector>

#include "base/error.h"
#include "gpu/driver/driver.h"
#include "gpu/forward/sm80_forward.h"
#include "octavo/kernels.hpp"

namespace octavo {
namespace {

// The numbers that choose kernels, from NVIDIA's specifications of these products.
struct Specification {
  std::string_view name, product;
  int arch = 0, sms = 0, l2_mib = 0, memory_gib = 0;
};
constexpr std::array kSpecifications = {
    Specification{"a100", "NVIDIA A100", 80, 108, 40, 80},
    Specification{"a10", "NVIDIA A10", 86, 72, 6, 24},
    Specification{"a40", "NVIDIA A40", 86, 84, 6, 48},
    Specification{"rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 6, 24},
    Specification{"l4", "NVIDIA L4", 89, 58, 48, 24},
    Specification{"l40s", "NVIDIA L40S", 89, 142, 96, 48},
    Specification{"rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 72, 24},
    Specification{"h100", "NVIDIA H100 SXM", 90, 132, 50, 80},
    Specification{"h100_pcie", "NVIDIA H100 PCIe", 90, 114, 50, 80},
    Specification{"h200", "NVIDIA H200", 90, 132, 60, 141},
    Specification{"b200", "NVIDIA B200", 100, 148, 126, 180},
    Specification{"rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 96, 32},
};

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

}  // namespace

Result<GpuInfo> gpu_named(std::string_view name) {
  std::string all;
  for (const Specification& one : kSpecifications) {
    all += fmt::format("{}{}", all.empty() ? "" : ", ", one.name);
    if (!same_name(name, one.name)) continue;
    GpuInfo info;
    info.name = one.product;
    info.arch = one.arch;
    info.sms = one.sms;
    info.smem_per_block_optin = max_smem_bytes(one.arch);
    info.l2_bytes = one.l2_mib << 20;
    info.memory_bytes = static_cast<std::size_t>(one.memory_gib) << 30;
    return info;
  }
  return invalid("gpu", fmt::format("'{}'", name), all);
}

std::vector<KnownGpu> known_gpus() {
  std::vector<KnownGpu> all;
  for (const Specification& one : kSpecifications)
    all.push_back({std::string(one.name), std::string(one.product), one.arch, one.sms});
  return all;
}

}  // namespace octavo
