// SPDX-License-Identifier: Apache-2.0
// Checks configurations of the sm80 backward kernels, with one error message for each rule. The
// rules about shapes repeat the static_asserts of device/sm80, so that no compiler has to be
// started.
#include <fmt/format.h>

#include "config/row_stats.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

Status check_backward_warps(const Sm80BackwardConfig& c) {
  constexpr int kMostWarps = 32;
  // Warps with the same owned rows share a named barrier, and barrier 0 has another use.
  const int most_warps = c.warps_d > 1 ? 15 : kMostWarps;
  if (c.warps_d != 1 && c.warps_d != 2 && c.warps_d != 4)
    return wrong_field("warps_d", c.warps_d, "1, 2, 4");
  if (c.warps < 1 || c.warps > most_warps)
    return wrong_field("warps", c.warps, fmt::format("1 to {}", most_warps));
  if (c.warps * c.warps_d > kMostWarps)
    return wrong_field("warps * config.warps_d", c.warps * c.warps_d, "at most 32 warps");
  return {};
}

Status check_backward_shape(const Sm80BackwardConfig& c) {
  constexpr int kMostColumns = 256, kMostKeys = 1024;
  const int columns = 16 * c.warps_d;
  if (c.head_dim < columns || c.head_dim > kMostColumns || c.head_dim % columns != 0)
    return wrong_field("head_dim", c.head_dim,
                       fmt::format("multiples of 16 warps_d = {} up to {}", columns, kMostColumns));
  // A thread copies at most 16 bytes of a row.
  if (c.head_dim / 8 > sm80::threads(c))
    return wrong_field("head_dim", c.head_dim,
                       fmt::format("up to 8 columns for each of {} threads", sm80::threads(c)));
  const int of_queries = sm80::owns_keys(c) ? 16 * c.warps_d : 16 * c.warps;
  const int of_keys = sm80::owns_keys(c) ? 16 * c.warps : 16 * c.warps_d;
  const int most_queries = row_stats::kPaddedRows;
  if (c.block_m < 1 || most_queries % c.block_m != 0 || c.block_m % of_queries != 0)
    return wrong_field("block_m", c.block_m,
                       fmt::format("multiples of {} that divide {}", of_queries, most_queries));
  if (c.block_n < 1 || c.block_n > kMostKeys || c.block_n % of_keys != 0)
    return wrong_field("block_n", c.block_n,
                       fmt::format("multiples of {} up to {}", of_keys, kMostKeys));
  // A thread copies at most one chunk of row statistics.
  if (sm80::owns_keys(c) && c.block_m / 2 > sm80::threads(c))
    return wrong_field("block_m", c.block_m,
                       fmt::format("up to two queries for each of {} threads", sm80::threads(c)));
  return {};
}

Status check_bias_pass(const Sm80BackwardConfig& c) {
  if (c.pass != BackwardPass::dbias) return {};
  if (!c.modifiers.bias)
    return wrong_field("modifiers.bias", c.modifiers.bias, "true in the pass dbias");
  if (c.warps_d != 1) return wrong_field("warps_d", c.warps_d, "1 in the pass dbias");
  if (c.stages != 1) return wrong_field("stages", c.stages, "1 in the pass dbias");
  if (c.own_in_registers)
    return wrong_field("own_in_registers", c.own_in_registers, "false in the pass dbias");
  return {};
}

// The rows and the columns of a tile of scores must each be in one block of the mask.
Status check_block_mask(const Sm80BackwardConfig& c) {
  const int size = c.modifiers.block_mask;
  if (size == 0) return {};
  if (size != 64 && size != 128)
    return wrong_field("modifiers.block_mask", size, "64, 128, 0 for none");
  if (size % c.block_m != 0)
    return wrong_field("block_m", c.block_m,
                       fmt::format("divisors of {}, a block of queries", size));
  if (size % c.block_n != 0)
    return wrong_field("block_n", c.block_n, fmt::format("divisors of {}, a block of keys", size));
  // A word has the bits of 32 keys, and a warp reads those of one or of whole words.
  constexpr int kWord = 32;
  const int rows = sm80::own_rows(c) / c.warps, columns = sm80::streamed_rows(c) / c.warps_d;
  if (sm80::owns_keys(c) ? kWord % rows != 0 : columns % kWord != 0 && columns != kWord / 2)
    return wrong_field("warps", c.warps, "warps whose keys have one word of bits, or whole words");
  constexpr int kThreadBits = 32, kLanes = 32;  // a thread keeps its bits in one word
  if (sm80::owns_keys(c) && rows * columns > kThreadBits * kLanes)
    return wrong_field("block_m", c.block_m, "at most 1024 scores of a warp with a block mask");
  if (c.modifiers.padded)
    return wrong_field("modifiers.padded", c.modifiers.padded, "false with a block mask");
  return {};
}

}  // namespace

Status feasible(const Sm80BackwardConfig& config, int arch, int smem_bytes) {
  if (config.arch != 80 && config.arch != 89 && config.arch != 90)
    return wrong_field("arch", config.arch, "80, 89, 90");
  if (config.arch > arch)
    return wrong_field("arch", config.arch, fmt::format("up to {} on this chip", arch));
  if (config.element != Element::f16 && config.element != Element::bf16)
    return wrong_field("element", static_cast<int>(config.element), "f16, bf16");
  if (config.pass < BackwardPass::dkv || config.pass > BackwardPass::dbias)
    return wrong_field("pass", static_cast<int>(config.pass), "dkv, dq, dbias");
  OCTAVO_RETURN_IF_ERROR(check_bias_pass(config));
  OCTAVO_RETURN_IF_ERROR(check_backward_warps(config));
  OCTAVO_RETURN_IF_ERROR(check_backward_shape(config));
  OCTAVO_RETURN_IF_ERROR(check_block_mask(config));
  if (config.stages < 1 || config.stages > 8) return wrong_field("stages", config.stages, "1 to 8");
  if (config.load_bytes != 2 && config.load_bytes != 4 && config.load_bytes != 8 &&
      config.load_bytes != 16)
    return wrong_field("load_bytes", config.load_bytes, "2, 4, 8, 16");
  if (sm80::smem_bytes(config) > smem_bytes)
    return invalid("config", fmt::format("{} bytes of shared memory", sm80::smem_bytes(config)),
                   fmt::format("up to {} on sm_{}", smem_bytes, arch));
  return {};
}

}  // namespace octavo
