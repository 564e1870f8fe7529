// SPDX-License-Identifier: Apache-2.0
// The configurations of the Hopper forward kernels that the emulator instantiates, and the part
// that instantiates each.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "config/sm90_shipped.h"
#include "emulator/kernels/sm90_forward.h"

namespace octavo::emulator {

// Whether two rows have the same code except for sizes. Schedules are only distinguished at
// head_dim 64; elsewhere, only whether Q K^T is queued behind P V.
constexpr bool have_one_form(const Sm90ForwardConfig& a, const Sm90ForwardConfig& b) {
  const bool queued_alike =
      (a.schedule == Schedule::pv_first_queued) == (b.schedule == Schedule::pv_first_queued);
  return a.element == b.element && a.head_dim == b.head_dim &&
         sm90::is_split_kv(a) == sm90::is_split_kv(b) && a.scores == b.scores &&
         a.pv_buffers == b.pv_buffers && queued_alike &&
         (a.schedule == b.schedule || a.head_dim != 64);
}
template <std::size_t kRows>
constexpr bool is_first_of_form(const sm90::TableRow& row, const sm90::TableRow (&table)[kRows]) {
  for (const sm90::TableRow& other : table)
    if (have_one_form(other.config, row.config)) return &other == &row;
  return false;
}

constexpr bool is_in_table(const Sm90ForwardConfig& config) {
  for (const sm90::TableRow& row : sm90::kTable)
    if (sm90::config_of(row, config.element) == config) return true;
  return false;
}

// Rows that are instantiated with pack_gqa too: over a cluster and over row groups.
constexpr bool has_pack_gqa(const sm90::TableRow& row) {
  const Sm90ForwardConfig& c = row.config;
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.config.head_dim == c.head_dim && other.config.cluster > 1)
      return (&other == &row && (c.head_dim == 64 || c.head_dim == 128)) ||
             (c.head_dim == 96 && c.row_groups > 1);
  return false;
}

// Takes, for each row of the table, the kernel to which problems are dispatched, that kernel with
// the exact sums that LSE needs, and with FP32 output. Kernels with pack_gqa come last. BF16 and
// FP32 output have one kernel of each form. FP32 output has only exact sums, as such a kernel also
// serves problems without LSE.
template <class Take>
constexpr void for_each_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable)
    for (const Element element : sm90::kShippedElements) {
      // BF16 runs the same code with other conversions and instructions.
      const bool is_first = is_first_of_form(row, sm90::kTable);
      if (element != Element::f16 && !is_first) continue;
      Sm90ForwardConfig c = sm90::config_of(row, element);
      take(c);
      if (c.sum_rounded_p) {
        c.sum_rounded_p = false;
        if (!is_in_table(c)) take(c);
      }
      if (element != Element::f16 || !is_first) continue;
      c.output.element = Element::f32;
      take(c);
    }
  for (const sm90::TableRow& row : sm90::kTable)
    if (has_pack_gqa(row)) {
      Sm90ForwardConfig c = sm90::config_of(row, Element::f16);
      c.sum_rounded_p = false;
      c.pack_gqa = true;
      take(c);
    }
}

