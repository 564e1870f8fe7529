// SPDX-License-Identifier: Apache-2.0
// Plots time against error as SVG: one panel for each distribution and size, time on the x axis,
// relative error on the y axis, both logarithmic, and one point for each precision mode.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "octavo/accuracy.hpp"

namespace octavo {
namespace {

constexpr double kWidth = 360, kHeight = 260, kLeft = 52, kTop = 34, kRight = 70, kBottom = 40;
constexpr int kColumns = 3;

// A logarithmic axis whose ends are powers of ten.
class Axis {
 public:
  Axis(double least, double most, double from, double to)
      : low_(std::floor(std::log10(least))),
        high_(std::max(std::ceil(std::log10(most)), low_ + 1)),
        from_(from),
        to_(to) {}

  double at(double value) const {
    return from_ + (to_ - from_) * (std::log10(value) - low_) / (high_ - low_);
  }
  int low() const { return static_cast<int>(low_); }
  int high() const { return static_cast<int>(high_); }

 private:
  double low_, high_, from_, to_;
};

struct Panel {
  std::string title;
  std::vector<const AccuracyRow*> rows;
};

bool has_point(const AccuracyRow& row) {
  return row.not_available.empty() && row.us && *row.us > 0 && row.total.relative_rmse > 0;
}

std::vector<Panel> panels_of(const AccuracyReport& report) {
  std::vector<Panel> panels;
  for (const AccuracyRow& row : report.rows) {
    if (!has_point(row)) continue;
    const std::string title = fmt::format("{} (1, {}, {}, {}), {} keys", row.data, row.heads,
                                          row.seqlen_q, row.head_dim, row.seqlen_kv);
    if (panels.empty() || panels.back().title != title) panels.push_back({title, {}});
    panels.back().rows.push_back(&row);
  }
  return panels;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view words) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     words);
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  for (int e = x.low(); e <= x.high(); ++e) {
    const double at = x.at(std::pow(10.0, e));
    svg += fmt::format("<path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/>\n", at, kTop, bottom);
    svg += text_at(at, bottom + 14, "middle", fmt::format("1e{}", e));
  }
  for (int e = y.low(); e <= y.high(); ++e) {
    const double at = y.at(std::pow(10.0, e));
    svg += fmt::format("<path class=\"grid\" d=\"M{1} {0:.1f}H{2}\"/>\n", at, kLeft, right);
    svg += text_at(kLeft - 6, at + 4, "end", fmt::format("1e{}", e));
  }
  return svg;
}

std::string panel_svg(const Panel& panel) {
  double least_us = HUGE_VAL, most_us = 0, least_error = HUGE_VAL, most_error = 0;
  for (const AccuracyRow* row : panel.rows) {
    const double fastest = std::min(*row->us, row->prequantized_us.value_or(*row->us));
    least_us = std::min(least_us, fastest);
    most_us = std::max(most_us, *row->us);
    least_error = std::min(least_error, row->total.relative_rmse);
    most_error = std::max(most_error, row->total.relative_rmse);
  }
  const Axis x(least_us, most_us, kLeft, kWidth - kRight);
  const Axis y(least_error, most_error, kHeight - kBottom, kTop);
  std::string svg = text_at(kLeft, 18, "start", panel.title) + grid(x, y);
  for (const AccuracyRow* row : panel.rows) {
    const double at_y = y.at(row->total.relative_rmse), at_x = x.at(*row->us);
    if (row->prequantized_us) {
      const double prequantized_x = x.at(*row->prequantized_us);
      svg += fmt::format("<path class=\"link\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", prequantized_x,
                         at_y, at_x);
      svg += fmt::format("<circle class=\"prequantized\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n",
                         prequantized_x, at_y);
    }
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>\n", at_x, at_y);
    svg += text_at(at_x + 6, at_y + 4, "start", name(row->precision));
  }
  return svg + text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle",
                       "us a call; relative rmse upwards");
}

}  // namespace

Result<std::string> to_svg(const AccuracyReport& report) {
  return without_exceptions([&]() -> Result<std::string> {
    const std::vector<Panel> panels = panels_of(report);
    if (panels.empty())
      return invalid("plot", fmt::format("of a report of {}, which has no times", report.device),
                     "reports of a GPU, where calls are timed");
    const auto count = static_cast<int>(panels.size());
    const int columns = std::min(count, kColumns), rows = (count + kColumns - 1) / kColumns;
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n"
        "<style>.grid{{stroke:#ddd;fill:none}}.link{{stroke:#888;stroke-dasharray:2}}"
        "circle{{fill:#14568f}}.prequantized{{fill:#fff;stroke:#14568f;stroke-width:1.5}}</style>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        columns * kWidth, rows * kHeight + 20);
    for (int i = 0; i < count; ++i)
      svg +=
          fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}</g>\n", i % kColumns * kWidth,
                      i / kColumns * kHeight, panel_svg(panels[static_cast<std::size_t>(i)]));
    svg += text_at(
        10, rows * kHeight + 12, "start",
        "filled: from 16-bit tensors, quantization included; open: operands quantized before");
    return svg + "</svg>\n";
  });
}

}  // namespace octavo
