// SPDX-License-Identifier: Apache-2.0
// Describes two accesses to the same bytes of shared memory that nothing orders.
#pragma once

#include <cstdint>

#include "emulator/memory/shared_memory.h"

namespace octavo::emulator {

struct Conflict {
  enum class Kind : std::uint8_t {
    uninitialised,
    read_after_write,
    write_after_write,
    write_after_read,
    no_proxy_fence,
  };
  Kind kind = Kind::uninitialised;
};

void report_conflict(Machine& machine, const By& later, const Access& earlier,
                     const Conflict& conflict, std::uint32_t offset, std::uint32_t bytes);

}  // namespace octavo::emulator
