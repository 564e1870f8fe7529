// SPDX-License-Identifier: Apache-2.0
// Formats the messages of error.h.
#include "error.h"

#include <fmt/format.h>

namespace octavo::cli {

Status bad_input(std::string_view subject, std::string_view value, std::string_view supported) {
  return {ErrorCode::invalid_argument,
          fmt::format("{} is {}; supported: {}.", subject, value, supported)};
}

Status io_failure(std::string message) { return {ErrorCode::io_error, std::move(message)}; }

Status in_context(std::string_view context, const Status& status) {
  return {status.code(), fmt::format("{}: {}", context, status.message())};
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  out += text.size() > kLongest ? "...'" : "'";
  return out;
}

}  // namespace octavo::cli
