// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/copies.h"

#include <cstring>

#include "emulator/memory/shared_memory.h"

namespace octavo::emulator {

void CopyGroups::perform(Copy& copy, SharedMemory& shared) {
  if (copy.done) return;
  copy.done = true;
  std::memcpy(shared.at(copy.offset), copy.from, copy.valid);
  std::memset(shared.at(copy.offset + copy.valid), 0, copy.bytes - copy.valid);
}

std::uint32_t CopyGroups::wait(std::uint32_t pending, SharedMemory& shared) {
  if (ends_.size() <= pending) return 0;
  const std::uint32_t number = ends_[ends_.size() - 1 - pending];
  complete_to(number, shared);
  return number;
}

void CopyGroups::complete_to(std::uint32_t number, SharedMemory& shared) {
  std::size_t done = 0;
  while (done < pending_.size() && pending_[done].number <= number)
    perform(pending_[done++], shared);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
}

void CopyGroups::complete_one(std::uint32_t which, SharedMemory& shared) {
  if (which < pending_.size()) perform(pending_[which], shared);
}

}  // namespace octavo::emulator
