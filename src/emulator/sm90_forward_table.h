// Which configurations are instantiated, and in which of the files that share the work.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "config/sm90_shipped.h"
#include "emulator/sm90_forward.h"

namespace octavo::emulator {

// The first row of a table with its columns that divides, or does not divide, keys, and whose
// products follow one another as its do; before and behind P V is told apart with 64 columns alone.
template <std::size_t kRows>
constexpr bool is_first_of_form(const sm90::TableRow& row, const sm90::TableRow (&table)[kRows]) {
  for (const sm90::TableRow& other : table)
    if (other.head_dim == row.head_dim && (other.cluster > 0) == (row.cluster > 0) &&
        other.scores == row.scores && other.scores_behind == row.scores_behind &&
        other.fold_buffers == row.fold_buffers &&
        (other.overlap == row.overlap || row.head_dim != 64 || row.cluster > 0))
      return &other == &row;
  return false;
}

constexpr bool is_in_table(const Sm90Forward& config) {
  for (const sm90::TableRow& row : sm90::kTable)
    if (sm90::config_of(row, config.element) == config) return true;
  return false;
}

// Heads packed over a cluster and over row groups.
constexpr bool is_packed_too(const sm90::TableRow& row) {
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.head_dim == row.head_dim && other.cluster > 1)
      return (&other == &row && (row.head_dim == 64 || row.head_dim == 128)) ||
             (row.head_dim == 96 && row.row_groups > 1);
  return false;
}

// In the order of the list: as problems are given to them, with the exact sums that LSE needs, with
// FP32 output. Those sums serve a problem without LSE too, so FP32 needs no other; and one of each
// form is enough for what it does otherwise, and for launches that may start early. Last those with
// packed heads.
template <class Take>
constexpr void for_each_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable)
    for (const Element element : sm90::kShippedElements) {
      Sm90Forward c = sm90::config_of(row, element);
      take(c);
      if (c.ones) {
        c.ones = false;
        if (!is_in_table(c)) take(c);
      }
      if (element != Element::f16 || !is_first_of_form(row, sm90::kTable)) continue;
      c.out = Element::f32;
      take(c);
      if (row.head_dim != 64) continue;
      c.out = Element::f16;
      c.early_start = true;
      take(c);
    }
  for (const sm90::TableRow& row : sm90::kTable)
    if (is_packed_too(row)) {
      Sm90Forward c = sm90::config_of(row, Element::f16);
      c.ones = false;
      c.pack_heads = true;
      take(c);
    }
}

// Codes as the output, and largest magnitudes, by the forms of 64 columns: both of them together,
// each alone, of packed heads, and with an early start.
template <class Take>
constexpr void for_each_sm90_output(const Take& take) {
  const auto add = [&](Sm90Forward c, Element out, bool amax) {
    c.out = out;
    c.amax = amax;
    if (sm90::codes_out(c)) c.own_o = false;
    take(c);
  };
  for (const sm90::TableRow& row : sm90::kTable) {
    if (row.head_dim != 64 || !is_first_of_form(row, sm90::kTable)) continue;
    Sm90Forward c = sm90::config_of(row, Element::f16);
    c.ones = false;
    add(c, Element::e4m3, true);
    add(c, Element::f16, true);
    c.early_start = true;
    add(c, Element::int8, false);
    if (c.split_keys) add(c, Element::e5m2, false);
  }
  for (const sm90::TableRow& row : sm90::kTable)
    if (row.head_dim == 64 && is_packed_too(row)) {
      Sm90Forward c = sm90::config_of(row, Element::f16);
      c.ones = false;
      c.pack_heads = true;
      add(c, Element::int8, true);
    } else if (row.head_dim == 128 && row.cluster == 0 && row.own_o) {
      // O has a tile of its own, from which it would be stored.
      Sm90Forward c = sm90::config_of(row, Element::bf16);
      c.ones = false;
      add(c, Element::bf16, true);
      break;
    }
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    if (row.head_dim != 64 || !is_first_of_form(row, sm90::kTable8Bit)) continue;
    Sm90Forward c = sm90::config_of(row, Element::e4m3);
    if (row.scores != sm90::Scores8Bit::f32 && row.scores != sm90::Scores8Bit::f16) continue;
    c.ones = false;
    add(c, Element::e4m3, true);
  }
}

