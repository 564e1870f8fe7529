// SPDX-License-Identifier: Apache-2.0
// The fields of each kernel configuration, listed once: writing, parsing and tests visit this list.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "config/append.h"
#include "config/decode.h"
#include "config/quantize.h"
#include "config/row_stats.h"
#include "config/shared_parts.h"
#include "config/sm80_backward.h"
#include "config/sm80_forward.h"
#include "config/sm90_backward.h"
#include "config/sm90_forward.h"

namespace octavo {

// visit_fields calls visit(name, field) for every field in the order of the struct, as designated
// initialisers require. A field may be a struct with fields of its own.
template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, OutputConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("element", c.element);
  visit("amax", c.amax);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, ModifierConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("softcap", c.softcap);
  visit("bias", c.bias);
  visit("bias_element", c.bias_element);
  visit("alibi", c.alibi);
  visit("mask", c.mask);
  visit("score_tiles", c.score_tiles);
  visit("sinks", c.sinks);
  visit("padded", c.padded);
  visit("block_mask", c.block_mask);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, Sm80ForwardConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("element", c.element);
  visit("head_dim", c.head_dim);
  visit("head_dim_v", c.head_dim_v);
  visit("block_m", c.block_m);
  visit("block_n", c.block_n);
  visit("warps_m", c.warps_m);
  visit("warps_n", c.warps_n);
  visit("stages", c.stages);
  visit("v_barrier", c.v_barrier);
  visit("load_bytes", c.load_bytes);
  visit("q_in_registers", c.q_in_registers);
  visit("k_tiles", c.k_tiles);
  visit("v_tiles", c.v_tiles);
  visit("rescale_log2", c.rescale_log2);
  visit("k_row_scales", c.k_row_scales);
  visit("p_terms", c.p_terms);
  visit("producer_warps", c.producer_warps);
  visit("persistent", c.persistent);
  visit("unroll", c.unroll);
  visit("f16_scores", c.f16_scores);
  visit("exp", c.exp);
  visit("keep_kv", c.keep_kv);
  visit("output", c.output);
  visit("modifiers", c.modifiers);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, QuantizeConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("from", c.from);
  visit("to", c.to);
  visit("group", c.group);
  visit("amax_pass", c.amax_pass);
  visit("hadamard", c.hadamard);
  visit("columns", c.columns);
  visit("load_bytes", c.load_bytes);
  visit("threads", c.threads);
  visit("transposed", c.transposed);
  visit("operands", c.operands);
  visit("one_pass", c.one_pass);
  visit("mean_pass", c.mean_pass);
  visit("smooth", c.smooth);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, Sm90ForwardConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("element", c.element);
  visit("v_element", c.v_element);
  visit("k_scales", c.k_scales);
  visit("head_dim", c.head_dim);
  visit("head_dim_v", c.head_dim_v);
  visit("warpgroups", c.warpgroups);
  visit("block_n", c.block_n);
  visit("stages", c.stages);
  visit("schedule", c.schedule);
  visit("min_ctas", c.min_ctas);
  visit("row_groups", c.row_groups);
  visit("cluster", c.cluster);
  visit("pack_gqa", c.pack_gqa);
  visit("scores", c.scores);
  visit("sum_rounded_p", c.sum_rounded_p);
  visit("pv_columns", c.pv_columns);
  visit("pv_buffers", c.pv_buffers);
  visit("output", c.output);
  visit("modifiers", c.modifiers);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, DecodeConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("element", c.element);
  visit("kv", c.kv);
  visit("out", c.out);
  visit("head_dim", c.head_dim);
  visit("block_m", c.block_m);
  visit("block_n", c.block_n);
  visit("warps", c.warps);
  visit("stages", c.stages);
  visit("min_ctas", c.min_ctas);
  visit("group", c.group);
  visit("draft_tree", c.draft_tree);
  visit("batch_invariant", c.batch_invariant);
  visit("clusters", c.clusters);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, AppendConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("from", c.from);
  visit("to", c.to);
  visit("columns", c.columns);
  visit("load_bytes", c.load_bytes);
  visit("group", c.group);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, Sm80BackwardConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("element", c.element);
  visit("pass", c.pass);
  visit("head_dim", c.head_dim);
  visit("block_m", c.block_m);
  visit("block_n", c.block_n);
  visit("warps", c.warps);
  visit("warps_d", c.warps_d);
  visit("stages", c.stages);
  visit("load_bytes", c.load_bytes);
  visit("own_in_registers", c.own_in_registers);
  visit("modifiers", c.modifiers);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, Sm90BackwardConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("element", c.element);
  visit("head_dim", c.head_dim);
  visit("block_m", c.block_m);
  visit("block_n", c.block_n);
  visit("stages_q", c.stages_q);
  visit("stages_do", c.stages_do);
  visit("dq_buffers", c.dq_buffers);
  visit("modifiers", c.modifiers);
}

template <class Config, class Visitor>
requires std::is_same_v<std::remove_const_t<Config>, RowStatsConfig>
constexpr void visit_fields(Config& c, Visitor&& visit) {
  visit("arch", c.arch);
  visit("element", c.element);
  visit("load_bytes", c.load_bytes);
  visit("padded", c.padded);
}

