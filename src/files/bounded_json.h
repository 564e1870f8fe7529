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
int nesting_of(std::string_view text);

// is_discarded() if the text is not JSON or nested deeper than `deepest`.
nlohmann::json parse_bounded(std::string_view text, int deepest);
// The same, with the members of objects in their order in the text.
nlohmann::ordered_json parse_bounded_in_order(std::string_view text, int deepest);

// Parsed JSON for code that must survive a failed allocation. Json allocates when it destroys
// arrays and objects, and terminates the program if that fails: this holder, into which the text is
// parsed directly, empties them from the leaves up, which does not allocate.
class ParsedJson {
 public:
  ParsedJson() = default;
  ParsedJson(const ParsedJson&) = delete;
  ParsedJson& operator=(const ParsedJson&) = delete;
  ~ParsedJson();

  // False if the text is not JSON or nested deeper than `deepest`.
  bool parse(std::string_view text, int deepest);
  const nlohmann::json& root() const { return root_; }

 private:
  nlohmann::json root_;
};

}  // namespace octavo
