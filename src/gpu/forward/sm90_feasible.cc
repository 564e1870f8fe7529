// SPDX-License-Identifier: Apache-2.0
// One error message for each rule. The rules about shapes repeat the static_asserts of device/sm90
// before a compiler is started.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_fields.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

template <class Enum>
bool is_named(Enum value) {
  const int index = static_cast<int>(value);
  return index >= 0 && index < static_cast<int>(EnumText<Enum>::kNames.size());
}
template <class Enum>
Status wrong_name(std::string_view field, Enum value, std::string_view supported) {
  const int index = static_cast<int>(value);
  return invalid(fmt::format("config.{}", field),
                 is_named(value)
                     ? std::string(EnumText<Enum>::kNames.at(static_cast<std::size_t>(index)))
                     : fmt::format("{}", index),
                 supported);
}
template <class Enum>
Status check_name(std::string_view field, Enum value) {
  if (is_named(value)) return {};
  return wrong_name(field, value, fmt::format("{}", fmt::join(EnumText<Enum>::kNames, ", ")));
}

bool is_16bit(Element element) { return element == Element::f16 || element == Element::bf16; }

Status check_elements(const Sm90ForwardConfig& c) {
  if (c.element < Element::f16 || c.element > Element::int8)
    return wrong_name("element", c.element, "f16, bf16, e4m3, e5m2, int8");
  const bool other_v =
      sm90::is_8bit_qk(c) && (is_16bit(c.v_element) || (is_fp8(c.element) && is_fp8(c.v_element)));
  if (c.v_element != c.element && !other_v)
    return wrong_name("v_element", c.v_element,
                      is_fp8(c.element)            ? "f16, bf16, e4m3, e5m2 with FP8 Q and K"
                      : c.element == Element::int8 ? "f16, bf16, int8 with INT8 Q and K"
                                                   : "the same as element with 16-bit Q and K");
  const Element out = c.output.element;
  if (out < Element::f32 || out > Element::int8)
    return wrong_name("output.element", out, "f32, f16, bf16, e4m3, e5m2, int8");
  OCTAVO_RETURN_IF_ERROR(check_name("k_scales", c.k_scales));
  OCTAVO_RETURN_IF_ERROR(check_name("schedule", c.schedule));
  return check_name("scores", c.scores);
}

// Checks the fields that must have certain values with more than 256 columns of Q and K, which are
// loaded in slices, or of V and O, which have two tiles.
Status check_wide(const Sm90ForwardConfig& c) {
  const int widest = std::max(c.head_dim, sm90::all_v_columns(c));
  if (widest <= sm90::kMaxTileColumns) return {};
  const std::string_view field = widest == c.head_dim ? "head_dim" : "head_dim_v";
  if (sm90::is_8bit_qk(c)) return wrong_field(field, widest, "up to 256 with 8-bit Q and K");
  if (sm90::is_split_kv(c)) return wrong_field(field, widest, "up to 256 with row_groups");
  if (c.modifiers.block_mask != 0) return wrong_field(field, widest, "up to 256 with a block mask");
  if (sm90::k_slices(c) > 1 && c.schedule != Schedule::qk_first)
    return wrong_name("schedule", c.schedule, "qk_first with head_dim above 256");
  return {};
}

Status check_tile(const Sm90ForwardConfig& c) {
  const auto is_known = [](int columns) {
    return std::find(kSm90HeadDims.begin(), kSm90HeadDims.end(), columns) != kSm90HeadDims.end();
  };
  const std::string known = fmt::format("{}", fmt::join(kSm90HeadDims, ", "));
  if (!is_known(c.head_dim)) return wrong_field("head_dim", c.head_dim, known);
  if (c.head_dim_v != 0 && (!is_known(c.head_dim_v) || c.head_dim_v == c.head_dim))
    return wrong_field("head_dim_v", c.head_dim_v, known + " other than head_dim, 0 for head_dim");
  OCTAVO_RETURN_IF_ERROR(check_wide(c));
  if (c.head_dim_v != 0 && sm90::is_8bit_qk(c))
    return wrong_field("head_dim_v", c.head_dim_v, "0 with 8-bit Q and K");
  if ((sm90::is_8bit_pv(c) ? c.pv_columns : sm90::v_columns(c)) + sm90::ones_columns(c) > 256)
    return invalid("config.sum_rounded_p", "true", "false with 256 columns, the limit of wgmma");
  if (c.warpgroups < 1 || c.warpgroups > 4)
    return wrong_field("warpgroups", c.warpgroups, "1 to 4");
  const int step = sm90::is_8bit_pv(c) ? 32 : 16;
  if (c.block_n < step || c.block_n > 256 || c.block_n % step != 0)
    return wrong_field("block_n", c.block_n, fmt::format("multiples of {} up to 256", step));
  return {};
}

