// Tables and numbers as text.
#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

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

std::string without_trailing_space(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row[c]));
    widths.push_back(width);
  }
  std::string text;
  const auto add_line = [&](const auto& cell) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      line += (c == 0 ? "" : "  ") + padded(cell(c), widths[c], columns_[c].align);
    }
    text += without_trailing_space(std::move(line)) + "\n";
  };
  add_line([&](std::size_t c) { return columns_[c].title; });
  add_line([&](std::size_t c) { return std::string(widths[c], '-'); });
  for (const auto& row : rows_) {
    add_line([&](std::size_t c) { return row[c]; });
  }
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
    const std::size_t space = text.rfind(' ', room);
    // A word wider than the line is not broken, because paths and case names must stay whole.
    const std::size_t cut =
        space == std::string_view::npos || space <= indent ? text.find(' ', room) : space;
    if (cut == std::string_view::npos) break;
    out += std::string(text.substr(0, cut)) + "\n" + std::string(indent, ' ');
    text.remove_prefix(cut + 1);
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
