// Error messages about files and flags: one sentence each, safe to print even if it quotes an
// untrusted file.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// "<subject> is <value>; supported: <supported>."
Status bad_input(std::string_view subject, std::string_view value, std::string_view supported);

Status io_failure(std::string message);

// The same status, with "<context>: " before its message.
Status in_context(std::string_view context, const Status& status);

// In single quotes, truncated to 60 characters, everything but printable ASCII escaped.
std::string in_quotes(std::string_view text);

}  // namespace octavo::cli
