// A small text file, whole.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// At most 64 MiB; the sentence of a failure is led by the flag and the path.
Result<std::string> read_text_file(std::string_view flag, const std::string& path);

}  // namespace octavo::cli
