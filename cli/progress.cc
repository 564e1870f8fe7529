// SPDX-License-Identifier: Apache-2.0
// Draws the progress bar.
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace octavo::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuiet{2000};
constexpr milliseconds kBetweenDraws{100};
constexpr std::int64_t kBarColumns = 30;
constexpr const char* kClearLine = "\r\x1b[K";

milliseconds steady_now() {
  return std::chrono::duration_cast<milliseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

void write_stderr(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : ProgressBar(std::move(label), ::isatty(STDERR_FILENO) == 1, steady_now, write_stderr) {}

ProgressBar::ProgressBar(std::string label, bool terminal, Clock clock, Sink sink)
    : label_(std::move(label)),
      terminal_(terminal),
      clock_(std::move(clock)),
      sink_(std::move(sink)),
      start_(clock_()) {}

ProgressBar::~ProgressBar() {
  if (drawn_) sink_(kClearLine);
}

void ProgressBar::update(std::int64_t done, std::int64_t total) {
  if (!terminal_ || total <= 0) return;
  const milliseconds now = clock_();
  if (now - start_ < kQuiet || (drawn_ && now - drawn_at_ < kBetweenDraws)) return;
  const std::int64_t shown = std::clamp<std::int64_t>(done, 0, total);
  const auto filled = static_cast<std::size_t>(static_cast<double>(shown) /
                                               static_cast<double>(total) * kBarColumns);
  sink_(fmt::format("{}{} [{}{}] {}/{}", kClearLine, label_, std::string(filled, '#'),
                    std::string(kBarColumns - filled, '.'), shown, total));
  drawn_ = true;
  drawn_at_ = now;
}

}  // namespace octavo::cli
