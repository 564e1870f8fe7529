// SPDX-License-Identifier: Apache-2.0
// One error message for each rule. The rules about shapes repeat the static_asserts of device/sm80
// before a compiler is started.
#include <fmt/format.h>

#include <numeric>

#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

constexpr int kMostThreads = 1024;
// The second with 8-bit elements, and with a block mask.
constexpr int kMostHeadDim = 512, kMostOtherHeadDim = 256;
// FP8 accumulators lose accuracy beyond this many keys, and a block is accumulated without
// promotion.
constexpr int kMostFp8Keys = 192;

// These formats go to the tensor cores unchanged; sim8 is converted to fp16.
bool is_native_8bit(Element e) { return is_fp8(e) || e == Element::int8; }

Status check_types(const Sm80ForwardConfig& c) {
  if (c.element <= Element::f32 || c.element > Element::sim8) {
    return wrong_field("element", static_cast<int>(c.element), "f16, bf16, e4m3, e5m2, int8, sim8");
  }
  const Element out = c.output.element;
  if (out < Element::f32 || out > Element::int8) {
    return wrong_field("output.element", static_cast<int>(out), "f32, f16, bf16, e4m3, e5m2, int8");
  }
  if ((is_fp8(c.element) || is_fp8(out)) && c.arch < 89) {
    return wrong_field("arch", c.arch, "89 or later for FP8");
  }
  if (c.k_row_scales && element_bytes(c.element) != 1) {
    return invalid("config.k_row_scales", "true", "false for 16-bit elements");
  }
  return {};
}

Status check_shape(const Sm80ForwardConfig& c) {
  const int step = is_native_8bit(c.element) ? 32 : 16;
  const int most = element_bytes(c.element) == 2 && c.modifiers.block_mask == 0 ? kMostHeadDim
                                                                                : kMostOtherHeadDim;
  if (c.head_dim < step || c.head_dim > most || c.head_dim % step != 0) {
    return wrong_field("head_dim", c.head_dim,
                       fmt::format("multiples of {} up to {} for this element{}", step, most,
                                   c.modifiers.block_mask != 0 ? " with a block mask" : ""));
  }
  if (c.head_dim_v != 0 && element_bytes(c.element) != 2)
    return wrong_field("head_dim_v", c.head_dim_v, "0 for 8-bit elements");
  const int v_step = c.head_dim_v > sm80::kMaxTileColumns ? 2 * step : step;
  if (c.head_dim_v < 0 || c.head_dim_v > most || c.head_dim_v % v_step != 0)
    return wrong_field("head_dim_v", c.head_dim_v,
                       fmt::format("multiples of {} up to {}, 0 for head_dim", v_step, most));
  if (c.head_dim_v == 0 && c.head_dim > sm80::kMaxTileColumns && c.head_dim % (2 * step) != 0)
    return wrong_field("head_dim", c.head_dim,
                       fmt::format("multiples of {} above {}, or another head_dim_v", 2 * step,
                                   sm80::kMaxTileColumns));
  for (const auto& [name, warps] : {std::pair("warps_m", c.warps_m), {"warps_n", c.warps_n}}) {
    if (warps < 1 || warps > kMostThreads / 32) return wrong_field(name, warps, "1 to 32");
  }
  if (c.producer_warps < 0 || c.producer_warps > 4) {
    return wrong_field("producer_warps", c.producer_warps, "0 to 4");
  }
  if (sm80::threads(c) > kMostThreads) {
    return wrong_field("warps_m * config.warps_n", c.warps_m * c.warps_n, "at most 32 warps");
  }
  constexpr int kMostRows = 1024;
  if (c.block_m < 1 || c.block_m > kMostRows || c.block_m % (16 * c.warps_m) != 0) {
    return wrong_field(
        "block_m", c.block_m,
        fmt::format("multiples of 16 warps_m = {} up to {}", 16 * c.warps_m, kMostRows));
  }
  const int most_keys = is_fp8(c.element) ? kMostFp8Keys : kMostRows;
  if (c.block_n < step || c.block_n > most_keys || c.block_n % step != 0) {
    return wrong_field("block_n", c.block_n,
                       fmt::format("multiples of {} up to {} for this element", step, most_keys));
  }
  return {};
}

