// SPDX-License-Identifier: Apache-2.0
#include "emulator/clock.h"

namespace octavo::emulator {

void join_clocks(ClocksOfClusters& clocks, const ClocksOfClusters& more) {
  for (const auto& [cluster, clock] : more) {
    SharedClock& known = clocks[cluster];
    if (known == nullptr || clock->covers(*known)) {
      known = clock;
    } else if (!known->covers(*clock)) {
      Clock both = *known;
      both.join(*clock);
      known = std::make_shared<const Clock>(std::move(both));
    }
  }
}

void Clock::join_others(const std::shared_ptr<const ClocksOfClusters>& more) {
  if (others_ == nullptr) {
    others_ = more;
    return;
  }
  auto both = std::make_shared<ClocksOfClusters>(*others_);
  join_clocks(*both, *more);
  others_ = std::move(both);
}

bool Clock::covers_others(const ClocksOfClusters& clocks) const {
  for (const auto& [cluster, clock] : clocks) {
    const auto known = others_ == nullptr ? clocks.end() : others_->find(cluster);
    if (others_ == nullptr || known == others_->end() || !known->second->covers(*clock))
      return false;
  }
  return true;
}

void Knowledge::acquire(const SharedClock& clock) {
  if (clock == nullptr || clock == shared_) return;
  if (shared_ == nullptr) {
    shared_ = clock;
    return;
  }
  // The lanes of a warp arrive with the same clock and acquire the same one, so the result is
  // computed once and cached.
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
