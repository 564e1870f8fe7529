// SPDX-License-Identifier: Apache-2.0
// Colour for reports and errors, on a terminal and nowhere else.
#pragma once

#include <string>
#include <string_view>

namespace octavo::cli {

// Whether the file descriptor is a terminal that shows colour. $NO_COLOR, if it is not empty, and
// TERM=dumb turn colour off (no-color.org).
bool shows_colour(int descriptor);

// A report with its table headings in bold and its verdicts in green and red. Removing the escape
// sequences gives the same text again.
std::string in_colour(std::string_view report);

// The name of the program before an error sentence, in red.
std::string error_prefix(bool colour);

}  // namespace octavo::cli