// With 16-bit V, P V is one product, and P is computed from FP32 scores.
Status check_16bit_pv(const Sm90ForwardConfig& c) {
  if (c.pv_columns != 0) return wrong_field("pv_columns", c.pv_columns, "0 with 16-bit V");
  if (c.pv_buffers != 1) return wrong_field("pv_buffers", c.pv_buffers, "1 with 16-bit V");
  if (c.scores != ScoreType::f32) return wrong_name("scores", c.scores, "f32 with 16-bit V");
  return {};
}

// Rejects mixed configurations that spill because scales need registers in addition to 16-bit P and
// O. With block_n 256 only head_dim 64 does not spill. INT8 scores are converted to FP32 all at
// once: they spill with four warpgroups, with three and 128 keys if Q K^T comes first, and with K
// scales if block_n is not a multiple of 64.
Status check_mixed(const Sm90ForwardConfig& c) {
  if (c.block_n > 128 && c.head_dim > 64)
    return wrong_field("block_n", c.block_n,
                       "up to 128 with 8-bit Q and K, 16-bit V and more than 64 columns");
  const bool int8 = c.element == Element::int8;
  if (int8 && c.warpgroups == 4)
    return wrong_field("warpgroups", c.warpgroups, "1 to 3 with INT8 Q and K and 16-bit V");
  if (int8 && sm90::scaled_keys(c) > 0 && c.block_n % sm90::kScaledKeys != 0)
    return wrong_field("block_n", c.block_n,
                       "multiples of 64 with INT8 Q and K, 16-bit V and k_scales block or row");
  if (int8 && c.warpgroups == 3 && c.block_n > 96 && c.schedule == Schedule::qk_first)
    return wrong_name("schedule", c.schedule,
                      "pv_first, pv_first_queued with INT8 Q and K, 16-bit V, three warpgroups and "
                      "more than 96 keys");
  return check_16bit_pv(c);
}

Status check_8bit_pv(const Sm90ForwardConfig& c) {
  if (c.pv_columns < 16 || c.pv_columns % 16 != 0 || c.head_dim % c.pv_columns != 0)
    return wrong_field("pv_columns", c.pv_columns,
                       fmt::format("multiples of 16 that divide {} columns", c.head_dim));
  const int products = c.head_dim / c.pv_columns * (c.block_n / sm90::promoted_keys(c));
  if (c.pv_buffers != 1 && (c.pv_buffers != 2 || products % 2 != 0))
    return wrong_field("pv_buffers", c.pv_buffers,
                       fmt::format("{} with {} products of P V in a block",
                                   products % 2 == 0 ? "1, 2" : "1", products));
  if (sm90::promoted_keys(c) < c.block_n &&
      (c.block_n % 128 != 0 || c.pv_columns != c.head_dim || c.pv_buffers != 2))
    return wrong_field("block_n", c.block_n,
                       "up to 160 in FP8, or 256 with pv_columns=head_dim and pv_buffers=2");
  if (sm90::has_f16_scores(c) && (c.element == Element::int8 || c.k_scales != KScales::head))
    return wrong_name("scores", c.scores, "f32 with int8, and with k_scales block or row");
  if (c.scores == ScoreType::f16_fast && !c.sum_rounded_p)
    return wrong_name("scores", c.scores, "f32, f16 without sum_rounded_p");
  return {};
}

Status check_numerics(const Sm90ForwardConfig& c) {
  if (!sm90::is_8bit_qk(c)) {
    if (c.k_scales != KScales::head)
      return wrong_name("k_scales", c.k_scales, "head with 16-bit Q and K");
    return check_16bit_pv(c);
  }
  OCTAVO_RETURN_IF_ERROR(sm90::is_8bit_pv(c) ? check_8bit_pv(c) : check_mixed(c));
  return {};
}

// A tile's rows are a block of the mask.
Status check_block_mask(const Sm90ForwardConfig& c) {
  const int size = c.modifiers.block_mask;
  if (size == 0) return {};
  if (size != 64 && size != 128)
    return wrong_field("modifiers.block_mask", size, "64, 128, 0 for none");
  if (c.modifiers.padded || c.modifiers.score_tiles || sm90::is_split_kv(c))
    return wrong_field("modifiers.block_mask", size, "0 with padded, score_tiles or row_groups");
  if (sm90::block_m(c) != size)
    return wrong_field("warpgroups", c.warpgroups,
                       fmt::format("{} with blocks of {} rows", size / sm90::kRows, size));
  if (c.block_n != 32 && c.block_n != 64 && c.block_n != 128)
    return wrong_field("block_n", c.block_n, "32, 64, 128 with a block mask");
  if (size % c.block_n != 0 && !sm90::is_8bit_pv(c))
    return wrong_field("block_n", c.block_n, fmt::format("divisors of {}, a block of keys", size));
  return {};
}

