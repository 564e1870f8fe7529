#include "gpu/forward/nearest_shipped.h"

#include <cstdlib>
#include <tuple>

#include "gpu/forward/sm80_feasible.h"
#include "gpu/jit/shipped.h"

namespace octavo {
namespace {

bool stands_in(const Sm80ForwardConfig& shipped, const Sm80ForwardConfig& wanted) {
  return shipped.arch == wanted.arch && shipped.element == wanted.element &&
         shipped.out == wanted.out && shipped.amax == wanted.amax &&
         shipped.k_row_scales == wanted.k_row_scales && shipped.head_dim >= wanted.head_dim &&
         shipped.load_bytes <= wanted.load_bytes;
}

// Smaller is nearer. Padding of head_dim costs most, then a different precision of P, then
// different tile sizes, then a different split of the keys.
auto distance(const Sm80ForwardConfig& shipped, const Sm80ForwardConfig& wanted) {
  return std::tuple(shipped.head_dim, shipped.p_terms != wanted.p_terms,
                    std::abs(shipped.block_m - wanted.block_m),
                    std::abs(sm80::step_keys(shipped) - sm80::step_keys(wanted)));
}

}  // namespace

std::optional<Sm80ForwardConfig> nearest_shipped(const Sm80ForwardConfig& wanted, int chip_arch,
                                                 int smem_bytes) {
  std::optional<Sm80ForwardConfig> nearest;
  for (const Sm80ForwardConfig& shipped : shipped_configs(wanted.arch)) {
    if (!stands_in(shipped, wanted) || !feasible(shipped, chip_arch, smem_bytes).ok()) continue;
    if (!nearest || distance(shipped, wanted) < distance(*nearest, wanted)) nearest = shipped;
  }
  return nearest;
}

}  // namespace octavo