Status check_block_mask(const Sm80ForwardConfig& c) {
  const int size = c.modifiers.block_mask;
  if (size == 0) return {};
  if (size != 64 && size != 128)
    return wrong_field("modifiers.block_mask", size, "64, 128, 0 for none");
  if (size % c.block_m != 0)
    return wrong_field("block_m", c.block_m, fmt::format("divisors of {}, a block of rows", size));
  if (c.block_n % 32 != 0)
    return wrong_field("block_n", c.block_n, "multiples of 32 with a block mask");
  if (size % sm80::step_keys(c) != 0)
    return wrong_field("block_n * config.warps_n", sm80::step_keys(c),
                       fmt::format("divisors of {}, a block of keys", size));
  return {};
}

Status check_switches(const Sm80ForwardConfig& c) {
  if (c.stages < 1 || c.stages > 8) return wrong_field("stages", c.stages, "1 to 8");
  const int least = element_bytes(c.element);
  const bool power = c.load_bytes > 0 && (c.load_bytes & (c.load_bytes - 1)) == 0;
  if (!power || c.load_bytes < least || c.load_bytes > 16) {
    return wrong_field("load_bytes", c.load_bytes,
                       fmt::format("powers of two from {} to 16 for this element", least));
  }
  // K is read in groups of gcd(block_n / 8, k_tiles) tiles, V likewise; the size must be even.
  if (c.k_tiles < 2 || std::gcd(c.block_n / 8, c.k_tiles) % 2 != 0) {
    return wrong_field("k_tiles", c.k_tiles, "even numbers from 2");
  }
  if (c.v_tiles < 2 || std::gcd(sm80::v_columns(c) / 8, c.v_tiles) % 2 != 0) {
    return wrong_field("v_tiles", c.v_tiles, "even numbers from 2");
  }
  // P may reach 2^rescale_log2 before the reference maximum is raised, and fp16 ends at 2^16.
  if (c.rescale_log2 < 0 || c.rescale_log2 > 15) {
    return wrong_field("rescale_log2", c.rescale_log2, "0 to 15");
  }
  if (c.p_terms < 1 || c.p_terms > (is_fp8(c.element) ? 2 : 1)) {
    return wrong_field("p_terms", c.p_terms, "1, and 2 for FP8 elements");
  }
  if (c.unroll < 1 || c.unroll > 4) return wrong_field("unroll", c.unroll, "1 to 4");
  // Each stage needs two of the sixteen named barriers, and two have other uses.
  if (c.producer_warps > 0 && (c.stages > 7 || c.v_barrier)) {
    return invalid("config.producer_warps", fmt::format("{}", c.producer_warps),
                   "0 with more than 7 stages or with v_barrier");
  }
  const bool half = c.element == Element::f16 || c.element == Element::sim8;
  if (c.f16_scores && !half) {
    return invalid("config.f16_scores", "true", "false for this element, true for f16 and sim8");
  }
  if (c.exp < ExpForm::f32 || c.exp > ExpForm::polynomial || (c.exp == ExpForm::f16x2 && !half)) {
    return wrong_field("exp", static_cast<int>(c.exp),
                       "f32, polynomial, and f16x2 for f16 and sim8");
  }
  if (c.keep_kv && c.load_bytes != 16) {
    return invalid("config.keep_kv", "true", "false unless load_bytes is 16");
  }
  return {};
}

}  // namespace

int max_smem_bytes(int arch) {
  switch (arch) {
    case 80:
    case 87:
      return 163 * 1024;
    case 90:
    case 100:
    case 101:
    case 103:
      return 227 * 1024;
    default:
      return 99 * 1024;
  }
}

Status feasible(const Sm80ForwardConfig& config, int arch, int smem_bytes) {
  if (config.arch != 80 && config.arch != 89 && config.arch != 90) {
    return wrong_field("arch", config.arch, "80, 89, 90");
  }
  if (config.arch > arch) {
    return wrong_field("arch", config.arch, fmt::format("up to {} on this chip", arch));
  }
  OCTAVO_RETURN_IF_ERROR(check_types(config));
  OCTAVO_RETURN_IF_ERROR(check_shape(config));
  OCTAVO_RETURN_IF_ERROR(check_switches(config));
  OCTAVO_RETURN_IF_ERROR(check_block_mask(config));
  if (sm80::smem_bytes(config) > smem_bytes) {
    return invalid("config", fmt::format("{} bytes of shared memory", sm80::smem_bytes(config)),
                   fmt::format("up to {} on sm_{}", smem_bytes, arch));
  }
  return {};
}

}  // namespace octavo