// 8-bit outputs and amax, for the forms at head_dim 64: both together, each alone, and with
// pack_gqa.
template <class Take>
constexpr void for_each_sm90_output(const Take& take) {
  const auto add = [&](Sm90ForwardConfig c, Element out, bool amax) {
    c.output = {.element = out, .amax = amax};
    take(c);
  };
  for (const sm90::TableRow& row : sm90::kTable) {
    if (row.config.head_dim != 64 || !is_first_of_form(row, sm90::kTable)) continue;
    Sm90ForwardConfig c = sm90::config_of(row, Element::f16);
    c.sum_rounded_p = false;
    add(c, Element::e4m3, true);
    add(c, Element::f16, true);
    add(c, Element::int8, false);
    if (sm90::is_split_kv(c)) add(c, Element::e5m2, false);
  }
  for (const sm90::TableRow& row : sm90::kTable)
    if (row.config.head_dim == 64 && has_pack_gqa(row)) {
      Sm90ForwardConfig c = sm90::config_of(row, Element::f16);
      c.sum_rounded_p = false;
      c.pack_gqa = true;
      add(c, Element::int8, true);
    } else if (row.config.head_dim == 128 && sm90::stores_o_by_tma(row.config)) {
      // A 16-bit O would have a tile of its own, from which TMA stores it.
      Sm90ForwardConfig c = sm90::config_of(row, Element::bf16);
      c.sum_rounded_p = false;
      add(c, Element::bf16, true);
      break;
    }
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    if (row.config.head_dim != 64 || !is_first_of_form(row, sm90::kTable8Bit)) continue;
    if (row.config.element == Element::int8 || row.config.scores == ScoreType::f16_fast) continue;
    Sm90ForwardConfig c = sm90::config_of(row, Element::e4m3);
    c.sum_rounded_p = false;
    add(c, Element::e4m3, true);
  }
}

// 8-bit kernels, one of each form, as other rows differ only in sizes. Each with FP16 scores, as
// for operands of our own quantizer, and with exact sums for LSE.
template <class Take>
constexpr void for_each_f16_scores(const sm90::TableRow& row, const Take& take) {
  Sm90ForwardConfig c = sm90::config_of(row, Element::e4m3);
  take(c);
  if (c.sum_rounded_p && c.scores != ScoreType::f16_fast) {
    c.sum_rounded_p = false;
    take(c);
  }
}
constexpr Sm90ForwardConfig with_k_scales(Sm90ForwardConfig c, KScales scales) {
  c.k_scales = scales;
  return c;
}
// With FP32 scores: a scale per key, the other formats and other outputs.
template <class Take>
constexpr void for_each_f32_scores(const sm90::TableRow& row, const Take& take) {
  const auto add = [&](Element element, KScales scales, Element out = Element::f16) {
    Sm90ForwardConfig c = with_k_scales(sm90::config_of(row, element), scales);
    c.output.element = out;
    take(c);
    if (!c.sum_rounded_p || out != Element::f16) return;
    c.sum_rounded_p = false;
    take(c);
  };
  add(Element::e4m3, KScales::head);
  add(Element::e4m3, KScales::row);
  if (row.config.head_dim != 64) return;
  add(Element::e4m3, KScales::block);
  add(Element::e5m2, KScales::head);
  add(Element::e5m2, KScales::row);
  for (const Element out : {Element::bf16, Element::f32}) add(Element::e4m3, KScales::head, out);
  if (sm90::is_split_kv(row.config)) {
    Sm90ForwardConfig c = sm90::config_of(row, Element::e4m3);
    c.sum_rounded_p = false;
    c.pack_gqa = true;
    take(c);
  }
  if (row.config.schedule == Schedule::pv_first_queued || row.config.pv_buffers > 1) return;
  for (const auto& [element, v_element] :
       {std::pair{Element::e4m3, Element::e5m2}, {Element::e5m2, Element::e4m3}}) {
    Sm90ForwardConfig c = sm90::config_of(row, element);
    c.v_element = v_element;
    if (element == Element::e4m3) take(c);
    c.sum_rounded_p = false;
    take(c);
  }
}
// INT8, as in its precision mode and with the other scales of K.
template <class Take>
constexpr void for_each_int8(const sm90::TableRow& row, const Take& take) {
  const auto add = [&](KScales scales) {
    Sm90ForwardConfig c = with_k_scales(sm90::config_of(row, Element::int8), scales);
    if (c.sum_rounded_p) take(c);
    c.sum_rounded_p = false;
    take(c);
  };
  add(KScales::block);
  if (row.config.head_dim != 64 && row.config.head_dim != 128) return;
  add(KScales::row);
  if (row.config.head_dim != 64) return;
  add(KScales::head);
  if (!sm90::is_split_kv(row.config)) return;
  Sm90ForwardConfig c = with_k_scales(sm90::config_of(row, Element::int8), KScales::block);
  c.sum_rounded_p = false;
  c.pack_gqa = true;
  take(c);
}
template <class Take>
constexpr void for_each_8bit_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    if (!is_first_of_form(row, sm90::kTable8Bit)) continue;
    if (row.config.element == Element::int8)
      for_each_int8(row, take);
    else if (row.config.scores == ScoreType::f32)
      for_each_f32_scores(row, take);
    else
      for_each_f16_scores(row, take);
  }
}

