// SPDX-License-Identifier: Apache-2.0
#include "emulator/report.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace octavo::emulator {
namespace {

constexpr std::size_t kMostFindings = 100;

// Paths relative to src, as in the repository.
std::string_view short_path(std::string_view file) {
  for (const std::string_view folder : {"device/", "tests/", "emulator/"}) {
    const std::size_t at = file.rfind(folder);
    if (at == 0 || (at != std::string_view::npos && file[at - 1] == '/')) return file.substr(at);
  }
  return file;
}

}  // namespace

std::string describe(const Place& place) {
  if (place.site.line == 0) return place.instruction;
  return fmt::format("{} at {}:{}", place.instruction, short_path(place.site.file),
                     place.site.line);
}

const char* name(Hazard hazard) {
  static constexpr std::array kNames = {
      "uninitialised read", "read-write race",     "write-write race",  "copy in flight",
      "operand in flight",  "missing proxy fence", "wgmma order",       "register in flight",
      "mbarrier misuse",    "transaction bytes",   "barrier count",     "partial warp",
      "peer gone",          "unfinished store",    "missing grid wait", "non-coherent read",
      "misaligned",         "out of bounds",       "register budget",   "deadlock",
      "unknown instruction"};
  return kNames[static_cast<std::size_t>(hazard)];
}

std::string describe(const Finding& finding) {
  std::string text = fmt::format("{}: {}\n  kernel   {}\n  where    {}\n", name(finding.hazard),
                                 finding.text, finding.kernel, describe(finding.place));
  if (finding.other.site.line != 0) text += fmt::format("  against  {}\n", describe(finding.other));
  if (!finding.who.empty()) text += fmt::format("  who      {}\n", finding.who);
  if (!finding.address.empty()) text += fmt::format("  address  {}\n", finding.address);
  if (finding.times > 1) text += fmt::format("  times    {}\n", finding.times);
  return text;
}

void Report::add(Finding finding) {
  for (Finding& known : findings_)
    if (known.hazard == finding.hazard && known.place == finding.place &&
        known.other == finding.other) {
      ++known.times;
      return;
    }
  if (!full()) findings_.push_back(std::move(finding));
}

bool Report::full() const { return findings_.size() >= kMostFindings; }

std::string Report::text() const {
  std::string text;
  for (const Finding& finding : findings_) text += describe(finding);
  return text;
}

}  // namespace octavo::emulator
