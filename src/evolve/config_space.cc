// SPDX-License-Identifier: Apache-2.0
#include "evolve/config_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <type_traits>

#include "base/error.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_fields.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"

namespace octavo::evolve {
namespace {

using Values = std::map<std::string, std::string>;

template <class T>
std::string field_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else if constexpr (std::is_enum_v<T>)
    return std::string(EnumText<T>::kNames.at(static_cast<std::size_t>(value)));
  else
    return fmt::format("{}", value);
}

Values values_of(const LadderConfig& config) { return {{"rung", to_text(config)}}; }

template <class Config>
Values values_of(Config config) {
  Values values;
  visit_values(config,
               [&](const std::string& name, auto& field) { values[name] = field_text(field); });
  return values;
}

// One field, not one of a struct within.
std::string field_text(const LadderConfig& config, std::string_view) { return to_text(config); }
template <class Config>
std::string field_text(const Config& config, std::string_view field) {
  std::string text;
  visit_fields(config, [&](std::string_view name, const auto& value) {
    if constexpr (!std::is_class_v<std::remove_cvref_t<decltype(value)>>)
      if (name == field) text = field_text(value);
  });
  return text;
}

void set_field(LadderConfig&, std::string_view, std::string_view) {}
template <class Config>
void set_field(Config& config, std::string_view field, std::string_view text) {
  visit_fields(config, [&](std::string_view name, auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if (name != field) return;
    if constexpr (std::is_same_v<Value, bool>) {
      value = text == "true";
    } else if constexpr (std::is_enum_v<Value>) {
      for (std::size_t i = 0; i < EnumText<Value>::kNames.size(); ++i)
        if (EnumText<Value>::kNames.at(i) == text) value = static_cast<Value>(i);
    } else if constexpr (std::is_integral_v<Value>) {
      (void)std::from_chars(text.data(), text.data() + text.size(), value);
    }
  });
}

std::vector<std::string> texts(std::initializer_list<int> numbers) {
  std::vector<std::string> list;
  for (const int number : numbers) list.push_back(fmt::format("{}", number));
  return list;
}
std::vector<std::string> either() { return {"false", "true"}; }

std::vector<ConfigField> fields_of(const Sm90ForwardConfig& c) {
  std::vector<ConfigField> fields = {
      {"warpgroups", texts({1, 2, 3, 4})},
      {"block_n", texts({32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256})},
      {"stages", texts({1, 2, 3, 4, 5, 6})},
      {"schedule", {"qk_first", "pv_first", "pv_first_queued", "in_turn"}},
      {"min_ctas", texts({1, 2, 3, 4})},
      {"row_groups", texts({0, 1, 2, 4})},
      {"cluster", texts({1, 2, 4})},
      {"sum_rounded_p", either()}};
  if (!sm90::is_8bit_pv(c)) return fields;
  fields.push_back({"pv_columns", texts({16, 32, 64, 96, 128, 192, 256})});
  fields.push_back({"pv_buffers", texts({1, 2})});
  return fields;
}

std::vector<ConfigField> fields_of(const Sm80ForwardConfig&) {
  return {{"block_m", texts({16, 32, 64, 128})},
          {"block_n", texts({16, 32, 64, 128})},
          {"warps_m", texts({1, 2, 4, 8})},
          {"warps_n", texts({1, 2, 4, 8})},
          {"stages", texts({1, 2, 3, 4})},
          {"v_barrier", either()},
          {"q_in_registers", either()},
          {"k_tiles", texts({1, 2, 4, 8})},
          {"v_tiles", texts({1, 2, 4, 8})},
          {"producer_warps", texts({0, 1, 2, 4})},
          {"persistent", either()},
          {"unroll", texts({1, 2})},
          {"keep_kv", either()}};
}

std::vector<ConfigField> fields_of(const LadderConfig&) { return {}; }

Status is_feasible(const LadderConfig&) { return {}; }
Status is_feasible(const Sm90ForwardConfig& c) { return feasible(c, 90); }
Status is_feasible(const Sm80ForwardConfig& c) { return feasible(c, c.arch); }

Result<Sm90ForwardConfig> parsed(std::string_view text, const Sm90ForwardConfig& defaults) {
  return parse_sm90_forward(text, defaults);
}
Result<Sm80ForwardConfig> parsed(std::string_view text, const Sm80ForwardConfig& defaults) {
  return parse_sm80_forward(text, defaults);
}

Result<LadderConfig> parsed(std::string_view text, const LadderConfig& defaults) {
  if (text.empty()) return defaults;
  return parse_ladder(text);
}

}  // namespace

Result<KernelConfig> ConfigSpace::parse(std::string_view text, const KernelConfig& defaults) const {
  return std::visit(
      [&](const auto& from) -> Result<KernelConfig> {
        const auto config = parsed(text, from);
        if (!config.ok()) return config.status();
        return KernelConfig(*config);
      },
      defaults);
}

