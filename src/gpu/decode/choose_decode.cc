// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "gpu/decode/decode.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/tile_order.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"

namespace octavo {
namespace {

std::int64_t query_rows(const Problem& p) { return p.seqlen_q * (p.heads_q / p.heads_kv); }

int tile_columns(const Problem& p) {
  const bool is_narrow = is_8bit(p.k) || p.k == DType::int4;
  for (const int columns : {64, 96, 128, 192, 256})
    if (p.head_dim <= columns && !(is_narrow && columns == 96)) return columns;
  return 0;
}

// The shared memory of each of `ctas` CTAs on an SM. The SM has one kilobyte more than a CTA can
// use, and reserves one kilobyte for each CTA.
int smem_per_cta(const GpuInfo& gpu, int ctas) {
  return std::min((gpu.smem_per_block_optin + 1024) / ctas - 1024, gpu.smem_per_block_optin);
}

// Sets two stages, and the smallest blocks of keys whose stage can hold O of the rows at the end of
// a work tile. Smaller blocks do not pay if a row has few bytes.
void set_tiles(DecodeConfig& c, int rows, int warps) {
  c.block_m = rows;
  const int bytes = decode::row_bytes(c);
  const int least = bytes > 128 ? 16 : bytes > 64 ? 32 : 64;
  c.block_n = std::max(least, 2 * rows * c.head_dim / bytes);
  c.warps = warps;
  c.stages = 2;
  c.min_ctas = 1;
}

int stages_that_fit(const DecodeConfig& c, const GpuInfo& gpu) {
  const int others = decode::smem_bytes(c) - c.stages * decode::stage_bytes(c);
  return (smem_per_cta(gpu, c.min_ctas) - others) / decode::stage_bytes(c);
}

// The rows of a work tile. Up to eight rows are the columns of mma tiles, which leaves no half of a
// tile empty. With 32 rows K and V are read half as often as with 16, and up to 128 columns 32 rows
// fit into the registers. With int4 they would need blocks of 128 keys, whose scores do not fit.
int best_rows(const DecodeConfig& c, std::int64_t query_rows) {
  if (query_rows <= 8) return 8;
  return query_rows > 16 && c.head_dim <= 128 && !decode::is_int4_kv(c) ? 32 : 16;
}

// How many CTAs share an SM: several with three stages if possible, else with two. Up to 128
// columns, eight rows need at most 168 registers per thread, so that three CTAs of four warps fit.
int ctas_that_fit(DecodeConfig c, const GpuInfo& gpu) {
  const int most = c.block_m > 8 || c.head_dim > 128 ? 2 : 3;
  for (const int stages : {3, 2})
    for (c.min_ctas = most; c.min_ctas > 1; --c.min_ctas)
      if (stages_that_fit(c, gpu) >= stages) return c.min_ctas;
  return 1;
}

// Whether each work tile has a cluster, which needs no second grid. The sequences must be equally
// long, and clusters of at most eight CTAs must fill half of the SMs. That suffices to read a cache
// of 16 bits, but not to convert an 8-bit cache of many keys.
bool suits_clusters(const Problem& p, const DecodeConfig& c, const GpuInfo& gpu) {
  if (c.arch < 90 || c.batch_invariant || decode::is_int4_kv(c)) return false;
  if (p.batch > 1 && (p.paged || p.padded)) return false;
  if (p.seqlen_kv > (decode::is_8bit_kv(c) ? 8192 : 65536)) return false;
  const std::int64_t row_tiles = (query_rows(p) + c.block_m - 1) / c.block_m;
  const std::int64_t tiles = p.batch * p.heads_kv * row_tiles;
  const std::int64_t sms = sms_of_grid(gpu.sms, p.options);
  return tiles * decode::kMostCtas >= sms / 2 - 2 && tiles * 2 <= sms;
}

}  // namespace

bool decode_supports(const Problem& p, const GpuInfo& gpu) {
  const bool is_16bit_q = p.q == DType::f16 || p.q == DType::bf16;
  const bool fp8 = p.k == DType::e4m3 || p.k == DType::e5m2;
  const bool int4 = p.k == DType::int4;
  const bool cache = p.k == p.q || (fp8 && gpu.arch >= 89) || p.k == DType::int8 || int4;
  const bool out = p.out == DType::f16 || p.out == DType::bf16 || p.out == DType::f32;
  if (!is_16bit_q || !cache || p.v != p.k || !out || p.out_amax) return false;
  if (is_8bit(p.k) && (p.k_scales == Granularity::channel || p.v_layout != VLayout::rows))
    return false;
  if (p.varlen || p.bias || p.mask || p.block_mask != 0 || p.heads_kv == 0) return false;
  if (!p.paged && (p.seqlen_kv == 0 || p.seqlen_q == 0)) return false;
  if (p.options.precision != Precision::native) return false;
  // For dense tensors the choice between kernels depends on batch and heads, so it cannot be
  // batch-invariant.
  if (p.options.batch_invariant && !p.paged && !p.draft_tree) return false;
  const std::int64_t chunk = int4 ? 32 : 16 / static_cast<std::int64_t>(size_bytes(p.k));
  if (p.head_dim % chunk != 0 || p.head_dim > 256 || p.head_dim_v != p.head_dim) return false;
  // Rows, and tiles of at least 16 keys, are counted in 32 bits.
  constexpr std::int64_t kMost = INT32_MAX / 2;
  const std::int64_t tiles = div_up<std::int64_t>(std::max<std::int64_t>(p.seqlen_kv, 1), 16);
  const std::int64_t counted =
      p.options.batch_invariant ? std::max<std::int64_t>(tiles, 16 * decode::kMostParts) : tiles;
  return p.seqlen_q <= kMost && p.seqlen_kv <= kMost && query_rows(p) <= kMost &&
         p.batch * p.heads_kv * div_up<std::int64_t>(query_rows(p), 16) <= INT32_MAX / counted;
}

bool decode_is_best(const Problem& p, const GpuInfo& gpu) {
  if (p.seqlen_q > 16 || query_rows(p) > 64 || p.seqlen_kv < 256) return false;
  // The forward kernels convert an 8-bit cache in a separate pass, and those of older chips read K
  // and V once for every query head.
  if (gpu.arch != 90 || is_8bit(p.k)) return true;
  // The Hopper forward kernel divides a head's keys among the CTAs of a cluster. With many heads or
  // few keys that fills the chip.
  if (p.head_dim > 128) return p.seqlen_kv >= 1024;
  return p.seqlen_kv >= 2048 && p.batch * p.heads_kv <= gpu.sms / 8;
}

bool decode_can_address(const Arguments& a) {
  const auto has_32bit_rows = [](const ConstTensor& t) {
    return t.stride[2] >= 0 &&
           t.stride[2] <= UINT32_MAX / static_cast<std::int64_t>(size_bytes(t.dtype));
  };
  return row_alignment(a) >= 16 && has_32bit_rows(a.k) && has_32bit_rows(a.v);
}

Status feasible(const DecodeConfig& c, const GpuInfo& gpu) {
  if (c.arch != 80 && c.arch != 89 && c.arch != 90)
    return wrong_field("arch", c.arch, "80, 89, 90");
  if (c.arch > gpu.arch)
    return wrong_field("arch", c.arch, fmt::format("up to {} on this chip", gpu.arch));
  if (c.element != Element::f16 && c.element != Element::bf16)
    return wrong_field("element", static_cast<int>(c.element), "f16, bf16");
  const bool int4 = decode::is_int4_kv(c);
  if (c.kv != c.element && c.kv != Element::e4m3 && c.kv != Element::e5m2 &&
      c.kv != Element::int8 && !int4)
    return wrong_field("kv", static_cast<int>(c.kv), "the element, e4m3, e5m2, int8, int4");
  if (int4 ? c.group != 32 && c.group != 64 : c.group != 0)
    return wrong_field("group", c.group, "32, 64 with int4, else 0");
  if (is_fp8(c.kv) && c.arch < 89)
    return wrong_field("kv", static_cast<int>(c.kv), "FP8 from arch=89 on");
  if (element_bytes(c.out) == 1)
    return wrong_field("out", static_cast<int>(c.out), "f16, bf16, f32");
  if (c.head_dim != 64 && c.head_dim != 96 && c.head_dim != 128 && c.head_dim != 192 &&
      c.head_dim != 256)
    return wrong_field("head_dim", c.head_dim, "64, 96, 128, 192, 256");
  if (c.block_m != 8 && c.block_m != 16 && c.block_m != 32)
    return wrong_field("block_m", c.block_m, "8, 16, 32");
  if (c.warps != 1 && c.warps != 2 && c.warps != 4 && c.warps != 8)
    return wrong_field("warps", c.warps, "1, 2, 4, 8");
  const int tiles = decode::is_8bit_kv(c) ? 2 * c.warps : c.warps;
  if (c.head_dim / 8 % tiles != 0)
    return wrong_field("warps", c.warps, "a divisor of the tiles of eight columns of O");
  if (int4 && (c.block_n % 32 != 0 || c.head_dim % 64 != 0))
    return wrong_field("block_n", c.block_n, "multiples of 32, and of 64 for head_dim, with int4");
  if (c.block_n < 16 || c.block_n > 128 || c.block_n % 16 != 0)
    return wrong_field("block_n", c.block_n, "multiples of 16 up to 128");
  const int row = decode::row_bytes(c);
  if ((row & (row - 1)) == 0 && decode::stage_bytes(c) % row != 0)
    return wrong_field("block_n", c.block_n, "so many keys that every stage is aligned to a row");
  if (decode::exchange_o_bytes(c) > 2 * decode::tile_bytes(c))
    return wrong_field("block_n", c.block_n, "as many keys as hold the O of a warp's rows");
  if (c.clusters && (c.arch < 90 || c.batch_invariant))
    return wrong_field("clusters", 1, "0 before arch=90 and with batch_invariant");
  if (c.stages < 2 || c.stages > 8) return wrong_field("stages", c.stages, "2 to 8");
  if (c.min_ctas < 1 || c.min_ctas > 4) return wrong_field("min_ctas", c.min_ctas, "1 to 4");
  if (decode::smem_bytes(c) > smem_per_cta(gpu, c.min_ctas))
    return wrong_field("stages", c.stages,
                       fmt::format("stages that fit into {} bytes", smem_per_cta(gpu, c.min_ctas)));
  return {};
}

namespace {

std::string reason_for(const DecodeConfig& c, const Problem& p, const GpuInfo& gpu) {
  if (c.clusters) return "few queries over many keys, which the CTAs of clusters divide";
  return fmt::format("few queries over many keys, which {} CTAs divide {}",
                     c.min_ctas * sms_of_grid(gpu.sms, p.options),
                     c.batch_invariant ? "by the length of each sequence" : "evenly");
}

}  // namespace

ChosenDecode choose_decode(const Problem& p, const GpuInfo& gpu) {
  DecodeConfig c;
  c.arch = code_for(gpu.arch).arch;
  c.element = element_of(p.q);
  c.kv = element_of(p.k);
  c.out = element_of(p.out);
  c.head_dim = tile_columns(p);
  c.group = static_cast<int>(p.kv_group);
  c.draft_tree = p.draft_tree;
  c.batch_invariant = p.options.batch_invariant;
  // One CTA of eight warps per SM leaves fewer partial results than several of four warps. Several
  // CTAs hide the conversion of an 8-bit cache better, which pays if there are enough work tiles.
  const bool int4 = p.k == DType::int4;
  const bool several_ctas =
      (is_8bit(p.k) || int4) && !c.batch_invariant && p.batch * p.heads_kv >= gpu.sms;
  for (const int rows : {best_rows(c, query_rows(p)), 16})
    for (const int warps : {8, 4, 2, 1}) {
      if (warps == 8 && several_ctas) continue;
      if (warps <= 2 && rows > 16) continue;
      set_tiles(c, rows, warps);
      c.clusters = suits_clusters(p, c, gpu);
      if (!feasible(c, gpu).ok()) continue;
      if (several_ctas) c.min_ctas = ctas_that_fit(c, gpu);
      c.stages = std::min(stages_that_fit(c, gpu), 3);
      return {c, reason_for(c, p, gpu)};
    }
  return {c, "no tiles fit into the shared memory"};
}

}  // namespace octavo
