// SPDX-License-Identifier: Apache-2.0
// The most recent plans of one kind, newest first. The caller guards it.
#pragma once

#include <cstddef>
#include <list>
#include <utility>

#include "octavo/octavo.hpp"

namespace octavo::python {

template <class Made>
class RecentPlans {
 public:
  // Null if there is none.
  const Made* find(const Problem& problem, Device device) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->device == device && entry->problem == problem) {
        entries_.splice(entries_.begin(), entries_, entry);
        return &entry->plan;
      }
    return nullptr;
  }

  const Made& add(const Problem& problem, Device device, Made plan) {
    entries_.push_front({problem, device, std::move(plan)});
    if (entries_.size() > kMost) entries_.pop_back();
    return entries_.front().plan;
  }

 private:
  static constexpr std::size_t kMost = 64;
  struct Entry {
    Problem problem;
    Device device;
    Made plan;
  };
  std::list<Entry> entries_;
};

}  // namespace octavo::python
