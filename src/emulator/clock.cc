#include "emulator/clock.h"

namespace octavo::emulator {

void Knowledge::acquire(const SharedClock& clock) {
  if (clock == nullptr || clock == shared_) return;
  if (shared_ == nullptr) {
    shared_ = clock;
    return;
  }
  // The lanes of a warp arrive with the same clock and acquire the same one: one of them computes
  // it.
  struct Last {
    SharedClock ours, theirs, both;
  };
  static thread_local Last last;
  if (last.ours != shared_ || last.theirs != clock) {
    last.ours = shared_;
    last.theirs = clock;
    if (shared_->covers(*clock)) {
      last.both = shared_;
    } else if (clock->covers(*shared_)) {
      last.both = clock;
    } else {
      Clock both = *shared_;
      both.join(*clock);
      last.both = std::make_shared<const Clock>(std::move(both));
    }
  }
  shared_ = last.both;
}

}  // namespace octavo::emulator
