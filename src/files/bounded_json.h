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

}  // namespace octavo
