// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "config/sm80_backward_tiles.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/forward/forward_params.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"

namespace octavo {
namespace {

// The smallest head dimension of the tiles that holds the problem's.
int tile_head_dim(std::int64_t head_dim) {
  for (const int columns : {64, 96, 128, 192, 256})
    if (head_dim <= columns) return columns;
  return 0;
}

std::span<const sm80::BackwardTiles> tiles_for(const Sm80BackwardConfig& c, BackwardPass pass) {
  if (pass == BackwardPass::dbias) return sm80::kBiasGradientTiles;
  if (any(c.modifiers)) return sm80::kModifiedBackwardTiles;
  return sm80::kBackwardTiles;
}

// Returns `c` with the tiles of a pass.
Sm80BackwardConfig with_chosen_tiles(const Sm80BackwardConfig& c, BackwardPass pass,
                                     const GpuInfo& gpu) {
  Sm80BackwardConfig chosen = c;
  const bool small_blocks = c.modifiers.block_mask == 64 && pass == BackwardPass::dkv;
  if (small_blocks)
    for (const sm80::BackwardTiles& tiles : sm80::kBlocksOf64BackwardTiles)
      if (tiles.head_dim >= c.head_dim) return sm80::with_tiles(c, tiles);
  for (const sm80::BackwardTiles& tiles : tiles_for(c, pass)) {
    if (tiles.pass != pass || tiles.head_dim < c.head_dim) continue;
    chosen = sm80::with_tiles(c, tiles);
    if (feasible(chosen, gpu.arch, gpu.smem_per_block_optin).ok()) break;
  }
  return chosen;
}

}  // namespace

Status sm80_backward_serves(const Problem& p) {
  if (p.q != DType::f16 && p.q != DType::bf16)
    return unsupported("q.dtype", name(p.q), "f16, bf16 in the backward pass on a GPU");
  for (const auto& [argument, dtype] :
       {std::pair("k.dtype", p.k), {"v.dtype", p.v}, {"out.dtype", p.out}})
    if (dtype != p.q)
      return unsupported(argument, name(dtype),
                         fmt::format("{}, as q, in the backward pass on a GPU", name(p.q)));
  if (p.head_dim % 8 != 0 || tile_head_dim(p.head_dim) == 0)
    return unsupported("head_dim", fmt::format("{}", p.head_dim),
                       "multiples of 8 up to 256 in the backward pass on a GPU");
  return {};
}

ChosenSm80Backward choose_sm80_backward(const Problem& problem, const GpuInfo& gpu,
                                        int load_bytes) {
  Sm80BackwardConfig c;
  c.arch = code_for(gpu.arch).arch;
  c.element = element_of(problem.q);
  c.head_dim = tile_head_dim(problem.head_dim);
  c.load_bytes = std::min(load_bytes, 16);
  c.modifiers = backward_modifiers_of(problem);
  ChosenSm80Backward chosen;
  chosen.row_stats = {
      .arch = c.arch, .element = c.element, .load_bytes = c.load_bytes, .padded = problem.padded};
  chosen.dkv = with_chosen_tiles(c, BackwardPass::dkv, gpu);
  chosen.dq = with_chosen_tiles(c, BackwardPass::dq, gpu);
  if (problem.bias) chosen.dbias = with_chosen_tiles(c, BackwardPass::dbias, gpu);
  chosen.reason =
      fmt::format("dK and dV by {} keys, dQ by {} queries", chosen.dkv.block_n, chosen.dq.block_m);
  if (c.load_bytes < 16)
    chosen.reason += fmt::format("; narrow loads, as rows are only {}-byte aligned", c.load_bytes);
  return chosen;
}

Status check_bias_gradient(const BackwardArguments& a) {
  if (a.dbias.data == nullptr) return {};
  const std::array wanted = {a.q.shape[2], a.k.shape[2]};
  for (std::size_t i = 0; i < 2; ++i)
    if (a.dbias.shape[i + 2] != wanted[i])
      return unsupported(fmt::format("dbias.shape[{}]", i + 2),
                         fmt::format("{}", a.dbias.shape[i + 2]),
                         fmt::format("{} in the backward pass on a GPU", wanted[i]));
  return {};
}

std::string describe_sm80_backward(const ChosenSm80Backward& chosen) {
  return to_text(chosen.dkv) + " " + to_text(chosen.dq);
}

}  // namespace octavo
