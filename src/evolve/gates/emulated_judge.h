// Checks of a candidate in the emulator: the kernel is built if the library does not have it, and
// it runs in a child that may do nothing else. "Not done" if there is no compiler or no emulator.
#pragma once

#include <optional>
#include <vector>

#include "evolve/gates/subject.h"

namespace octavo::evolve {

// Runs the cases under each schedule, against fp64 attention. Outputs are poisoned before each run
// and have guards. The first failure is the reason.
GateOutcome emulate_cases(const Subject& subject, const Context& context, std::string_view gate,
                          const std::vector<evidence::Case>& cases,
                          const std::vector<std::optional<std::uint64_t>>& schedules);

// Counts the products of two problems, and compares them with what the problems have.
GateOutcome emulate_products(const Subject& subject, const Context& context, std::string_view gate);

// Less than this share of the products that a problem has is skipped work.
inline constexpr double kLeastShare = 0.95;

}  // namespace octavo::evolve