// In 8 bits, one of each form: kernels of other rows differ in numbers alone. With scores in FP16
// each of them as our own quantizer has it, and with exact sums, for LSE; then with an early start.
template <class Take>
constexpr void for_each_f16_scores(const sm90::TableRow& row, const Take& take) {
  Sm90Forward c = sm90::config_of(row, Element::e4m3);
  take(c);
  if (c.ones && !c.code_exp) {
    c.ones = false;
    take(c);
    c.ones = true;
  }
  if (row.head_dim != 64) return;
  c.early_start = true;
  take(c);
}
enum class KeyScales { of_heads, of_rows, of_blocks };
constexpr Sm90Forward with_key_scales(Sm90Forward c, KeyScales scales) {
  c.k_row_scales = scales == KeyScales::of_rows;
  c.k_block_scales = scales == KeyScales::of_blocks;
  return c;
}
// With scores in FP32: the scales of every key, the other formats and other outputs.
template <class Take>
constexpr void for_each_f32_scores(const sm90::TableRow& row, const Take& take) {
  const auto add = [&](Element element, KeyScales scales, Element out = Element::f16) {
    Sm90Forward c = with_key_scales(sm90::config_of(row, element), scales);
    c.out = out;
    take(c);
    if (!c.ones || out != Element::f16) return;
    c.ones = false;
    take(c);
  };
  add(Element::e4m3, KeyScales::of_heads);
  add(Element::e4m3, KeyScales::of_rows);
  if (row.head_dim != 64) return;
  add(Element::e4m3, KeyScales::of_blocks);
  add(Element::e5m2, KeyScales::of_heads);
  add(Element::e5m2, KeyScales::of_rows);
  for (const Element out : {Element::bf16, Element::f32})
    add(Element::e4m3, KeyScales::of_heads, out);
  if (row.cluster > 0) {
    Sm90Forward c = sm90::config_of(row, Element::e4m3);
    c.ones = false;
    c.pack_heads = true;
    take(c);
  }
  if (row.scores_behind || row.fold_buffers > 1) return;
  for (const auto& [element, v] :
       {std::pair{Element::e4m3, MixedV::e5m2}, {Element::e5m2, MixedV::e4m3}}) {
    Sm90Forward c = sm90::config_of(row, element);
    c.mixed_v = v;
    if (element == Element::e4m3) take(c);
    c.ones = false;
    take(c);
  }
}
// INT8, as the mode has it and with the other scales of keys.
template <class Take>
constexpr void for_each_bytes(const sm90::TableRow& row, const Take& take) {
  const auto add = [&](KeyScales scales) {
    Sm90Forward c = with_key_scales(sm90::config_of(row, Element::int8), scales);
    if (c.ones) take(c);
    c.ones = false;
    take(c);
  };
  add(KeyScales::of_blocks);
  if (row.head_dim != 64 && row.head_dim != 128) return;
  add(KeyScales::of_rows);
  if (row.head_dim != 64) return;
  add(KeyScales::of_heads);
  if (row.cluster == 0) return;
  Sm90Forward c = with_key_scales(sm90::config_of(row, Element::int8), KeyScales::of_blocks);
  c.ones = false;
  c.pack_heads = true;
  take(c);
}
template <class Take>
constexpr void for_each_8bit_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    if (!is_first_of_form(row, sm90::kTable8Bit)) continue;
    if (row.scores == sm90::Scores8Bit::f32)
      for_each_f32_scores(row, take);
    else if (row.scores == sm90::Scores8Bit::bytes)
      for_each_bytes(row, take);
    else
      for_each_f16_scores(row, take);
  }
}

