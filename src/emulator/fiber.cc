// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace octavo::emulator {
namespace {

// The stack holds a kernel's fragments and partial results: at most 255 registers of them on a GPU,
// several times that in a CPU compiler's frames. Pages are allocated when touched.
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kGuardBytes = 4096;

// The stacks of a CPU thread that are not in use. CTAs and launches use them again, because their
// pages have already been touched.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool() {
    for (const auto& stack : free_) unmap(stack);
  }
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  static StackPool& of_thread() {
    static thread_local StackPool pool;
    return pool;
  }

  boost::context::stack_context allocate() {
    if (!free_.empty()) {
      const boost::context::stack_context stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* const memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory, kGuardBytes, PROT_NONE);
    boost::context::stack_context stack;
    stack.size = kStackBytes;
    stack.sp = static_cast<char*>(memory) + kGuardBytes + kStackBytes;
    return stack;
  }
  void deallocate(const boost::context::stack_context& stack) {
    if (free_.size() < kMostFree)
      free_.push_back(stack);
    else
      unmap(stack);
  }

 private:
  // Some clusters' worth: a grid whose CTAs wait for each other has more.
  static constexpr std::size_t kMostFree = 4096;

  static void unmap(const boost::context::stack_context& stack) {
    munmap(static_cast<char*>(stack.sp) - stack.size - kGuardBytes, stack.size + kGuardBytes);
  }

  std::vector<boost::context::stack_context> free_;
};

// The stack allocator interface of Boost.Context.
struct PoolAllocator {
  boost::context::stack_context allocate() { return StackPool::of_thread().allocate(); }
  void deallocate(boost::context::stack_context& stack) {
    StackPool::of_thread().deallocate(stack);
  }
};

}  // namespace

void Fiber::start(std::function<void()> body) {
  inside_ = boost::context::fiber(std::allocator_arg, PoolAllocator{},
                                  [this, body = std::move(body)](boost::context::fiber&& outside) {
                                    outside_ = std::move(outside);
                                    body();
                                    return std::move(outside_);
                                  });
}

}  // namespace octavo::emulator
