// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "base/error.h"
#include "config/shared_parts.h"
#include "config/sm80_shipped.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/kernel_source.h"
#include "numeric/formats.h"

namespace octavo {
namespace {

int native_head_dim(std::int64_t head_dim) {
  for (const int native : {64, 96, 128, 192, 256, 384, 512})
    if (head_dim <= native) return native;
  return 0;
}

// Tiles by head_dim for grids that fill the chip. With 32 rows per warp each fragment of K and V is
// read half as often as with 16. O and scores then fit into the registers without spilling up to
// head_dim 128 for 16-bit elements and 64 for sim8; the others have 16 rows per warp. Modifiers and
// padding need registers too: with a bias or a mask tensor no 32 rows fit, and with the others
// those of head_dim 64 with half the keys. Sinks need none.
void set_large_tiles(Sm80ForwardConfig& c) {
  const bool is_16bit = element_bytes(c.element) == 2;
  const bool modified = changes_scores(c.modifiers) || c.modifiers.mask || c.modifiers.padded ||
                        c.modifiers.block_mask != 0;
  const int most = is_16bit                                  ? (modified ? 64 : 128)
                   : c.element == Element::sim8 && !modified ? 64
                                                             : 0;
  // O takes the registers, and the wider of Q and V shared memory.
  const int v = sm80::v_columns(c), widest = std::max(c.head_dim, v);
  // 32 rows with 128 columns of O spill unless Q has as many.
  const bool fits = v <= most && (v < 128 || v == c.head_dim);
  const bool wide_warps = fits && !c.modifiers.bias && !c.modifiers.mask;
  c.block_m = v <= 128 ? 128 : 64;
  c.warps_m = c.block_m / (wide_warps ? 32 : 16);
  c.warps_n = 1;
  c.block_n = is_16bit && widest <= 64 && !modified ? 128 : widest <= 192 ? 64 : 32;
  c.q_in_registers = !wide_warps && widest <= 64;
  if (is_16bit && v == 128 && wide_warps) c.k_tiles = 2;
}

// For few rows: smaller tiles occupy all SMs, and the warps of a CTA split the keys.
void set_small_tiles(Sm80ForwardConfig& c, int block_m) {
  c.block_m = block_m;
  c.warps_m = block_m / 16;
  c.warps_n = 8 / c.warps_m;
  const int widest = std::max(c.head_dim, sm80::v_columns(c));
  c.block_n = widest <= 128 ? 64 : 32;
  c.q_in_registers = widest <= 128;
}

// Sets the tiles for more than 256 columns of Q and K or of V: 16 rows a warp, as registers hold no
// more, and the most stages, keys and rows that shared memory has room for. With a single stage V
// is waited for apart from K, so that V arrives under Q K^T.
void set_wide_tiles(Sm80ForwardConfig& c, const GpuInfo& gpu) {
  const auto fits = [&] { return feasible(c, gpu.arch, gpu.smem_per_block_optin).ok(); };
  c.warps_n = 1;
  c.q_in_registers = false;
  for (c.stages = 2; c.stages > 0; --c.stages)
    for (c.block_n = 32; c.block_n >= 16; c.block_n /= 2)
      for (c.block_m = c.stages > 1 ? 128 : 64; c.block_m >= 64; c.block_m /= 2) {
        c.warps_m = c.block_m / 16;
        c.v_barrier = c.stages == 1;
        if (fits()) return;
      }
}

// A tile's rows and the keys of a step lie in one block of the mask.
void fit_block_mask(Sm80ForwardConfig& c) {
  const int size = c.modifiers.block_mask;
  if (size == 0) return;
  const int rows_of_warp = c.block_m / c.warps_m;
  c.block_m = std::min(c.block_m, size);
  c.warps_m = c.block_m / rows_of_warp;
  c.block_n = std::min(c.block_n, size);
  while (sm80::step_keys(c) > size) c.warps_n /= 2;
}

}  // namespace

Status sm80_forward_supports(const Resolved& resolved) {
  const Problem& problem = resolved.run_problem;
  const Problem& p = resolved.kernel_problem;
  const Precision precision = problem.options.precision;
  constexpr const char* kWhere =
      "if an sm_90 kernel supports the problem and all addresses and strides are multiples of 16 "
      "bytes";
  if (is_mixed(p) && p.q != problem.q)
    return unsupported("precision", fmt::format("{} for {}", name(precision), describe(problem)),
                       fmt::format("native, fp16, bf16, fp8, fp8_fast, int8, sim8 on a GPU; "
                                   "fp8_mixed, int8_mixed {}",
                                   kWhere));
  if (is_mixed(p))
    return unsupported(
        "dtypes of q, k, v", fmt::format("{}, {}, {}", name(p.q), name(p.k), name(p.v)),
        fmt::format("one dtype for all three on a GPU; 8-bit q and k with an f16 or bf16 v {}",
                    kWhere));
  if (is_fp8_of_both_kinds(p))
    return unsupported("dtypes of q, k, v",
                       fmt::format("{}, {}, {}", name(p.q), name(p.k), name(p.v)),
                       fmt::format("one dtype for all three on a GPU; e4m3 with e5m2 {}", kWhere));
  if (problem.v_layout == VLayout::rows) return {};
  return unsupported("v_layout", fmt::format("transposed for {}", describe(problem)),
                     "rows; transposed with e4m3, e5m2 or int8 if an sm_90 kernel supports the "
                     "problem and all addresses and strides are multiples of 16 bytes");
}

ChosenSm80Forward choose_sm80_forward(const Resolved& resolved, const GpuInfo& gpu,
                                      int load_bytes) {
  const Problem& p = resolved.kernel_problem;
  ChosenSm80Forward chosen;
  Sm80ForwardConfig& c = chosen.config;
  c.arch = code_for(gpu.arch).arch;
  c.element = element_of(p.q);
  c.output = {.element = element_of(p.out), .amax = p.out_amax};
  c.modifiers = modifiers_of(p);
  c.head_dim = native_head_dim(p.head_dim);
  if (p.head_dim_v != p.head_dim) c.head_dim_v = native_head_dim(p.head_dim_v);
  const int columns = static_cast<int>(std::gcd(p.head_dim, p.head_dim_v));
  c.load_bytes = std::clamp(std::gcd(load_bytes, columns * element_bytes(c.element)),
                            element_bytes(c.element), 16);
  c.k_row_scales =
      is_8bit(p.k) && (p.k_scales == Granularity::row || p.k_scales == Granularity::block);

  // With few keys the rounding of P to E4M3 averages out least (3.8e-3 rms at 128 standard normal
  // keys), and a second term costs least.
  constexpr std::int64_t kFewKeys = 256;
  const bool fp8 = c.element == Element::e4m3 || c.element == Element::e5m2;
  if (fp8 && p.seqlen_kv < kFewKeys) c.p_terms = 2;

  // With batch_invariant the choice must not depend on batch and heads.
  const std::int64_t heads = p.options.batch_invariant ? 1 : p.batch * p.heads_q;
  const auto tiles = [&](int block_m) { return heads * div_up<std::int64_t>(p.seqlen_q, block_m); };
  const bool small = !p.options.batch_invariant && tiles(64) <= gpu.sms;
  if (std::max(c.head_dim, sm80::all_v_columns(c)) > sm80::kMaxTileColumns) {
    set_wide_tiles(c, gpu);
    chosen.reason =
        fmt::format("tiles of {} rows{}", c.block_m,
                    sm80::column_tiles(c) > 1 ? ", for half of the columns of V each" : "");
  } else if (small) {
    set_small_tiles(c, tiles(32) <= gpu.sms ? 32 : 64);
    chosen.reason = fmt::format(
        "{} rows in {} heads are few for {} SMs: tiles of {} rows, {} warps split the keys",
        p.seqlen_q, heads, gpu.sms, c.block_m, c.warps_n);
  } else {
    set_large_tiles(c);
    chosen.reason = fmt::format("tiles of {} rows fill the GPU", c.block_m);
  }
  fit_block_mask(c);
  sm80::fit_registers(c);
  // On chips with little shared memory take fewer warps along the keys, then fewer pipeline stages,
  // then fewer keys for each warp.
  while (!feasible(c, gpu.arch, gpu.smem_per_block_optin).ok() && c.warps_n > 1) c.warps_n /= 2;
  while (!feasible(c, gpu.arch, gpu.smem_per_block_optin).ok() && c.stages > 1) --c.stages;
  while (!feasible(c, gpu.arch, gpu.smem_per_block_optin).ok() && c.block_n > 32) c.block_n /= 2;
  if (c.load_bytes < 16)
    chosen.reason += fmt::format("; narrow loads, as rows are only {}-byte aligned", c.load_bytes);
  return chosen;
}

}  // namespace octavo
