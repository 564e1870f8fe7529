// A thread of the GPU as a fiber of the CPU: code with a stack of its own that can be left at any
// call and resumed there. Boost.Context switches in some ten nanoseconds.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace octavo::emulator {

// Stacks, kept for the next CTA: their pages have been touched already.
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
  // Runs the body until it leaves or ends.
  void resume() { inside_ = std::move(inside_).resume(); }
  // From inside the body: back to who resumed it.
  void leave() { outside_ = std::move(outside_).resume(); }
  // Ends a body that will not be resumed: its stack is unwound.
  void abandon() { inside_ = boost::context::fiber(); }
  bool ended() const { return !inside_; }
  // That the caller is inside the body.
  bool running() const { return static_cast<bool>(outside_); }

 private:
  boost::context::fiber inside_, outside_;
};

}  // namespace octavo::emulator
