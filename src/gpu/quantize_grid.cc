#include "gpu/quantize_grid.h"

#include <algorithm>

#include "gpu/forward_params.h"

namespace octavo {
namespace {

// Maxima of a head, so that putting them together stays cheap.
constexpr std::int64_t kMostChunks = 32;
// Those of K or V beside Q, whose CTAs fill the chip too: the fewer, the less the second launch has
// to put together.
constexpr std::int64_t kSharedChunks = 256;

// Rows of a CTA of the first pass: so many tiles a head that the chip is full and no more.
std::int64_t amax_tile_rows(const Conversion& x, std::int64_t ctas, std::int64_t at_once) {
  const std::int64_t chunks =
      std::clamp<std::int64_t>(ctas / (x.sequences * x.heads), 1, kMostChunks);
  return round_up(std::max<std::int64_t>(div_up(x.longest, chunks), 1), at_once);
}

std::int64_t code_tile_rows(const Conversion& x, const QuantizeConfig& c) {
  if (c.transposed) return quantizer::kValueKeys;
  if (c.group == ScaleGroup::block)
    return std::min(x.block_rows, std::max<std::int64_t>(x.longest, 1));
  return 4 * quantizer::rows_at_once(c);
}

// How the rows of every head are divided; so many CTAs that is.
std::int64_t set_tiles(const Conversion& x, std::int64_t tile_rows, QuantizeParams& p) {
  p.tile_rows = static_cast<i32>(tile_rows);
  p.tiles = static_cast<i32>(std::max<std::int64_t>(div_up(x.longest, tile_rows), 1));
  p.by_tiles = divider(p.tiles);
  p.by_heads = divider(p.heads);
  return x.sequences * x.heads * p.tiles;
}

}  // namespace

void set_grid(const Conversion& x, QuantizeLaunch& launch) {
  const QuantizeConfig& c = launch.config;
  QuantizeParams& p = launch.params.q;
  const std::int64_t at_once = quantizer::rows_at_once(c);
  if (c.mean_pass > 0) {
    const std::int64_t rows = c.mean_pass == 1 ? quantizer::kMeanRows * at_once : x.longest;
    launch.blocks = set_tiles(x, std::max<std::int64_t>(rows, 1), p);
    return;
  }
  const bool by_tensor = c.group == ScaleGroup::tensor;
  const std::int64_t tile_rows = !c.amax_pass ? code_tile_rows(x, c)
                                 : by_tensor  ? 4 * at_once
                                              : amax_tile_rows(x, kChunks, at_once);
  launch.blocks = set_tiles(x, tile_rows, p);
  if (!c.amax_pass) return;
  if (by_tensor) launch.blocks = std::min(launch.blocks, kTensorBlocks);
  p.partials = static_cast<i32>(by_tensor ? launch.blocks : p.tiles);
}

void set_grid(const Conversions& x, QuantizeLaunch& launch) {
  const QuantizeConfig& c = launch.config;
  OperandsParams& p = launch.params;
  const bool of_heads = c.group == ScaleGroup::head;
  const std::int64_t rows = quantizer::operand_rows(c);
  launch.cluster = 1;
  if (c.hold)
    for (launch.cluster = 2; launch.cluster * quantizer::kValueKeys < x.v.longest;)
      launch.cluster *= 2;
  // What shares a scale with other CTAs: as a cluster holds it, or as so many maxima; or else tiles
  // of `codes` rows.
  const auto shared = [&](const Conversion& operand, std::int64_t codes, QuantizeParams& params) {
    std::int64_t tile_rows = codes;
    if (c.hold) tile_rows = quantizer::kValueKeys;
    if (c.amax_pass) tile_rows = amax_tile_rows(operand, kSharedChunks, codes);
    std::int64_t blocks = set_tiles(operand, tile_rows, params);
    if (c.hold) {  // a tile each, though some may be empty
      params.tiles = launch.cluster;
      params.by_tiles = divider(params.tiles);
      blocks = operand.sequences * operand.heads * launch.cluster;
    }
    if (c.amax_pass) params.partials = params.tiles;
    return blocks;
  };
  const bool only_rest = !c.hold && !c.amax_pass;
  const std::int64_t q_blocks = only_rest ? 0 : set_tiles(x.q, rows, p.q);
  const std::int64_t k_blocks = of_heads    ? shared(x.k, rows, p.k)
                                : only_rest ? 0
                                            : set_tiles(x.k, rows, p.k);
  const std::int64_t v_blocks = shared(x.v, quantizer::kValueKeys, p.v);
  p.q_blocks = static_cast<i32>(q_blocks);
  p.k_blocks = static_cast<i32>(k_blocks);
  p.v_blocks = static_cast<i32>(v_blocks);
  launch.blocks = round_up<std::int64_t>(q_blocks + k_blocks + v_blocks, launch.cluster);
}

}  // namespace octavo
