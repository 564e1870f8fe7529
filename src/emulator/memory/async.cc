// SPDX-License-Identifier: Apache-2.0
#include "emulator/memory/async.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "emulator/schedule.h"

namespace octavo::emulator {

void AsyncOperations::complete(std::list<Operation>::iterator operation) {
  const Operation done = std::move(*operation);
  in_flight_.erase(operation);
  if (done.read) done.read();
  done.perform();
}

bool AsyncOperations::complete_oldest_copy() {
  const auto copy = std::find_if(in_flight_.begin(), in_flight_.end(),
                                 [](const Operation& x) { return x.group == 0; });
  if (copy == in_flight_.end()) return false;
  complete(copy);
  return true;
}

bool AsyncOperations::complete_oldest() {
  if (in_flight_.empty()) return false;
  complete(in_flight_.begin());
  return true;
}

void AsyncOperations::complete_any(SeededOrder& schedule) {
  if (in_flight_.empty()) return;
  const auto which = schedule.below(static_cast<std::uint32_t>(in_flight_.size()));
  const auto operation = std::next(in_flight_.begin(), which);
  if (operation->read && schedule.below(2) == 0)
    std::exchange(operation->read, nullptr)();
  else
    complete(operation);
}

void AsyncOperations::read_groups(const Thread& thread, std::uint32_t last) {
  for (Operation& x : in_flight_)
    if (x.thread == &thread && x.group != 0 && x.group <= last && x.read)
      std::exchange(x.read, nullptr)();
}

std::list<AsyncOperations::Operation> AsyncOperations::take_stores() {
  std::list<Operation> stores = std::exchange(in_flight_, {});
  stores.remove_if([](const Operation& x) { return x.group == 0 || x.read; });
  return stores;
}

void AsyncOperations::complete_groups(const Thread& thread, std::uint32_t last) {
  for (auto at = in_flight_.begin(); at != in_flight_.end();) {
    const auto here = at++;
    if (here->thread == &thread && here->group != 0 && here->group <= last) complete(here);
  }
}

}  // namespace octavo::emulator
