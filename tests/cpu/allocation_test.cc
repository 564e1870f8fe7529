// That a run allocates nothing, by counting every operator new of the program.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "case.h"

namespace {

std::atomic<std::int64_t> allocations = 0;

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}

}  // namespace

// g++ does not see that these two families are one when it inlines them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace octavo::cpu {
namespace {

TEST(CpuAllocation, ARunAllocatesNothing) {
  for (const Precision precision : kAllPrecisions) {
    Case c{.batch = 2, .heads_q = 4, .heads_kv = 2, .len_q = 300, .len_kv = 200};
    c.options.precision = precision;
    const bool quantizes = precision >= Precision::fp8;
    c.options.quantization.smooth_k = quantizes;
    c.options.quantization.hadamard = quantizes;
    Call call(c);
    const Problem problem = problem_of(call.arguments, call.options).value();
    std::vector<std::uint8_t> room(workspace_bytes(problem, 2));
    set_thread_count(2);
    ASSERT_TRUE(attention(problem, call.arguments, {room.data(), room.size()}).ok());
    const std::int64_t before = allocations;
    ASSERT_TRUE(attention(problem, call.arguments, {room.data(), room.size()}).ok());
    EXPECT_EQ(allocations - before, 0) << name(precision);
  }
  EXPECT_GT(allocations, 0) << "the counter is not connected";
}

}  // namespace
}  // namespace octavo::cpu
