// SPDX-License-Identifier: Apache-2.0
// Names of formats, granularities and rules, and their parsers.
#include <span>
#include <string>
#include <utility>

#include "base/error.h"

namespace octavo {
namespace {

template <class T>
struct Spelling {
  std::string_view text;
  T value;
};

// The first spelling of a value is its name.
constexpr Spelling<DType> kDTypes[] = {
    {"f32", DType::f32},       {"f16", DType::f16},
    {"bf16", DType::bf16},     {"e4m3", DType::e4m3},
    {"e5m2", DType::e5m2},     {"int8", DType::int8},
    {"sim8", DType::sim8},     {"fp32", DType::f32},
    {"float32", DType::f32},   {"float", DType::f32},
    {"fp16", DType::f16},      {"float16", DType::f16},
    {"half", DType::f16},      {"bfloat16", DType::bf16},
    {"fp8_e4m3", DType::e4m3}, {"float8_e4m3fn", DType::e4m3},
    {"fp8_e5m2", DType::e5m2}, {"float8_e5m2", DType::e5m2},
    {"i8", DType::int8},
};
// Types that only some tensors have: not parsed.
constexpr std::string_view kBoolean = "bool", kInt4 = "int4";
constexpr Spelling<Granularity> kGranularities[] = {
    {"tensor", Granularity::tensor},   {"head", Granularity::head},
    {"block", Granularity::block},     {"row", Granularity::row},
    {"channel", Granularity::channel},
};
constexpr Spelling<ScaleRule> kScaleRules[] = {
    {"amax", ScaleRule::amax},
    {"least_squares", ScaleRule::least_squares},
};
constexpr Spelling<VLayout> kVLayouts[] = {
    {"rows", VLayout::rows},
    {"transposed", VLayout::transposed},
};

template <class T>
std::string_view name_in(std::span<const Spelling<T>> spellings, T value) {
  for (const Spelling<T>& spelling : spellings)
    if (spelling.value == value) return spelling.text;
  return "unknown";
}

template <class T>
Result<T> parse_in(std::span<const Spelling<T>> spellings, std::string_view what,
                   std::string_view text) {
  return without_exceptions([&]() -> Result<T> {
    std::string names;
    for (const Spelling<T>& spelling : spellings) {
      if (spelling.text == text) return spelling.value;
      if (name_in(spellings, spelling.value) != spelling.text) continue;
      if (!names.empty()) names += ", ";
      names += spelling.text;
    }
    return invalid(what, fmt::format("'{}'", text), names);
  });
}

}  // namespace

std::string_view name(DType dtype) {
  if (dtype == DType::int4) return kInt4;
  return dtype == DType::boolean ? kBoolean : name_in<DType>(kDTypes, dtype);
}
std::string_view name(Granularity granularity) {
  return name_in<Granularity>(kGranularities, granularity);
}
std::string_view name(ScaleRule rule) { return name_in<ScaleRule>(kScaleRules, rule); }
std::string_view name(VLayout layout) { return name_in<VLayout>(kVLayouts, layout); }

Result<DType> parse_dtype(std::string_view text) { return parse_in<DType>(kDTypes, "dtype", text); }
Result<Granularity> parse_granularity(std::string_view text) {
  return parse_in<Granularity>(kGranularities, "granularity", text);
}
Result<ScaleRule> parse_scale_rule(std::string_view text) {
  return parse_in<ScaleRule>(kScaleRules, "scale rule", text);
}
Result<VLayout> parse_v_layout(std::string_view text) {
  return parse_in<VLayout>(kVLayouts, "layout", text);
}

}  // namespace octavo
