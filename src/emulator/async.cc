#include "emulator/async.h"

#include <iterator>
#include <utility>

#include "emulator/schedule.h"

namespace octavo::emulator {

void AsyncOperations::complete(std::list<Operation>::iterator operation) {
  const Operation done = std::move(*operation);
  in_flight_.erase(operation);
  done.perform();
}

void AsyncOperations::complete_oldest() { complete(in_flight_.begin()); }

void AsyncOperations::complete_any(SeededOrder& schedule) {
  if (in_flight_.empty()) return;
  const auto which = schedule.below(static_cast<std::uint32_t>(in_flight_.size()));
  complete(std::next(in_flight_.begin(), which));
}

void AsyncOperations::complete_groups(const Thread& thread, std::uint32_t last) {
  for (auto at = in_flight_.begin(); at != in_flight_.end();) {
    const auto here = at++;
    if (here->thread == &thread && here->group != 0 && here->group <= last) complete(here);
  }
}

}  // namespace octavo::emulator
