// SPDX-License-Identifier: Apache-2.0
// A progress bar for work that takes more than two seconds, on a terminal and nowhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace octavo::cli {

class ProgressBar {
 public:
  using Clock = std::function<std::chrono::milliseconds()>;
  using Sink = std::function<void(const std::string&)>;

  explicit ProgressBar(std::string label);  // on stderr, if that is a terminal
  ProgressBar(std::string label, bool terminal, Clock clock, Sink sink);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();  // clears the line

  void update(std::int64_t done, std::int64_t total);

 private:
  std::string label_;
  bool terminal_;
  Clock clock_;
  Sink sink_;
  std::chrono::milliseconds start_, drawn_at_{};
  bool drawn_ = false;
};

}  // namespace octavo::cli