// 8-bit Q and K beside V of 16 bits: of each form as the modes have it, both elements with 64 and
// 128 columns, also with exact sums; with 128 columns those alone.
template <class Take>
constexpr void for_each_mixed(const sm90::TableRow& row, const Take& take) {
  const bool both = row.head_dim == 64 || row.head_dim == 128;
  for (const Element element : {Element::int8, Element::e4m3}) {
    if (element == Element::e4m3 && !both) continue;
    Sm90Forward c = sm90::mixed_config_of(row, element, MixedV::f16);
    c.k_block_scales = element == Element::int8;
    if (c.ones && row.head_dim == 64) take(c);
    c.ones = false;
    take(c);
  }
}
// Every kind of scales, the other type of V, other outputs, e5m2, an early start.
template <class Take>
constexpr void for_each_other_mixed(const sm90::TableRow& row, const Take& take) {
  const auto made = [&row](Element element, MixedV v, KeyScales scales) {
    Sm90Forward c = with_key_scales(sm90::mixed_config_of(row, element, v), scales);
    c.ones = false;
    return c;
  };
  for (const Element element : {Element::int8, Element::e4m3}) {
    take(made(element, MixedV::f16,
              element == Element::int8 ? KeyScales::of_heads : KeyScales::of_blocks));
    take(made(element, MixedV::f16, KeyScales::of_rows));
    take(made(element, MixedV::bf16,
              element == Element::int8 ? KeyScales::of_blocks : KeyScales::of_heads));
  }
  take(made(Element::e5m2, MixedV::f16, KeyScales::of_heads));
  Sm90Forward c = made(Element::int8, MixedV::bf16, KeyScales::of_blocks);
  c.ones = row.ones;
  if (c.ones) take(c);
  c = made(Element::int8, MixedV::f16, KeyScales::of_blocks);
  c.out = Element::f32;
  take(c);
  c.out = Element::f16;
  c.early_start = true;
  take(c);
}
// The first with its columns that has a cluster, or whose keys have scales by sixteens.
constexpr bool is_first_with_cluster(const sm90::TableRow& row) {
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.head_dim == row.head_dim && other.cluster > 1) return &other == &row;
  return false;
}
constexpr bool is_first_by_sixteens(const sm90::TableRow& row) {
  for (const sm90::TableRow& other : sm90::kTable)
    if (other.head_dim == row.head_dim && other.block_n % 32 != 0) return &other == &row;
  return false;
}
template <class Take>
constexpr void for_each_mixed_sm90_config(const Take& take) {
  for (const sm90::TableRow& row : sm90::kTable) {
    const bool first = is_first_of_form(row, sm90::kTable);
    const bool clustered = is_first_with_cluster(row) && row.head_dim <= 128;
    if (first || clustered) for_each_mixed(row, take);
    if (first && row.head_dim == 64 && row.cluster == 0) for_each_other_mixed(row, take);
    if (is_first_by_sixteens(row) && row.head_dim == 128) {
      Sm90Forward c = sm90::mixed_config_of(row, Element::e4m3, MixedV::f16);
      c.k_block_scales = true;
      take(c);
    }
  }
}

constexpr int count_sm90_configs() {
  int count = 0;
  for_each_sm90_config([&count](const Sm90Forward&) { ++count; });
  for_each_8bit_sm90_config([&count](const Sm90Forward&) { ++count; });
  for_each_mixed_sm90_config([&count](const Sm90Forward&) { ++count; });
  for_each_sm90_output([&count](const Sm90Forward&) { ++count; });
  return count;
}

inline constexpr auto kSm90Configs = [] {
  std::array<Sm90Forward, count_sm90_configs()> configs{};
  std::size_t count = 0;
  for_each_sm90_config([&](const Sm90Forward& c) { configs[count++] = c; });
  for_each_8bit_sm90_config([&](const Sm90Forward& c) { configs[count++] = c; });
  for_each_mixed_sm90_config([&](const Sm90Forward& c) { configs[count++] = c; });
  for_each_sm90_output([&](const Sm90Forward& c) { configs[count++] = c; });
  return configs;
}();

template <int kPart>
std::vector<EmulatedSm90Forward> sm90_forward_part();

}  // namespace octavo::emulator