// 8-bit Q and K with 16-bit V: each form as in its precision mode, both elements at head_dim 64 and
// 128, also with exact sums; at head_dim 128 only those.
template <class Take>
constexpr void for_each_mixed(const sm90::TableRow& row, const Take& take) {
  const bool both = row.config.head_dim == 64 || row.config.head_dim == 128;
  for (const Element element : {Element::int8, Element::e4m3}) {
    if (element == Element::e4m3 && !both) continue;
    Sm90ForwardConfig c = sm90::mixed_config_of(row, element, Element::f16);
    if (element == Element::int8) c.k_scales = KScales::block;
    if (c.sum_rounded_p && row.config.head_dim == 64) take(c);
    c.sum_rounded_p = false;
    take(c);
  }
}
// Every kind of scales, the other type of V, other outputs, e5m2.
template <class Take>
constexpr void for_each_other_mixed(const sm90::TableRow& row, const Take& take) {
  const auto made = [&row](Element element, Element v_element, KScales scales) {
    Sm90ForwardConfig c = with_k_scales(sm90::mixed_config_of(row, element, v_element), scales);
    c.sum_rounded_p = false;
    return c;
  };
  for (const Element element : {Element::int8, Element::e4m3}) {
    take(made(element, Element::f16, element == Element::int8 ? KScales::head : KScales::block));
    take(made(element, Element::f16, KScales::row));
    take(made(element, Element::bf16, element == Element::int8 ? KScales::block : KScales::head));
  }
  take(made(Element::e5m2, Element::f16, KScales::head));
  Sm90ForwardConfig c = made(Element::int8, Element::bf16, KScales::block);
  c.sum_rounded_p = row.config.sum_rounded_p;
  if (c.sum_rounded_p) take(c);
  c = made(Element::int8, Element::f16, KScales::block);
  c.output.element = Element::f32;
  take(c);
}
// The first row of its head_dim that has a cluster, or whose K has a scale per sixteen keys.
constexpr bool is_first_with_cluster(const sm90::TableRow& row) {
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.config.head_dim == row.config.head_dim && other.config.cluster > 1)
      return &other == &row;
  return false;
}
constexpr bool is_first_with_16_key_scales(const sm90::TableRow& row) {
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.config.head_dim == row.config.head_dim && other.config.block_n % 32 != 0)
      return &other == &row;
  return false;
}
template <class Take>
constexpr void for_each_mixed_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable) {
    const bool first = is_first_of_form(row, sm90::kTable);
    const bool clustered = is_first_with_cluster(row) && row.config.head_dim <= 128;
    if (first || clustered) for_each_mixed(row, take);
    if (first && row.config.head_dim == 64 && !sm90::is_split_kv(row.config))
      for_each_other_mixed(row, take);
    if (is_first_with_16_key_scales(row) && row.config.head_dim == 128) {
      Sm90ForwardConfig c = sm90::mixed_config_of(row, Element::e4m3, Element::f16);
      c.k_scales = KScales::block;
      take(c);
    }
  }
}

