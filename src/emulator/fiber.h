// SPDX-License-Identifier: Apache-2.0
// A GPU thread as a CPU fiber: code with its own stack that can suspend at any call and resume
// there. Boost.Context switches in some ten nanoseconds.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace octavo::emulator {

// A pool of stacks, reused by the next CTA because their pages have already been touched.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  boost::context::stack_context allocate();
  void deallocate(boost::context::stack_context& stack);

 private:
  std::vector<boost::context::stack_context> free_;
};

class Fiber {
 public:
  // Runs `body` at the first resume.
  void start(StackPool& stacks, std::function<void()> body);
  // Runs the body until it suspends or ends.
  void resume() { inside_ = std::move(inside_).resume(); }
  // Called inside the body: returns to the caller of resume().
  void leave() { outside_ = std::move(outside_).resume(); }
  // Ends a body that will not be resumed: its stack is unwound.
  void abandon() { inside_ = boost::context::fiber(); }
  bool ended() const { return !inside_; }
  // Whether the caller is inside the body.
  bool running() const { return static_cast<bool>(outside_); }

 private:
  boost::context::fiber inside_, outside_;
};

}  // namespace octavo::emulator
