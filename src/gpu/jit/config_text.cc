// SPDX-License-Identifier: Apache-2.0
// Writes and parses configurations by visiting their fields.
#include "gpu/jit/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "gpu/jit/config_fields.h"

namespace octavo {
namespace {

template <class T>
concept Enumeration = std::is_enum_v<T>;

std::string value_text(bool value) { return value ? "true" : "false"; }
std::string value_text(int value) { return fmt::format("{}", value); }
template <Enumeration Enum>
std::string value_text(Enum value) {
  return fmt::format("{}{}", EnumText<Enum>::kPrefix,
                     EnumText<Enum>::kNames.at(static_cast<std::size_t>(value)));
}

bool parse_value(std::string_view text, bool& value) {
  if (text == "true" || text == "1") return value = true;
  value = false;
  return text == "false" || text == "0";
}
bool parse_value(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
template <Enumeration Enum>
bool parse_value(std::string_view text, Enum& value) {
  if (text.starts_with(EnumText<Enum>::kPrefix)) text.remove_prefix(EnumText<Enum>::kPrefix.size());
  const auto& names = EnumText<Enum>::kNames;
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return false;
  value = static_cast<Enum>(found - names.begin());
  return true;
}

std::string supported_values(bool) { return "true, false"; }
std::string supported_values(int) { return "an integer of 32 bits"; }
template <Enumeration Enum>
std::string supported_values(Enum) {
  return fmt::format("{}", fmt::join(EnumText<Enum>::kNames, ", "));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The part of an untrusted text that a message may repeat.
std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kLongest ? "...'" : "'");
}

struct Field {
  std::string name, value;
  bool operator==(const Field&) const = default;
};

template <class Config>
std::vector<Field> fields_of(const Config& config) {
  std::vector<Field> fields;
  visit_values(config, [&](const std::string& name, const auto& value) {
    fields.push_back({name, value_text(value)});
  });
  return fields;
}

template <class Config>
std::string field_names() {
  std::string names;
  for (const Field& field : fields_of(Config())) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

template <class Struct>
std::string value_text(const Struct& fields) requires std::is_class_v<Struct> {
  std::string text = "{";
  visit_fields(fields, [&](std::string_view name, const auto& field) {
    fmt::format_to(std::back_inserter(text), "{}.{}={}", text.size() == 1 ? "" : ",", name,
                   value_text(field));
  });
  return text + "}";
}

template <class Config>
std::string text_of(const Config& config) {
  return std::string(kTypeName<Config>) + value_text(config);
}

// Reads "field=value" items into a configuration.
template <class Config>
class Parser {
 public:
  explicit Parser(Config& config) : config_(config) {}

  // The fields of the configuration or, with a prefix such as "modifiers.", of a struct in it.
  Status read_fields(std::string_view text, const std::string& prefix = {}) {
    while (!text.empty()) {
      const std::size_t end = end_of_item(text);
      OCTAVO_RETURN_IF_ERROR(read_field(trimmed(text.substr(0, end)), prefix));
      text = end == std::string_view::npos ? std::string_view() : trimmed(text.substr(end + 1));
    }
    return {};
  }

 private:
  // The first comma that is not within braces.
  static std::size_t end_of_item(std::string_view text) {
    const std::size_t comma = text.find(','), open = text.find('{');
    return open < comma ? text.find(',', text.find('}', open)) : comma;
  }

  Status read_field(std::string_view item, const std::string& prefix) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) return invalid("config", quoted(item), "field=value");
    std::string_view own_name = trimmed(item.substr(0, equals));
    if (own_name.starts_with('.')) own_name = trimmed(own_name.substr(1));
    const std::string name = prefix + std::string(own_name);
    const std::string_view value = trimmed(item.substr(equals + 1));
    if (prefix.empty() && value.starts_with('{') && value.ends_with('}'))
      return read_fields(trimmed(value.substr(1, value.size() - 2)), name + ".");
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end())
      return invalid("config", quoted(name) + " twice", "each field once");
    seen_.push_back(name);
    return read_value(name, value);
  }

