// `make test-long` sets OCTAVO_TEST_LONG: more schedules, every kernel.
#pragma once

#include <cstdlib>

namespace octavo {

inline bool test_long() { return std::getenv("OCTAVO_TEST_LONG") != nullptr; }

}  // namespace octavo
