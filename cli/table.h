// SPDX-License-Identifier: Apache-2.0
// Text output: aligned tables, and blocks of "name  value" lines.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octavo::cli {

inline constexpr std::size_t kTextWidth = 100;

// A table of at most kTextWidth columns: if its cells are wider, titles and then the widest columns
// of text continue on further lines, broken at spaces and after commas. Words and numbers stay
// whole.
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::right;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add_row(std::vector<std::string> cells);  // as many as there are columns
  std::string text() const;

 private:
  std::vector<std::size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Long values continue under their own column.
std::string field_lines(const std::vector<std::pair<std::string, std::string>>& fields);

// Breaks at spaces, and words that are too long after commas, so that no line is wider than
// kTextWidth; all but the first are indented.
std::string wrapped(std::string_view text, std::size_t indent);

std::string short_number(double value);     // four significant digits, no exponent up to 1e6
std::string error_number(double value);     // 1.23e-04
std::string byte_count(std::size_t bytes);  // 1.5 MiB
std::string duration(double microseconds);  // 12.3 us, 4.56 ms, 1.2 s

}  // namespace octavo::cli