// Every modifier of the scores and padding: with a producer warp, P V first at head_dim 64 and
// Q K^T first at 128, where O has its own tile; and split-KV, over a
// cluster with pack_gqa, and with stages that are filled again.
constexpr bool is_modified(const sm90::TableRow& row) {
  const Sm90ForwardConfig& c = row.config;
  const bool split = sm90::is_split_kv(c);
  for (const sm90::TableRow& other : sm90::kTable) {
    const Sm90ForwardConfig& o = other.config;
    if (o.head_dim != c.head_dim || sm90::is_split_kv(o) != split) continue;
    if (c.head_dim == 64 && (split ? o.cluster > 1 : o.schedule == Schedule::pv_first_queued))
      return &other == &row;
    if (c.head_dim == 128 && (split ? o.stages > 1 : sm90::stores_o_by_tma(o)))
      return &other == &row;
  }
  return false;
}
template <class Take>
constexpr void for_each_modified_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable) {
    if (!is_modified(row)) continue;
    const bool split = sm90::is_split_kv(row.config);
    Sm90ForwardConfig c =
        sm90::config_of(row, row.config.head_dim == 128 && !split ? Element::bf16 : Element::f16);
    c.sum_rounded_p = false;
    c.pack_gqa = split && c.head_dim == 64;
    const Element bias = split ? Element::f16 : Element::bf16;
    c.modifiers = {.softcap = true,
                   .bias = true,
                   .bias_element = c.head_dim == 64 ? bias : Element::f32,
                   .alibi = true,
                   .mask = true,
                   .score_tiles = c.head_dim == 64 && !split,
                   .sinks = true,
                   .padded = true};
    take(c);
    if (!c.modifiers.score_tiles) continue;
    c.modifiers.bias_element = Element::f32;
    c.modifiers.mask = false;
    take(c);
  }
}
// Without a bias softcap and ALiBi are part of the exponent: both with P V first, ALiBi with
// Q K^T first, and softcap in the parts of a block that split-KV computes, in bf16, where ref_max
// is fixed.
template <class Take>
constexpr void for_each_fused_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable) {
    Sm90ForwardConfig c = sm90::config_of(row, Element::f16);
    if (c.head_dim != 64) continue;
    if (is_modified(row)) {
      const bool split = sm90::is_split_kv(c);
      if (split) c = sm90::config_of(row, Element::bf16);
      c.pack_gqa = split;
      c.sum_rounded_p = split;
      c.modifiers = {.softcap = true, .alibi = !split, .mask = !split, .sinks = true};
      c.modifiers.padded = !split;
      take(c);
    } else if (c.schedule == Schedule::qk_first && !sm90::is_split_kv(c)) {
      c = sm90::config_of(row, Element::bf16);
      c.sum_rounded_p = false;
      c.modifiers = {.alibi = true};
      take(c);
    }
  }
}

// 8-bit: pairs of blocks of 64 with FP16 scores and with a scale for each key; INT8 with blocks of
// 128 and with parts of them, with and without exact sums; and 16-bit V.
template <class Take>
constexpr void for_each_8bit_block_mask(const Take& take) {
  Sm90ForwardConfig c{.element = Element::e4m3, .v_element = Element::e4m3, .warpgroups = 1};
  c.schedule = Schedule::pv_first_queued;
  c.min_ctas = 2;
  c.pv_columns = 64;
  c.modifiers.block_mask = 64;
  c.scores = ScoreType::f16;
  take(c);
  c.sum_rounded_p = false;
  c.scores = ScoreType::f32;
  c.k_scales = KScales::row;
  take(c);
  c.element = c.v_element = Element::int8;
  c.k_scales = KScales::block;
  take(c);
  c.sum_rounded_p = true;
  c.warpgroups = 2;
  c.min_ctas = 1;
  c.modifiers.block_mask = 128;
  take(c);
  c = {.element = Element::e4m3, .v_element = Element::f16, .warpgroups = 2, .block_n = 64};
  c.k_scales = KScales::block;
  c.sum_rounded_p = false;
  c.modifiers.block_mask = 128;
  take(c);
}

// Block masks: blocks of 64 with every modifier, one warpgroup and P V first; and blocks of 128 in
// two parts without any, Q K^T first.
template <class Take>
constexpr void for_each_block_mask_sm90_config(const Take& take) {
  Sm90ForwardConfig c;
  c.warpgroups = 1;
  c.min_ctas = 2;
  c.block_n = 64;
  c.schedule = Schedule::pv_first_queued;
  c.sum_rounded_p = false;
  c.modifiers = {.softcap = true,
                 .bias = true,
                 .bias_element = Element::f16,
                 .alibi = true,
                 .mask = true,
                 .sinks = true,
                 .block_mask = 64};
  take(c);
  c = {.element = Element::bf16, .v_element = Element::bf16, .head_dim = 128, .warpgroups = 2};
  c.block_n = 64;
  c.sum_rounded_p = false;
  c.output.element = Element::bf16;
  c.modifiers.block_mask = 128;
  take(c);
  for_each_8bit_block_mask(take);
}

