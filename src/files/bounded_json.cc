// SPDX-License-Identifier: Apache-2.0
#include "files/bounded_json.h"

namespace octavo {
namespace {

template <class Json>
Json parse(std::string_view text, int deepest) {
  if (nesting_of(text) > deepest) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

void clear(nlohmann::json& value) {
  if (!value.is_structured()) return;
  for (nlohmann::json& part : value) clear(part);
  value.clear();
}

}  // namespace

int nesting_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = ++depth > deepest ? depth : deepest;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

nlohmann::json parse_bounded(std::string_view text, int deepest) {
  return parse<nlohmann::json>(text, deepest);
}

nlohmann::ordered_json parse_bounded_in_order(std::string_view text, int deepest) {
  return parse<nlohmann::ordered_json>(text, deepest);
}

ParsedJson::~ParsedJson() { clear(root_); }

bool ParsedJson::parse(std::string_view text, int deepest) {
  if (nesting_of(text) > deepest) return false;
  nlohmann::detail::json_sax_dom_parser<nlohmann::json> into(root_, /*allow_exceptions=*/false);
  return nlohmann::json::sax_parse(text, &into);
}

}  // namespace octavo
