// SPDX-License-Identifier: Apache-2.0
// What a child process gives up before it runs anything: see isolate.h.
#pragma once

#include <string>
#include <vector>

#include "evolve/isolation/isolate.h"

namespace octavo::evolve {

// Called in the child. Returns the protections that the system does not allow.
std::vector<std::string> enter_sandbox(const Limits& limits);

// The system calls of `untrusted_code`. One of them ends the process with `kForbiddenExit`, after
// its number has been written to the descriptor `report_to`, as 4 bytes after kForbiddenMark.
// Returns false if the system has no filters.
bool forbid_calls(int report_to);
inline constexpr int kForbiddenExit = 121;
inline constexpr char kForbiddenMark[] = "\nforbidden ";

// "fork" for its number; the number if it has no name here.
std::string name_of_call(int number);

}  // namespace octavo::evolve
