// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"

#include <sys/mman.h>

#include <new>

namespace octavo::emulator {
namespace {

// The stack holds a kernel's fragments and partial results: at most 255 registers of them on a GPU,
// several times that in a CPU compiler's frames. Pages are allocated when touched.
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr std::size_t kGuardBytes = 4096;

// The stack allocator interface of Boost.Context; refers to the pool.
struct PoolAllocator {
  StackPool* pool;
  boost::context::stack_context allocate() { return pool->allocate(); }
  void deallocate(boost::context::stack_context& stack) { pool->deallocate(stack); }
};

}  // namespace

StackPool::~StackPool() {
  for (const auto& stack : free_)
    munmap(static_cast<char*>(stack.sp) - stack.size - kGuardBytes, stack.size + kGuardBytes);
}

boost::context::stack_context StackPool::allocate() {
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

void StackPool::deallocate(boost::context::stack_context& stack) { free_.push_back(stack); }

void Fiber::start(StackPool& stacks, std::function<void()> body) {
  inside_ = boost::context::fiber(std::allocator_arg, PoolAllocator{&stacks},
                                  [this, body = std::move(body)](boost::context::fiber&& outside) {
                                    outside_ = std::move(outside);
                                    body();
                                    return std::move(outside_);
                                  });
}

}  // namespace octavo::emulator
