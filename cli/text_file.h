// SPDX-License-Identifier: Apache-2.0
// Reads a whole small text file.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// Reads at most 64 MiB. Error messages begin with the flag and the path.
Result<std::string> read_text_file(std::string_view flag, const std::string& path);

}  // namespace octavo::cli
