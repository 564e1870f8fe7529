// What has happened before what: vector clocks.
//
// An actor is whoever does things in an order of its own: a thread, a thread's cp.async groups, its
// proxy fences, its bulk groups, a warp's wgmma groups, an mbarrier's phases. Each numbers what it
// does; a clock says, per actor, up to which number everything is known to have happened. An access
// is (actor, number), and somebody may build on it if his clock has reached that number.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace octavo::emulator {

using Actor = std::uint32_t;
inline constexpr Actor kNobody = 0xffffffffu;

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
  }
  // Whether everything that `other` knows is known here.
  bool covers(const Clock& other) const {
    for (std::size_t i = 0; i < other.at_.size(); ++i)
      if (other.at_[i] > at(static_cast<Actor>(i))) return false;
    return true;
  }

 private:
  std::vector<std::uint32_t> at_;
};
using SharedClock = std::shared_ptr<const Clock>;

// What a thread knows: a clock it shares with those it last met, and the little it learned since.
class Knowledge {
 public:
  Knowledge() = default;
  explicit Knowledge(Actor self) : self_(self) {}

  Actor self() const { return self_; }
  std::uint32_t now() const { return now_; }
  // What the thread does from here on is not covered by what it has told so far.
  void advance() { ++now_; }

  bool covers(Actor actor, std::uint32_t number) const {
    if (actor == self_) return true;
    if (shared_ && shared_->at(actor) >= number) return true;
    for (const auto& [known, upto] : own_)
      if (known == actor && upto >= number) return true;
    return false;
  }

  void learn(Actor actor, std::uint32_t number) {
    for (auto& [known, upto] : own_)
      if (known == actor) {
        upto = upto < number ? number : upto;
        return;
      }
    own_.emplace_back(actor, number);
  }
  // Takes over all that a clock knows. Threads that come from the same meeting share the result.
  void acquire(const SharedClock& clock);
  // Adds all that this thread knows, what it did itself included.
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
  // For a meeting whose clock has all of this thread's knowledge.
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
