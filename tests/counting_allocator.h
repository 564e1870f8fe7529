// SPDX-License-Identifier: Apache-2.0
// Replaces operator new with one that counts allocations and can be made to fail. Only one file of
// a program may include this, and the program is built for that purpose.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace octavo::test {

inline std::atomic<std::int64_t> allocations = 0;  // since the program started
inline std::atomic<std::int64_t> until_failure =
    0;  // counts down to the allocation that fails; 0: none fails
inline std::atomic<std::int64_t> failed_allocations = 0;
inline std::atomic<bool> all_later_fail = false;  // after the one that until_failure counts down to

// During its lifetime, the n-th allocation from its construction on fails, in any thread; with
// `and_all_later` also every later one.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::int64_t n, bool and_all_later = false)
      : failed_before_(failed_allocations) {
    all_later_fail = and_all_later;
    until_failure = n;
  }
  ~FailingAllocation() {
    until_failure = 0;
    all_later_fail = false;
  }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  bool happened() const { return failed_allocations != failed_before_; }

 private:
  const std::int64_t failed_before_;
};

inline void* counted(std::size_t bytes, std::size_t alignment = 0) noexcept {
  ++allocations;
  std::int64_t left = until_failure;
  while (left > (all_later_fail ? 1 : 0) && !until_failure.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 1) {
    ++failed_allocations;
    return nullptr;
  }
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

inline void* counted_or_throw(std::size_t bytes, std::size_t alignment = 0) {
  if (void* const p = counted(bytes, alignment)) return p;
  throw std::bad_alloc();
}

}  // namespace octavo::test

// g++ does not see that new and delete match after inlining them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t bytes) { return octavo::test::counted_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return octavo::test::counted_or_throw(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return octavo::test::counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return octavo::test::counted_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return octavo::test::counted(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return octavo::test::counted(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return octavo::test::counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
  return octavo::test::counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { std::free(p); }
