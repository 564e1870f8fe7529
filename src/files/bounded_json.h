// SPDX-License-Identifier: Apache-2.0
// Parses JSON of untrusted files. A parsed bracket takes eighty times its byte in memory, so the
// nesting is measured before anything is allocated. (The parser's own filter callback would do, but
// visits all members of an object again at the end of each: quadratic time.)
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace octavo {

// Deeper than any report of the command.
inline constexpr int kReportNesting = 16;

// Nesting up to the first error of the text, if it has one.
inline int nesting_of(std::string_view text) {
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

// is_discarded() if the text is not JSON or nested deeper than `deepest`.
template <class Json = nlohmann::json>
Json parse_bounded(std::string_view text, int deepest) {
  if (nesting_of(text) > deepest) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Parsed JSON for code that must survive a failed allocation. Json allocates when it destroys
// arrays and objects, and terminates the program if that fails: this holder, into which the text is
// parsed directly, empties them from the leaves up, which does not allocate.
class ParsedJson {
 public:
  ParsedJson() = default;
  ParsedJson(const ParsedJson&) = delete;
  ParsedJson& operator=(const ParsedJson&) = delete;
  ~ParsedJson() { clear(root_); }

  // False if the text is not JSON or nested deeper than `deepest`.
  bool parse(std::string_view text, int deepest) {
    if (nesting_of(text) > deepest) return false;
    nlohmann::detail::json_sax_dom_parser<nlohmann::json> into(root_, /*allow_exceptions=*/false);
    return nlohmann::json::sax_parse(text, &into);
  }
  const nlohmann::json& root() const { return root_; }

 private:
  static void clear(nlohmann::json& value) {
    if (!value.is_structured()) return;
    for (nlohmann::json& part : value) clear(part);
    value.clear();
  }
  nlohmann::json root_;
};

}  // namespace octavo
