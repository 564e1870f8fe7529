// cp.async: a thread's copies from global to shared memory, in groups that complete in order.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/clock.h"

namespace octavo::emulator {

class SharedMemory;

class CopyGroups {
 public:
  struct Copy {
    std::uint32_t offset = 0;
    const std::uint8_t* from = nullptr;
    std::uint32_t bytes = 0, valid = 0;  // what is not valid becomes zero
    std::uint32_t group = 0;
    bool done = false;
  };

  // Groups are numbered from 1; the open one gets what is added.
  std::uint32_t open_group() const { return open_; }
  void add(const Copy& copy) { pending_.push_back(copy); }
  void commit() { ++open_; }
  // Completes all but the newest `pending` groups, and says which is the last of them.
  std::uint32_t wait(std::uint32_t pending, SharedMemory& shared);
  // Completes one copy, anyone: the ISA orders none of them before its group is waited for.
  void complete_one(std::uint32_t which, SharedMemory& shared);
  std::uint32_t in_flight() const { return static_cast<std::uint32_t>(pending_.size()); }

  Actor actor = kNobody;

 private:
  static void perform(Copy& copy, SharedMemory& shared);

  std::vector<Copy> pending_;
  std::uint32_t open_ = 1;
};

}  // namespace octavo::emulator