// Calls visit(name, value) for every value, including those in nested structs, such as
// "modifiers.softcap".
template <class Config, class Visitor>
void visit_values(Config& c, const Visitor& visit, const std::string& prefix = {}) {
  visit_fields(c, [&](std::string_view name, auto& field) {
    const std::string whole_name = prefix + std::string(name);
    if constexpr (std::is_class_v<std::remove_cvref_t<decltype(field)>>)
      visit_values(field, visit, whole_name + ".");
    else
      visit(whole_name, field);
  });
}

// The name of a configuration's type, in C++ and in texts.
template <class Config>
inline constexpr std::string_view kTypeName;
template <>
inline constexpr std::string_view kTypeName<Sm80ForwardConfig> = "Sm80ForwardConfig";
template <>
inline constexpr std::string_view kTypeName<Sm90ForwardConfig> = "Sm90ForwardConfig";
template <>
inline constexpr std::string_view kTypeName<DecodeConfig> = "DecodeConfig";
template <>
inline constexpr std::string_view kTypeName<AppendConfig> = "AppendConfig";
template <>
inline constexpr std::string_view kTypeName<QuantizeConfig> = "QuantizeConfig";
template <>
inline constexpr std::string_view kTypeName<Sm80BackwardConfig> = "Sm80BackwardConfig";
template <>
inline constexpr std::string_view kTypeName<Sm90BackwardConfig> = "Sm90BackwardConfig";
template <>
inline constexpr std::string_view kTypeName<RowStatsConfig> = "RowStatsConfig";

// The names of an enumeration's values, which count from 0, and their prefix in C++.
template <class Enum>
struct EnumText;

template <>
struct EnumText<Element> {
  static constexpr std::string_view kPrefix = "Element::";
  static constexpr std::array<std::string_view, 9> kNames = {
      "f32", "f16", "bf16", "e4m3", "e5m2", "int8", "sim8", "boolean", "int4"};
};
template <>
struct EnumText<KScales> {
  static constexpr std::string_view kPrefix = "KScales::";
  static constexpr std::array<std::string_view, 3> kNames = {"head", "block", "row"};
};
template <>
struct EnumText<Schedule> {
  static constexpr std::string_view kPrefix = "Schedule::";
  static constexpr std::array<std::string_view, 4> kNames = {"qk_first", "pv_first",
                                                             "pv_first_queued", "in_turn"};
};
template <>
struct EnumText<ScoreType> {
  static constexpr std::string_view kPrefix = "ScoreType::";
  static constexpr std::array<std::string_view, 3> kNames = {"f32", "f16", "f16_fast"};
};
template <>
struct EnumText<BackwardPass> {
  static constexpr std::string_view kPrefix = "BackwardPass::";
  static constexpr std::array<std::string_view, 3> kNames = {"dkv", "dq", "dbias"};
};
template <>
struct EnumText<ExpForm> {
  static constexpr std::string_view kPrefix = "ExpForm::";
  static constexpr std::array<std::string_view, 3> kNames = {"f32", "f16x2", "polynomial"};
};
template <>
struct EnumText<ScaleGroup> {
  static constexpr std::string_view kPrefix = "ScaleGroup::";
  static constexpr std::array<std::string_view, 6> kNames = {"none", "row",    "block",
                                                             "head", "tensor", "channel"};
};
static_assert(static_cast<int>(ScaleGroup::channel) + 1 == EnumText<ScaleGroup>::kNames.size());
static_assert(static_cast<int>(KScales::row) + 1 == EnumText<KScales>::kNames.size());
static_assert(static_cast<int>(Schedule::in_turn) + 1 == EnumText<Schedule>::kNames.size());
static_assert(static_cast<int>(ScoreType::f16_fast) + 1 == EnumText<ScoreType>::kNames.size());
static_assert(static_cast<int>(ExpForm::polynomial) + 1 == EnumText<ExpForm>::kNames.size());
static_assert(static_cast<int>(BackwardPass::dbias) + 1 == EnumText<BackwardPass>::kNames.size());
static_assert(static_cast<int>(Element::int4) + 1 == EnumText<Element>::kNames.size());

namespace detail {

struct AnyValue {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class Aggregate, class... Values>
constexpr int count_fields() {
  if constexpr (requires { Aggregate{std::declval<Values>()..., AnyValue{}}; }) {
    return count_fields<Aggregate, Values..., AnyValue>();
  } else {
    return sizeof...(Values);
  }
}

template <class Config>
constexpr int count_visited() {
  int count = 0;
  Config config{};
  visit_fields(config, [&](std::string_view, auto&) { ++count; });
  return count;
}

}  // namespace detail

// The number of members of an aggregate: the most values that can initialise it.
template <class Aggregate>
inline constexpr int kFieldCount = detail::count_fields<Aggregate>();

template <class Config>
inline constexpr bool kEveryFieldVisited = kFieldCount<Config> == detail::count_visited<Config>();

static_assert(kEveryFieldVisited<Sm80ForwardConfig> && kEveryFieldVisited<Sm90ForwardConfig> &&
                  kEveryFieldVisited<QuantizeConfig> && kEveryFieldVisited<Sm80BackwardConfig> &&
                  kEveryFieldVisited<Sm90BackwardConfig> && kEveryFieldVisited<RowStatsConfig> &&
                  kEveryFieldVisited<DecodeConfig> && kEveryFieldVisited<AppendConfig> &&
                  kEveryFieldVisited<OutputConfig> && kEveryFieldVisited<ModifierConfig>,
              "visit_fields does not list every field: add the new one, or two different kernels "
              "will share a name and a cache entry");

}  // namespace octavo
