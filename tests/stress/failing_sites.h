// SPDX-License-Identifier: Apache-2.0
// Replaces operator new with one that fails at every site of the library: an allocation's site is
// the instruction that calls operator new. The first allocation of each site fails, and later ones
// at random, in the threads of the library and in those that have entered it. Only one file of a
// program may include this.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace octavo::test {

struct Site {
  std::atomic<std::uintptr_t> address{0};
  std::atomic<std::uint32_t> allocations{0}, failures{0};
};
// A fixed table without locks, usable in operator new and in a child of fork().
inline constinit std::array<Site, 8192> sites;
inline constinit std::atomic<bool> injecting{false};
inline constinit std::atomic<std::uint64_t> random_state{1};

// Threads of the test enter the library explicitly; all others belong to the library. Atomic,
// because compilers assume that operator new reads no variable, and move plain stores past it.
inline constinit thread_local std::atomic<bool> in_library{true};

class EnterLibrary {
 public:
  EnterLibrary() { in_library = true; }
  ~EnterLibrary() { in_library = false; }
  EnterLibrary(const EnterLibrary&) = delete;
  EnterLibrary& operator=(const EnterLibrary&) = delete;
};

inline Site* site_of(std::uintptr_t address) {
  for (std::size_t i = (address >> 2) % sites.size(), tried = 0; tried < sites.size(); ++tried) {
    Site& site = sites[(i + tried) % sites.size()];
    std::uintptr_t found = site.address;
    if (found == address) return &site;
    if (found == 0 && (site.address.compare_exchange_strong(found, address) || found == address))
      return &site;
  }
  return nullptr;
}

inline bool fails_now(std::uintptr_t address) {
  constexpr std::uint64_t kOneIn = 64;
  Site* const site = in_library && injecting ? site_of(address) : nullptr;
  if (site == nullptr) return false;
  ++site->allocations;
  const std::uint64_t random = random_state.fetch_add(0x9e3779b97f4a7c15);
  const bool drawn = (random ^ random >> 29) * 0xbf58476d1ce4e5b9 >> 32 < (1ull << 32) / kOneIn;
  if (!drawn && site->failures != 0) return false;
  ++site->failures;
  return true;
}

inline void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) noexcept {
  if (fails_now(reinterpret_cast<std::uintptr_t>(caller))) return nullptr;
  if (alignment == 0) return std::malloc(bytes);
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment, const void* caller) {
  if (void* const p = allocate(bytes, alignment, caller)) return p;
  throw std::bad_alloc();
}

}  // namespace octavo::test

// g++ does not see that new and delete match after inlining them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

#define OCTAVO_CALLER __builtin_return_address(0)
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return octavo::test::allocate_or_throw(bytes, 0, OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return octavo::test::allocate_or_throw(bytes, 0, OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return octavo::test::allocate_or_throw(bytes, static_cast<std::size_t>(alignment), OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return octavo::test::allocate_or_throw(bytes, static_cast<std::size_t>(alignment), OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return octavo::test::allocate(bytes, 0, OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return octavo::test::allocate(bytes, 0, OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment,
                                     const std::nothrow_t&) noexcept {
  return octavo::test::allocate(bytes, static_cast<std::size_t>(alignment), OCTAVO_CALLER);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment,
                                       const std::nothrow_t&) noexcept {
  return octavo::test::allocate(bytes, static_cast<std::size_t>(alignment), OCTAVO_CALLER);
}
#undef OCTAVO_CALLER
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
