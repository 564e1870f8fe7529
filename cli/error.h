// How the command words what is wrong with a file or a flag: one sentence, made in one place, and
// safe to print whatever a hostile file put into it.
#pragma once

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

// "<subject> is <value>; supported: <supported>."
Status bad_input(std::string_view subject, std::string_view value, std::string_view supported);

Status io_failure(std::string message);

// The same status, its sentence led by "<context>: ".
Status in_context(std::string_view context, const Status& status);

// In single quotes, cut to 60 characters, everything but printable ASCII escaped.
std::string in_quotes(std::string_view text);

}  // namespace octavo::cli
