// Reads a whole small text file.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// At most 64 MiB; an error message starts with the flag and the path.
Result<std::string> read_text_file(std::string_view flag, const std::string& path);

}  // namespace octavo::cli
