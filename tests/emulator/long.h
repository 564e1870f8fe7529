// `make test-long` sets OCTAVO_TEST_LONG: more schedules, every kernel.
#pragma once

#include <cstdlib>

namespace octavo {

inline bool test_long() { return std::getenv("OCTAVO_TEST_LONG") != nullptr; }

// How many random problems a test draws: OCTAVO_EMULATED_PROBLEMS, or few.
inline int random_problems(int few) {
  const char* const asked = std::getenv("OCTAVO_EMULATED_PROBLEMS");
  return asked == nullptr ? few : std::atoi(asked);
}

}  // namespace octavo