Result<ConfigSpace> ConfigSpace::around(std::string_view config) {
  ConfigSpace space;
  if (names_sm90_forward(config)) {
    space.kernel_ = "sm90_forward";
    space.base_config_ = Sm90ForwardConfig{};
  } else if (config.starts_with("rung=")) {
    space.kernel_ = "ladder";
    space.base_config_ = LadderConfig{};
  } else if (names_decode(config)) {
    return unsupported("the configuration", fmt::format("'{}'", config),
                       "Sm90ForwardConfig, Sm80ForwardConfig, a kernel of the ladder");
  } else {
    space.kernel_ = "sm80_forward";
    space.base_config_ = Sm80ForwardConfig{};
  }
  const Result<KernelConfig> base = space.parse(config, space.base_config_);
  if (!base.ok()) return base.status();
  space.base_config_ = *base;
  const Status status = std::visit([](const auto& c) { return is_feasible(c); }, *base);
  OCTAVO_RETURN_IF_ERROR(status);
  space.base_ = std::visit([](const auto& c) { return to_text(c); }, *base);
  space.fields_ = std::visit([](const auto& c) { return fields_of(c); }, *base);
  return space;
}

Result<std::string> ConfigSpace::complete(std::string_view text, const std::string& from) const {
  const Result<KernelConfig> defaults = parse(from, base_config_);
  if (!defaults.ok()) return defaults.status();
  const Result<KernelConfig> config = parse(text, *defaults);
  if (!config.ok()) return config.status();
  const auto values = [](const KernelConfig& c) {
    return std::visit([](const auto& each) { return values_of(each); }, c);
  };
  const Values before = values(base_config_);
  for (const auto& [name, value] : values(*config)) {
    const bool is_free = std::any_of(fields_.begin(), fields_.end(),
                                     [&](const ConfigField& field) { return field.name == name; });
    if (!is_free && value != before.at(name))
      return invalid(
          fmt::format("config.{}", name), value,
          fmt::format("{} as in the task, because it changes what is computed", before.at(name)));
  }
  OCTAVO_RETURN_IF_ERROR(std::visit([](const auto& c) { return is_feasible(c); }, *config));
  return std::visit([](const auto& c) { return to_text(c); }, *config);
}

const KernelConfig* ConfigSpace::parsed_whole(const std::string& config) const {
  const auto found = parsed_.find(config);
  if (found != parsed_.end()) return &found->second;
  const Result<KernelConfig> made = parse(config, base_config_);
  return made.ok() ? &parsed_.emplace(config, *made).first->second : nullptr;
}

std::optional<std::string> ConfigSpace::with(const std::string& from,
                                             const Changes& changes) const {
  const KernelConfig* const defaults = parsed_whole(from);
  if (defaults == nullptr) return std::nullopt;
  KernelConfig config = *defaults;
  return std::visit(
      [&](auto& each) -> std::optional<std::string> {
        for (const auto& [field, value] : changes) set_field(each, field, value);
        if (!is_feasible(each).ok()) return std::nullopt;
        return to_text(each);
      },
      config);
}

std::string ConfigSpace::value(const std::string& config, std::string_view field) const {
  const KernelConfig* const parsed_config = parsed_whole(config);
  if (parsed_config == nullptr) return {};
  return std::visit([&](const auto& each) { return field_text(each, field); }, *parsed_config);
}

std::vector<Lever> ConfigSpace::levers(const std::string& from, const std::string& to) const {
  std::vector<Lever> levers;
  for (const ConfigField& field : fields_) {
    const std::string now = value(to, field.name);
    if (now != value(from, field.name))
      levers.push_back({field.name, fmt::format("{}={}", field.name, now), ""});
  }
  return levers;
}

std::string ConfigSpace::brief(const std::string& config) const {
  const Result<KernelConfig> parsed_config = parse(config, base_config_);
  if (!parsed_config.ok()) return config;
  return std::visit([](const auto& c) { return brief_text(c); }, *parsed_config);
}

std::vector<std::string> ConfigSpace::all(std::size_t most) const {
  std::vector<std::string> found;
  // Counts through the values like an odometer.
  std::vector<std::size_t> at(fields_.size(), 0);
  while (found.size() < most) {
    Changes changes;
    for (std::size_t i = 0; i < fields_.size(); ++i)
      changes.emplace_back(fields_[i].name, fields_[i].values[at[i]]);
    if (std::optional<std::string> config = with(base_, changes); config)
      found.push_back(*std::move(config));
    std::size_t digit = fields_.size();
    while (digit > 0 && ++at[digit - 1] == fields_[digit - 1].values.size()) at[--digit] = 0;
    if (digit == 0) break;
  }
  return found;
}

}  // namespace octavo::evolve