  Status read_value(const std::string& name, std::string_view value) {
    bool known = false;
    Status status;
    visit_values(config_, [&](const std::string& field_name, auto& field) {
      if (field_name != name) return;
      known = true;
      if (!parse_value(value, field))
        status = invalid("config." + name, quoted(value), supported_values(field));
    });
    if (!known) return invalid("config field", quoted(name), field_names<Config>());
    return status;
  }

  Config& config_;
  std::vector<std::string> seen_;
};

// Enumerators without their prefix.
std::string brief_text(const std::vector<Field>& fields, const std::vector<Field>& defaults) {
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (fields[i] == defaults[i] || fields[i].name == "arch") continue;
    std::string value = fields[i].value;
    if (const std::size_t prefix = value.find("::"); prefix != std::string::npos)
      value.erase(0, prefix + 2);
    text += (text.empty() ? "" : ",") + fields[i].name + "=" + value;
  }
  return text;
}

template <class Config>
std::string brief_of(const Config& config) {
  return brief_text(fields_of(config), fields_of(Config()));
}

template <class Config>
Result<Config> parse(std::string_view text, Config config) {
  constexpr std::string_view type = kTypeName<Config>;
  text = trimmed(text);
  if (text.starts_with(type)) text = trimmed(text.substr(type.size()));
  const auto count = [text](char brace) { return std::count(text.begin(), text.end(), brace); };
  const bool opened = text.starts_with('{');
  if (count('{') != count('}') || (opened && !text.ends_with('}')))
    return invalid("config", quoted(text), fmt::format("{}{{.field=value,...}}", type));
  if (opened) text = trimmed(text.substr(1, text.size() - 2));
  OCTAVO_RETURN_IF_ERROR(Parser<Config>(config).read_fields(text));
  return config;
}

}  // namespace

std::string brief_text(const Sm80ForwardConfig& config) { return brief_of(config); }
std::string brief_text(const Sm90ForwardConfig& config) { return brief_of(config); }
std::string brief_text(const QuantizeConfig& config) { return brief_of(config); }
std::string brief_text(const DecodeConfig& config) { return brief_of(config); }
std::string brief_text(const AppendConfig& config) { return brief_of(config); }
std::string brief_text(const Sm80BackwardConfig& config) { return brief_of(config); }
std::string brief_text(const Sm90BackwardConfig& config) { return brief_of(config); }
std::string brief_text(const RowStatsConfig& config) { return brief_of(config); }

std::string to_text(const Sm80ForwardConfig& config) { return text_of(config); }
std::string to_text(const Sm90ForwardConfig& config) { return text_of(config); }
std::string to_text(const QuantizeConfig& config) { return text_of(config); }
std::string to_text(const DecodeConfig& config) { return text_of(config); }
std::string to_text(const AppendConfig& config) { return text_of(config); }
std::string to_text(const Sm80BackwardConfig& config) { return text_of(config); }
std::string to_text(const Sm90BackwardConfig& config) { return text_of(config); }
std::string to_text(const RowStatsConfig& config) { return text_of(config); }

Result<Sm80ForwardConfig> parse_sm80_forward(std::string_view text,
                                             const Sm80ForwardConfig& defaults) {
  return parse(text, defaults);
}
Result<Sm90ForwardConfig> parse_sm90_forward(std::string_view text,
                                             const Sm90ForwardConfig& defaults) {
  return parse(text, defaults);
}

Result<Sm80BackwardConfig> parse_sm80_backward(std::string_view text,
                                               const Sm80BackwardConfig& defaults) {
  return parse(text, defaults);
}

Result<DecodeConfig> parse_decode(std::string_view text, const DecodeConfig& defaults) {
  return parse(text, defaults);
}

bool names_sm90_forward(std::string_view text) {
  return trimmed(text).starts_with(kTypeName<Sm90ForwardConfig>);
}

bool names_decode(std::string_view text) {
  return trimmed(text).starts_with(kTypeName<DecodeConfig>);
}

Result<QuantizeConfig> parse_quantize(std::string_view text, const QuantizeConfig& defaults) {
  return parse(text, defaults);
}

std::string sm80_forward_fields() { return field_names<Sm80ForwardConfig>(); }

}  // namespace octavo
