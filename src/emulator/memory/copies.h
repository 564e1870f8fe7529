// SPDX-License-Identifier: Apache-2.0
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
    std::uint32_t bytes = 0, valid = 0;  // invalid bytes become zero
    std::uint32_t number = 0;
    bool done = false;
  };

  // Copies are numbered from 1, as in their actor's clock.
  std::uint32_t last() const { return last_; }
  std::uint32_t add(Copy copy) {
    copy.number = ++last_;
    pending_.push_back(copy);
    return last_;
  }
  void commit() { ends_.push_back(last_); }
  // Whether a wait would have anything to wait for.
  bool would_wait(std::uint32_t pending) const {
    return !pending_.empty() && ends_.size() > pending &&
           pending_.front().number <= ends_[ends_.size() - 1 - pending];
  }
  // Completes all but the newest `pending` groups, and returns the number of the last copy of them.
  std::uint32_t wait(std::uint32_t pending, SharedMemory& shared);
  // Completes the copies up to a number, committed or not.
  void complete_to(std::uint32_t number, SharedMemory& shared);
  // Completes any one copy: the ISA does not order copies before their group is waited for.
  void complete_one(std::uint32_t which, SharedMemory& shared);
  std::uint32_t in_flight() const { return static_cast<std::uint32_t>(pending_.size()); }

  Actor actor = kNobody;

 private:
  static void perform(Copy& copy, SharedMemory& shared);

  std::vector<Copy> pending_;
  std::vector<std::uint32_t> ends_;  // the last copy of each group
  std::uint32_t last_ = 0;
};

}  // namespace octavo::emulator
