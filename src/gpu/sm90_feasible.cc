// The rules of sm90_feasible.h, one sentence each. Those of shape are the static_asserts of
// device/sm90, said before a compiler is started.
#include "gpu/sm90_feasible.h"

#include <fmt/format.h>

#include "gpu/config_error.h"

namespace octavo {
namespace {

Status check_shape(const Sm90Forward& c) {
  if (c.element < Element::f16 || c.element > Element::int8)
    return wrong_field("element", static_cast<int>(c.element), "f16, bf16, e4m3, e5m2, int8");
  if (c.mixed_v < MixedV::none || c.mixed_v > MixedV::e5m2)
    return wrong_field("mixed_v", static_cast<int>(c.mixed_v), "none, f16, bf16, e4m3, e5m2");
  if (c.out < Element::f32 || c.out > Element::int8)
    return wrong_field("out", static_cast<int>(c.out), "f32, f16, bf16, e4m3, e5m2, int8");
  if (sm90::codes_out(c) && c.own_o)
    return invalid("config.own_o", "true", "false with an 8-bit output");
  constexpr int kHeadDims[] = {64, 96, 128, 192, 256};
  bool known = false;
  for (const int head_dim : kHeadDims) known = known || c.head_dim == head_dim;
  if (!known) return wrong_field("head_dim", c.head_dim, "64, 96, 128, 192, 256");
  if ((sm90::codes_pv(c) ? c.fold_columns : c.head_dim) + sm90::ones_columns(c) > 256)
    return invalid("config.ones", "true", "false with 256 columns: wgmma has no more");
  if (c.warpgroups < 1 || c.warpgroups > 4)
    return wrong_field("warpgroups", c.warpgroups, "1 to 4");
  const int step = sm90::codes_pv(c) ? 32 : 16;
  if (c.block_n < step || c.block_n > 256 || c.block_n % step != 0)
    return wrong_field("block_n", c.block_n, fmt::format("multiples of {} up to 256", step));
  return {};
}

// What P V of 16 bits has not.
Status check_16bit_pv(const Sm90Forward& c) {
  const char* const where = sm90::is_mixed(c) ? "mixed_v" : "16-bit elements";
  if (c.fold_columns != 0)
    return wrong_field("fold_columns", c.fold_columns, fmt::format("0 with {}", where));
  if (c.fold_buffers != 1)
    return wrong_field("fold_buffers", c.fold_buffers, fmt::format("1 with {}", where));
  if (c.f16_scores)
    return invalid("config.f16_scores", "true", fmt::format("false with {}", where));
  if (c.code_exp) return invalid("config.code_exp", "true", "false unless f16_scores");
  return {};
}

// Where scales beside P and O of 16 bits make the compiler spill: with 256 keys in all but the
// narrowest tiles. Integers become floats all at once: they do where four warpgroups share the
// registers, and beside the scales of keys in blocks of other sizes than multiples of 64.
Status check_mixed(const Sm90Forward& c) {
  if (c.block_n > 128 && c.head_dim > 64)
    return wrong_field("block_n", c.block_n, "up to 128 with mixed_v and more than 64 columns");
  const bool integers = c.element == Element::int8;
  if (integers && c.warpgroups == 4)
    return wrong_field("warpgroups", c.warpgroups, "1 to 3 with int8 and mixed_v");
  if (integers && sm90::scaled_rows(c) > 0 && c.block_n % sm90::kScaledRows != 0)
    return wrong_field("block_n", c.block_n,
                       "multiples of 64 with int8, mixed_v and scales of keys");
  return check_16bit_pv(c);
}

Status check_8bit_pv(const Sm90Forward& c) {
  const bool other_v = c.mixed_v != MixedV::none;
  if (other_v && (c.element == Element::int8 || sm90::v_element(c) == c.element))
    return wrong_field("mixed_v", static_cast<int>(c.mixed_v),
                       "none, f16, bf16; e5m2 with e4m3, and e4m3 with e5m2");
  if (c.fold_columns < 16 || c.fold_columns % 16 != 0 || c.head_dim % c.fold_columns != 0)
    return wrong_field("fold_columns", c.fold_columns,
                       fmt::format("multiples of 16 that divide {} columns", c.head_dim));
  const int parts = c.head_dim / c.fold_columns * (c.block_n / sm90::folded_keys(c));
  if (c.fold_buffers != 1 && (c.fold_buffers != 2 || parts % 2 != 0))
    return wrong_field("fold_buffers", c.fold_buffers,
                       fmt::format("{} with {} parts of O", parts % 2 == 0 ? "1, 2" : "1", parts));
  if (sm90::folded_keys(c) < c.block_n &&
      (c.block_n % 128 != 0 || c.fold_columns != c.head_dim || c.fold_buffers != 2))
    return wrong_field("block_n", c.block_n,
                       "up to 160 in FP8, or 256 with all columns folded in two buffers");
  if (c.f16_scores && (c.element == Element::int8 || c.k_row_scales || c.k_block_scales))
    return invalid("config.f16_scores", "true",
                   "false with int8, and with k_row_scales or k_block_scales");
  if (c.code_exp && !(c.f16_scores && c.ones))
    return invalid("config.code_exp", "true", "false unless f16_scores and ones");
  return {};
}

Status check_codes(const Sm90Forward& c) {
  if (!sm90::codes_qk(c)) {
    if (c.mixed_v != MixedV::none)
      return wrong_field("mixed_v", static_cast<int>(c.mixed_v), "none with 16-bit elements");
    if (c.k_row_scales) return invalid("config.k_row_scales", "true", "false with 16-bit elements");
    if (c.k_block_scales)
      return invalid("config.k_block_scales", "true", "false with 16-bit elements");
    return check_16bit_pv(c);
  }
  OCTAVO_RETURN_IF_ERROR(sm90::codes_pv(c) ? check_8bit_pv(c) : check_mixed(c));
  if (c.k_row_scales && c.k_block_scales)
    return invalid("config.k_block_scales", "true", "false with k_row_scales");
  if (c.own_o) return invalid("config.own_o", "true", "false with 8-bit elements");
  return {};
}

Status check_switches(const Sm90Forward& c) {
  if (c.stages < 1 || c.stages > 8) return wrong_field("stages", c.stages, "1 to 8");
  if (c.ctas < 1 || c.ctas > 4) return wrong_field("ctas", c.ctas, "1 to 4");
  if (c.ctas > 1 && !c.split_keys) return wrong_field("ctas", c.ctas, "1 unless split_keys");
  // P may run 2^rescale_log2 above 1, and fp16 ends at 2^16.
  if (c.rescale_log2 < 0 || c.rescale_log2 > 15)
    return wrong_field("rescale_log2", c.rescale_log2, "0 to 15");
  const bool one_by_one = c.split_keys && !sm90::codes_pv(c);
  if (c.scores_behind && (c.overlap || one_by_one))
    return invalid("config.scores_behind", "true",
                   c.overlap ? "false with overlap" : "false with split_keys and V of 16 bits");
  if (c.amax && c.early_start)
    return invalid("config.early_start", "true", "false with amax, which is cleared before");
  if (!c.split_keys) {
    if (c.cluster != 1) return wrong_field("cluster", c.cluster, "1 unless split_keys");
    if (c.row_groups != 1) return wrong_field("row_groups", c.row_groups, "1 unless split_keys");
    if (c.pack_heads) return invalid("config.pack_heads", "true", "false unless split_keys");
    return {};
  }
  if (c.row_groups < 1 || c.warpgroups % c.row_groups != 0)
    return wrong_field("row_groups", c.row_groups, "divisors of warpgroups");
  if (c.cluster != 1 && c.cluster != 2 && c.cluster != 4 && c.cluster != 8)
    return wrong_field("cluster", c.cluster, "1, 2, 4, 8");
  if (c.pack_heads && c.row_groups == 3)
    return wrong_field("row_groups", c.row_groups, "1, 2, 4 with pack_heads");
  if (c.persistent) return invalid("config.persistent", "true", "false with split_keys");
  const int parts = sm90::key_parts(c);
  if (c.head_dim % (8 * parts) != 0)
    return wrong_field("cluster * config.warpgroups / config.row_groups", parts,
                       fmt::format("numbers that divide {} columns into eights", c.head_dim));
  return {};
}

}  // namespace

Status feasible(const Sm90Forward& c, int arch, int smem_bytes) {
  if (c.arch != 90) return wrong_field("arch", c.arch, "90");
  if (arch != 90)
    return wrong_field("arch", c.arch, fmt::format("none on sm_{}: sm_90 alone", arch));
  OCTAVO_RETURN_IF_ERROR(check_shape(c));
  OCTAVO_RETURN_IF_ERROR(check_codes(c));
  OCTAVO_RETURN_IF_ERROR(check_switches(c));
  if (sm90::registers_held(c) > sm90::register_budget(c))
    return invalid(
        "config", fmt::format("{} registers for scores, P and O", sm90::registers_held(c)),
        fmt::format("up to {} with {} warpgroups", sm90::register_budget(c), c.warpgroups));
  if (sm90::smem_bytes(c) > smem_bytes)
    return invalid("config", fmt::format("{} bytes of shared memory", sm90::smem_bytes(c)),
                   fmt::format("up to {} on sm_{}", smem_bytes, arch));
  return {};
}

}  // namespace octavo
