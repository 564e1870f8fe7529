// SPDX-License-Identifier: Apache-2.0
// A GPU thread as a CPU fiber: code with its own stack that can suspend at any call and resume
// there. Boost.Context switches in some ten nanoseconds.
#pragma once

#include <boost/context/fiber.hpp>
#include <functional>

namespace octavo::emulator {

class Fiber {
 public:
  // Runs `body` at the first resume. One CPU thread starts, resumes and destroys a fiber.
  void start(std::function<void()> body);
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