// V with another head_dim than Q and K: 192 and 128, with three warpgroups and both schedules, with
// and without columns of ones, and with every modifier; an O with more columns than Q that goes
// through shared memory; panels of other widths; and split-KV, over a cluster and in a CTA.
constexpr Sm90ForwardConfig other_v_config(const Sm90ForwardConfig& of, int head_dim,
                                           int head_dim_v) {
  return sm90::config_of(sm90::with_head_dims({.config = of, .estimate = {}}, head_dim, head_dim_v),
                         Element::f16);
}
template <class Take>
constexpr void for_each_other_v_sm90_config(const Take& take) {
  Sm90ForwardConfig c =
      other_v_config({.block_n = 80, .stages = 3, .schedule = Schedule::pv_first_queued}, 192, 128);
  take(c);
  c.schedule = Schedule::qk_first;
  c.sum_rounded_p = false;
  take(c);
  c = other_v_config({.warpgroups = 2, .sum_rounded_p = false}, 192, 128);
  c.element = c.v_element = c.output.element = Element::bf16;
  c.modifiers = {.softcap = true,
                 .bias = true,
                 .bias_element = Element::bf16,
                 .alibi = true,
                 .mask = true,
                 .sinks = true,
                 .padded = true};
  take(c);
  take(other_v_config({.warpgroups = 2, .block_n = 64, .sum_rounded_p = false}, 64, 128));
  take(other_v_config({.block_n = 64}, 128, 96));
  take(other_v_config({.warpgroups = 2,
                       .stages = 1,
                       .schedule = Schedule::in_turn,
                       .row_groups = 1,
                       .cluster = 2,
                       .sum_rounded_p = false},
                      128, 64));
  take(other_v_config({.warpgroups = 2, .block_n = 64, .row_groups = 1, .sum_rounded_p = false},
                      192, 128));
}

// More than 256 columns: K in slices and two tiles of V's columns, once with every modifier;
// either of them alone; and two stages of slices.
template <class Take>
constexpr void for_each_wide_sm90_config(const Take& take) {
  Sm90ForwardConfig c = {
      .head_dim = 512, .warpgroups = 2, .block_n = 64, .stages = 1, .sum_rounded_p = false};
  take(c);
  c.head_dim_v = 64;
  take(c);
  c.head_dim = 384;
  c.stages = 2;
  take(c);
  c.head_dim = 64;
  c.head_dim_v = 512;
  take(c);
  c.element = c.v_element = c.output.element = Element::bf16;
  c.head_dim = 384;
  c.head_dim_v = 0;
  c.stages = 1;
  c.modifiers = {.softcap = true,
                 .bias = true,
                 .bias_element = Element::bf16,
                 .alibi = true,
                 .mask = true,
                 .sinks = true,
                 .padded = true};
  take(c);
}

constexpr int count_sm90_configs() {
  int count = 0;
  for_each_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_8bit_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_mixed_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_sm90_output([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_modified_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_fused_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_block_mask_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_other_v_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  for_each_wide_sm90_config([&count](const Sm90ForwardConfig&) { ++count; });
  return count;
}

inline constexpr auto kSm90Configs = [] {
  std::array<Sm90ForwardConfig, count_sm90_configs()> configs{};
  std::size_t count = 0;
  for_each_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_8bit_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_mixed_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_sm90_output([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_modified_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_fused_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_block_mask_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_other_v_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  for_each_wide_sm90_config([&](const Sm90ForwardConfig& c) { configs[count++] = c; });
  return configs;
}();

template <int kPart>
std::vector<EmulatedSm90Forward> sm90_forward_part();

}  // namespace octavo::emulator
