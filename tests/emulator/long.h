// SPDX-License-Identifier: Apache-2.0
// `make test-long` sets OCTAVO_TEST_LONG: more schedules, every kernel.
#pragma once

#include <cstdlib>

namespace octavo {

inline bool test_long() { return std::getenv("OCTAVO_TEST_LONG") != nullptr; }

inline int environment_number(const char* name, int otherwise) {
  const char* const asked = std::getenv(name);
  return asked == nullptr ? otherwise : std::atoi(asked);
}
// How many random problems a test draws: OCTAVO_EMULATED_PROBLEMS, or few.
inline int random_problems(int few) { return environment_number("OCTAVO_EMULATED_PROBLEMS", few); }
// The seed of the first of them; processes with seeds far apart share the work.
inline int first_seed() { return environment_number("OCTAVO_EMULATED_SEED", 0); }

}  // namespace octavo