// Modifiers of the scores and padding: scores are FP32, and P needs no scale.
Status check_modifiers(const Sm90ForwardConfig& c) {
  const ModifierConfig& m = c.modifiers;
  if (m.bias_element > Element::bf16)
    return wrong_name("modifiers.bias_element", m.bias_element, "f16, bf16, f32");
  if (m.score_tiles &&
      (sm90::is_split_kv(c) || (!m.bias && !m.mask) || c.block_n > sm90::kMaskBits))
    return invalid("config.modifiers.score_tiles", "true",
                   "false unless there is a bias or a mask, no row_groups, and up to 128 keys");
  OCTAVO_RETURN_IF_ERROR(check_block_mask(c));
  if (!sm90::is_8bit_qk(c)) return {};
  Status status;
  visit_fields(m, [&](std::string_view field, auto value) {
    if constexpr (std::is_same_v<decltype(value), bool>) {
      if (value && status.ok())
        status =
            invalid(fmt::format("config.modifiers.{}", field), "true", "false with 8-bit Q and K");
    }
  });
  return status;
}

Status check_split_kv(const Sm90ForwardConfig& c) {
  if (c.warpgroups % c.row_groups != 0)
    return wrong_field("row_groups", c.row_groups, "0, divisors of warpgroups");
  if (c.cluster != 1 && c.cluster != 2 && c.cluster != 4 && c.cluster != 8)
    return wrong_field("cluster", c.cluster, "1, 2, 4, 8");
  if (c.pack_gqa && c.row_groups == 3)
    return wrong_field("row_groups", c.row_groups, "1, 2, 4 with pack_gqa");
  if (c.schedule == Schedule::in_turn && sm90::is_8bit_pv(c))
    return wrong_name("schedule", c.schedule, "qk_first, pv_first, pv_first_queued with 8-bit V");
  if (c.schedule == Schedule::pv_first_queued && !sm90::is_8bit_pv(c))
    return wrong_name("schedule", c.schedule,
                      "qk_first, pv_first, in_turn with row_groups and 16-bit V");
  const int splits = sm90::kv_splits(c);
  if (sm90::v_columns(c) % (8 * splits) != 0)
    return wrong_field(
        "cluster * config.warpgroups / config.row_groups", splits,
        fmt::format("numbers that divide {} columns into eights", sm90::v_columns(c)));
  return {};
}

Status check_pipeline(const Sm90ForwardConfig& c) {
  if (c.stages < 1 || c.stages > 8) return wrong_field("stages", c.stages, "1 to 8");
  if (c.min_ctas < 1 || c.min_ctas > 4) return wrong_field("min_ctas", c.min_ctas, "1 to 4");
  if (c.row_groups < 0) return wrong_field("row_groups", c.row_groups, "0, divisors of warpgroups");
  if (sm90::is_split_kv(c)) return check_split_kv(c);
  const auto unless_split = [](std::string_view value) {
    return fmt::format("{} unless row_groups is above 0", value);
  };
  // With a block mask a tile may be the rows of one warpgroup, with other CTAs on the SM.
  const bool shares_sm = sm90::has_block_mask(c) && c.warpgroups == 1;
  if (c.warpgroups < 2 && !shares_sm)
    return wrong_field("warpgroups", c.warpgroups, unless_split("2 to 4"));
  if (c.min_ctas != 1 && !shares_sm) return wrong_field("min_ctas", c.min_ctas, unless_split("1"));
  if (c.cluster != 1) return wrong_field("cluster", c.cluster, unless_split("1"));
  if (c.pack_gqa) return invalid("config.pack_gqa", "true", unless_split("false"));
  if (c.schedule == Schedule::in_turn)
    return wrong_name("schedule", c.schedule, unless_split("qk_first, pv_first, pv_first_queued"));
  return {};
}

}  // namespace

Status feasible(const Sm90ForwardConfig& c, int arch, int smem_bytes) {
  if (arch != 90)
    return invalid("config", fmt::format("of sm90_forward on sm_{}", arch), "sm_90 alone");
  OCTAVO_RETURN_IF_ERROR(check_elements(c));
  OCTAVO_RETURN_IF_ERROR(check_tile(c));
  OCTAVO_RETURN_IF_ERROR(check_numerics(c));
  OCTAVO_RETURN_IF_ERROR(check_modifiers(c));
  OCTAVO_RETURN_IF_ERROR(check_pipeline(c));
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
