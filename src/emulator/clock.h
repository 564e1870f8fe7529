// SPDX-License-Identifier: Apache-2.0
// Vector clocks: which operations happened before which.
//
// An actor is anything that performs operations in its own order: a thread, a thread's cp.async
// groups, its proxy fences, its bulk groups, a warp's wgmma groups, an mbarrier's phases. Each
// actor numbers its operations; a clock holds, per actor, the number up to which everything is
// known to have happened. An access is (actor, number), and a thread may depend on it if the
// thread's clock has reached that number.
//
// Every cluster numbers its own actors. Threads learn of other clusters through flags in global
// memory; that knowledge is one clock for each other cluster.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace octavo::emulator {

using Actor = std::uint32_t;
inline constexpr Actor kNobody = 0xffffffffu;

class Clock;
using SharedClock = std::shared_ptr<const Clock>;
using ClocksOfClusters = std::map<std::uint32_t, SharedClock>;

class Clock {
 public:
  std::uint32_t at(Actor actor) const { return actor < at_.size() ? at_[actor] : 0; }
  void raise(Actor actor, std::uint32_t number) {
    if (actor >= at_.size()) at_.resize(actor + 1, 0);
    if (at_[actor] < number) at_[actor] = number;
  }
  void join(const Clock& other) {
    if (other.at_.size() > at_.size()) at_.resize(other.at_.size(), 0);
    for (std::size_t i = 0; i < other.at_.size(); ++i)
      if (at_[i] < other.at_[i]) at_[i] = other.at_[i];
    if (other.others_ != nullptr && other.others_ != others_) join_others(other.others_);
  }
  // Whether this clock knows everything that `other` knows.
  bool covers(const Clock& other) const {
    for (std::size_t i = 0; i < other.at_.size(); ++i)
      if (other.at_[i] > at(static_cast<Actor>(i))) return false;
    return other.others_ == nullptr || other.others_ == others_ || covers_others(*other.others_);
  }

  // The clocks of other clusters of the grid that this clock covers; null: none.
  const std::shared_ptr<const ClocksOfClusters>& others() const { return others_; }
  void set_others(std::shared_ptr<const ClocksOfClusters> others) { others_ = std::move(others); }
  std::uint32_t at(std::uint32_t cluster, Actor actor) const {
    if (others_ == nullptr) return 0;
    const auto found = others_->find(cluster);
    return found == others_->end() ? 0 : found->second->at(actor);
  }

 private:
  void join_others(const std::shared_ptr<const ClocksOfClusters>& more);
  bool covers_others(const ClocksOfClusters& clocks) const;

  std::vector<std::uint32_t> at_;
  std::shared_ptr<const ClocksOfClusters> others_;
};

// The union of what two maps know.
void join_clocks(ClocksOfClusters& clocks, const ClocksOfClusters& more);

// What a thread knows: a clock shared with the threads it last synchronised with, and what it has
// learned since.
class Knowledge {
 public:
  Knowledge() = default;
  explicit Knowledge(Actor self) : self_(self) {}

  Actor self() const { return self_; }
  std::uint32_t now() const { return now_; }
  // Starts a new number, so that later operations are not covered by what the thread has released
  // so far.
  void advance() { ++now_; }

  bool covers(Actor actor, std::uint32_t number) const {
    if (actor == self_) return true;
    if (shared_ && shared_->at(actor) >= number) return true;
    for (const auto& [known, upto] : own_)
      if (known == actor && upto >= number) return true;
    return false;
  }

  // The same for an operation of another cluster.
  bool covers(std::uint32_t cluster, Actor actor, std::uint32_t number) const {
    return shared_ != nullptr && shared_->at(cluster, actor) >= number;
  }

  void learn(Actor actor, std::uint32_t number) {
    for (auto& [known, upto] : own_)
      if (known == actor) {
        upto = upto < number ? number : upto;
        return;
      }
    own_.emplace_back(actor, number);
  }
  // Acquires everything that a clock knows. Threads that last synchronised together share the
  // result.
  void acquire(const SharedClock& clock);
  // Adds everything that this thread knows, including its own operations.
  void release_into(Clock& clock) {
    if (shared_) clock.join(*shared_);
    release_own_into(clock);
  }
  void release_own_into(Clock& clock) {
    for (const auto& [actor, number] : own_) clock.raise(actor, number);
    clock.raise(self_, now_);
    advance();
  }
  const SharedClock& shared() const { return shared_; }
  // Replaces the knowledge by a clock that includes all of it, after a synchronisation.
  void replace(SharedClock clock) {
    shared_ = std::move(clock);
    own_.clear();
  }

 private:
  Actor self_ = kNobody;
  std::uint32_t now_ = 1;
  SharedClock shared_;
  std::vector<std::pair<Actor, std::uint32_t>> own_;
};

}  // namespace octavo::emulator
