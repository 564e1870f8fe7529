// SPDX-License-Identifier: Apache-2.0
// Error messages about files and flags: one sentence each, safe to print even if it quotes an
// untrusted file.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// The error "<subject> is <value>; supported: <supported>."
Status bad_input(std::string_view subject, std::string_view value, std::string_view supported);

Status io_failure(std::string message);

// Puts "<context>: " before the message of a status.
Status in_context(std::string_view context, const Status& status);

// Quotes a text in single quotes, truncated to 60 characters. Everything but printable ASCII is
// escaped.
std::string in_quotes(std::string_view text);

}  // namespace octavo::cli
