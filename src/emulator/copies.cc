#include "emulator/copies.h"

#include <cstring>

#include "emulator/shared_memory.h"

namespace octavo::emulator {

void CopyGroups::perform(Copy& copy, SharedMemory& shared) {
  if (copy.done) return;
  copy.done = true;
  std::memcpy(shared.at(copy.offset), copy.from, copy.valid);
  std::memset(shared.at(copy.offset + copy.valid), 0, copy.bytes - copy.valid);
}

std::uint32_t CopyGroups::wait(std::uint32_t pending, SharedMemory& shared) {
  const std::uint32_t complete = open_ - 1 > pending ? open_ - 1 - pending : 0;
  std::size_t done = 0;
  while (done < pending_.size() && pending_[done].group <= complete)
    perform(pending_[done++], shared);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(done));
  return complete;
}

void CopyGroups::complete_one(std::uint32_t which, SharedMemory& shared) {
  if (which < pending_.size()) perform(pending_[which], shared);
}

}  // namespace octavo::emulator
