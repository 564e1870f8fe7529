// Which kernels are in use.
#include "cpu/kernels.h"

#include <atomic>

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
  static const Kernels* const best = available_kernels().front();
  const Kernels* chosen = chosen_by_test.load(std::memory_order_relaxed);
  return chosen != nullptr ? *chosen : *best;
}

void use_kernels(const Kernels* chosen) { chosen_by_test.store(chosen, std::memory_order_relaxed); }

}  // namespace octavo::cpu
