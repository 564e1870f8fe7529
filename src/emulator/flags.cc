// SPDX-License-Identifier: Apache-2.0
#include "emulator/flags.h"

#include <memory>
#include <utility>

#include "emulator/machine.h"

namespace octavo::emulator {

void Flags::release(Thread& thread, const void* flag) {
  Clock clock;
  thread.known.release_into(clock);
  const auto others = clock.others();
  clock.set_others(nullptr);
  ClocksOfClusters& released = released_[flag];
  join_clocks(released, {{thread.cluster().number, std::make_shared<const Clock>(clock)}});
  if (others != nullptr) join_clocks(released, *others);
}

void Flags::acquire(Thread& thread, const void* flag) {
  const auto found = released_.find(flag);
  if (found == released_.end()) return;
  const std::uint32_t own = thread.cluster().number;
  Clock clock;
  auto others = std::make_shared<ClocksOfClusters>(found->second);
  if (const auto ours = others->find(own); ours != others->end()) {
    clock = *ours->second;
    others->erase(ours);
  }
  if (!others->empty()) clock.set_others(std::move(others));
  thread.known.acquire(std::make_shared<const Clock>(std::move(clock)));
}

std::vector<Thread*> Flags::take_waiting(const void* data, std::size_t bytes) {
  std::vector<Thread*> taken;
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  std::erase_if(waiting_, [&](Thread* thread) {
    const auto flag = reinterpret_cast<std::uintptr_t>(thread->wait.flag);
    if (flag + sizeof(std::uint32_t) <= begin || flag >= begin + bytes) return false;
    taken.push_back(thread);
    return true;
  });
  return taken;
}

std::vector<Thread*> Flags::take_all_waiting() { return std::exchange(waiting_, {}); }

void wait_for_flag(const std::uint32_t* flag, Place place) {
  Thread& t = self();
  if (t.poll.flag != flag || t.poll.value != *flag) return;
  t.machine->flags().add_waiting(t);
  t.machine->block({Wait::For::flag, place, 0, 0, flag});
}

}  // namespace octavo::emulator
