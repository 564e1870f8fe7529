// SPDX-License-Identifier: Apache-2.0
#include "colour.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

namespace octavo::cli {
namespace {

constexpr std::string_view kBold = "\x1b[1m", kRed = "\x1b[1;31m", kGreen = "\x1b[32m",
                           kPlain = "\x1b[0m";

// The words that say how a check or a gate ended. The longer ones first.
constexpr std::array kVerdicts = {
    std::pair{std::string_view("NOT HELD"), kRed},
    std::pair{std::string_view("FAILED"), kRed},
    std::pair{std::string_view("passed"), kGreen},
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Whether the line is the rule between the heading of a table and its rows.
bool is_rule(std::string_view line) {
  return line.starts_with("--") && line.find_first_not_of("- ") == std::string_view::npos;
}

std::string coloured_verdicts(std::string_view line) {
  std::string out;
  while (!line.empty()) {
    bool found = false;
    for (const auto& [word, colour] : kVerdicts) {
      const bool whole = line.starts_with(word) && (out.empty() || !is_letter(out.back())) &&
                         (line.size() == word.size() || !is_letter(line[word.size()]));
      if (!whole) continue;
      out += fmt::format("{}{}{}", colour, word, kPlain);
      line.remove_prefix(word.size());
      found = true;
      break;
    }
    if (found) continue;
    out += line.front();
    line.remove_prefix(1);
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

bool shows_colour(int descriptor) {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  if (refused != nullptr && *refused != '\0') return false;
  if (terminal != nullptr && std::string_view(terminal) == "dumb") return false;
  return ::isatty(descriptor) == 1;
}

std::string in_colour(std::string_view report) {
  const std::vector<std::string_view> lines = lines_of(report);
  // The lines of a heading: those above the rule of a table, back to the line before the table.
  std::vector<bool> heading(lines.size(), false);
  for (std::size_t rule = 0; rule < lines.size(); ++rule) {
    if (!is_rule(lines[rule])) continue;
    for (std::size_t i = rule; i-- > 0 && !lines[i].empty() && rule - i <= 2;) heading[i] = true;
  }
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i)
    out += (heading[i] ? fmt::format("{}{}{}", kBold, lines[i], kPlain)
                       : coloured_verdicts(lines[i])) +
           "\n";
  if (!report.empty() && report.back() != '\n') out.pop_back();
  return out;
}

std::string error_prefix(bool colour) {
  return colour ? fmt::format("{}octavo:{} ", kRed, kPlain) : "octavo: ";
}

}  // namespace octavo::cli
