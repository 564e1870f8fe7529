// SPDX-License-Identifier: Apache-2.0
#include "text_file.h"

#include <fmt/format.h>

#include "error.h"
#include "octavo/file.hpp"

namespace octavo::cli {

Result<std::string> read_text_file(std::string_view flag, const std::string& path) {
  constexpr std::uint64_t kMostBytes = 64 << 20;
  const std::string context = fmt::format("{} {}", flag, in_quotes(path));
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return in_context(context, file.status());
  Result<std::string> text = file->read_all(kMostBytes);
  return text.ok() ? text : in_context(context, text.status());
}

}  // namespace octavo::cli
