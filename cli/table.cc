// SPDX-License-Identifier: Apache-2.0
// Tables and numbers as text.
#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace octavo::cli {
namespace {

// Columns on a terminal, for text whose characters are all one column wide.
std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string padded(std::string_view text, std::size_t width, Table::Align align) {
  const std::string space(width - std::min(width, display_width(text)), ' ');
  return align == Table::Align::left ? std::string(text) + space : space + std::string(text);
}

constexpr std::size_t kBetweenColumns = 2;

// Where a cell may continue on the next line: behind each space or comma.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(" ,");
    const std::size_t length = end == std::string_view::npos ? text.size() : end + 1;
    words.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return words;
}

std::size_t width_of_word(std::string_view word) {
  return display_width(word.ends_with(' ') ? word.substr(0, word.size() - 1) : word);
}

std::size_t longest_word(std::string_view text) {
  std::size_t longest = 0;
  for (const std::string_view word : words_of(text))
    longest = std::max(longest, width_of_word(word));
  return longest;
}

// The lines of a cell in a column of that width.
std::vector<std::string> broken(std::string_view text, std::size_t width) {
  std::vector<std::string> lines = {""};
  if (display_width(text) <= width) return {std::string(text)};
  for (const std::string_view word : words_of(text)) {
    if (!lines.back().empty() && display_width(lines.back()) + width_of_word(word) > width)
      lines.emplace_back();
    lines.back() += word;
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::string without_trailing_space(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

// Each column as wide as its widest cell, if the table then fits. Otherwise titles continue on
// further lines, and then the widest column of text gives up space, down to its longest word.
std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> cells, words, widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    cells.push_back(longest_word(columns_[c].title));
    words.push_back(cells.back());
    widths.push_back(display_width(columns_[c].title));
    for (const auto& row : rows_) {
      cells.back() = std::max(cells.back(), display_width(row[c]));
      const bool breaks = columns_[c].align == Align::left;
      words.back() = std::max(words.back(), breaks ? longest_word(row[c]) : cells.back());
    }
    widths.back() = std::max(widths.back(), cells.back());
  }
  const auto excess = [&widths] {
    const std::size_t total =
        std::accumulate(widths.begin(), widths.end(), kBetweenColumns * (widths.size() - 1));
    return total > kTextWidth ? total - kTextWidth : 0;
  };
  // Titles first, from the left, then whole cells.
  for (std::size_t c = 0; c < widths.size(); ++c)
    widths[c] -= std::min(excess(), widths[c] - cells[c]);
  for (std::size_t over = excess(); over > 0; over = excess()) {
    std::size_t widest = widths.size();
    for (std::size_t c = 0; c < widths.size(); ++c)
      if (widths[c] > words[c] && (widest == widths.size() || widths[c] > widths[widest]))
        widest = c;
    if (widest == widths.size()) break;
    --widths[widest];
  }
  return widths;
}

std::string Table::text() const {
  if (columns_.empty()) return "";
  const std::vector<std::size_t> wide = widths();
  std::string text;
  const auto add_row = [&](const auto& cell) {
    std::vector<std::vector<std::string>> parts;
    std::size_t lines = 1;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      parts.push_back(broken(cell(c), wide[c]));
      lines = std::max(lines, parts.back().size());
    }
    for (std::size_t i = 0; i < lines; ++i) {
      std::string line;
      for (std::size_t c = 0; c < columns_.size(); ++c)
        line += (c == 0 ? "" : std::string(kBetweenColumns, ' ')) +
                padded(i < parts[c].size() ? parts[c][i] : "", wide[c], columns_[c].align);
      text += without_trailing_space(std::move(line)) + "\n";
    }
  };
  add_row([&](std::size_t c) { return columns_[c].title; });
  add_row([&](std::size_t c) { return std::string(wide[c], '-'); });
  for (const auto& row : rows_) add_row([&](std::size_t c) { return row[c]; });
  return text;
}

std::string field_lines(const std::vector<std::pair<std::string, std::string>>& fields) {
  std::size_t width = 0;
  for (const auto& field : fields) width = std::max(width, display_width(field.first));
  std::string text;
  for (const auto& [title, value] : fields) {
    text += wrapped(padded(title, width, Table::Align::left) + "  " + value, width + 2) + "\n";
  }
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out;
  while (display_width(text) > kTextWidth - (out.empty() ? 0 : indent)) {
    const std::size_t room = kTextWidth - (out.empty() ? 0 : indent);
    // A word wider than the line breaks after a comma, as a configuration does, or not at all:
    // paths and case names must stay whole.
    std::size_t cut = text.rfind(' ', room), next = cut + 1;
    if (cut == std::string_view::npos || cut <= indent) {
      const std::size_t comma = text.rfind(',', room - 1);
      const bool at_comma = comma != std::string_view::npos && comma > indent;
      cut = at_comma ? comma + 1 : text.find(' ', room);
      next = at_comma ? cut : cut + 1;
    }
    if (cut == std::string_view::npos) break;
    out += std::string(text.substr(0, cut)) + "\n" + std::string(indent, ' ');
    text.remove_prefix(next);
  }
  return out + std::string(text);
}

std::string short_number(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double magnitude = std::abs(value);
  if (magnitude != 0 && (magnitude < 1e-3 || magnitude >= 1e7)) return fmt::format("{:.3e}", value);
  const int digits = magnitude >= 1000 ? 0 : magnitude >= 100 ? 1 : magnitude >= 10 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

std::string error_number(double value) { return fmt::format("{:.2e}", value); }

std::string byte_count(std::size_t bytes) {
  constexpr double kKibi = 1024;
  const auto count = static_cast<double>(bytes);
  if (count < kKibi) return fmt::format("{} B", bytes);
  if (count < kKibi * kKibi) return fmt::format("{:.1f} KiB", count / kKibi);
  if (count < kKibi * kKibi * kKibi) return fmt::format("{:.1f} MiB", count / (kKibi * kKibi));
  return fmt::format("{:.1f} GiB", count / (kKibi * kKibi * kKibi));
}

std::string duration(double microseconds) {
  if (microseconds < 1e3) return fmt::format("{:.1f} us", microseconds);
  if (microseconds < 1e6) return fmt::format("{:.2f} ms", microseconds / 1e3);
  return fmt::format("{:.2f} s", microseconds / 1e6);
}

}  // namespace octavo::cli
