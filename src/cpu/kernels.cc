// SPDX-License-Identifier: Apache-2.0
// Selects the kernels that the CPU backend uses.
#include "cpu/kernels.h"

#include <atomic>

#include "numeric/fork_safe.h"

#if OCTAVO_HIGHWAY
#include "cpu/kernels_simd.h"
#endif

namespace octavo::cpu {
namespace {

std::atomic<const Kernels*> chosen_by_test{nullptr};

}  // namespace

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> found;
#if OCTAVO_HIGHWAY
  found = simd_kernels();
#endif
  found.push_back(&portable_kernels());
  return found;
}

const Kernels& kernels() {
  const Kernels* chosen = chosen_by_test.load(std::memory_order_relaxed);
  if (chosen != nullptr) return *chosen;
  static constinit MadeOnce<const Kernels*> best;
  return *best.get([] { return available_kernels().front(); });
}

void use_kernels(const Kernels* chosen) { chosen_by_test.store(chosen, std::memory_order_relaxed); }

}  // namespace octavo::cpu
