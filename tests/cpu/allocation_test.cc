// SPDX-License-Identifier: Apache-2.0
// A run does not allocate: counts every operator new of the program.
#include <gtest/gtest.h>

#include "backward_case.h"
#include "case.h"
#include "counting_allocator.h"

namespace octavo::cpu {
namespace {

using test::allocations;

TEST(CpuAllocation, ARunAllocatesNothing) {
  for (const Precision precision : kAllPrecisions) {
    Case c{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 300, .seqlen_kv = 200};
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

TEST(CpuAllocation, ARunWithPaddingAndModifiersAllocatesNothing) {
  Case c{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 300, .seqlen_kv = 200};
  c.options.softcap = 3;
  Call call(c);
  const std::vector<float> bias(200), floats(8, 0.5f);
  const std::vector<std::uint8_t> mask(300 * 200, 1);
  const std::int32_t seqlens[] = {150, 20}, leftpad[] = {0, 30};
  Arguments& a = call.arguments;
  a.bias = ConstTensor::bhsd(bias.data(), DType::f32, 1, 1, 1, 200);
  a.mask = ConstTensor::bhsd(mask.data(), DType::boolean, 1, 1, 300, 200);
  a.alibi_slopes = a.sinks = floats.data();
  a.seqlens_q = a.seqlens_kv = seqlens;
  a.leftpad_q = a.leftpad_kv = leftpad;
  const Problem problem = problem_of(a, call.options).value();
  std::vector<std::uint8_t> room(workspace_bytes(problem, 2));
  set_thread_count(2);
  ASSERT_TRUE(attention(problem, a, {room.data(), room.size()}).ok());
  const std::int64_t before = allocations;
  ASSERT_TRUE(attention(problem, a, {room.data(), room.size()}).ok());
  EXPECT_EQ(allocations - before, 0);
}

TEST(CpuAllocation, ARunOverAPagedCacheAllocatesNothing) {
  Case c{.batch = 3, .heads_q = 4, .heads_kv = 2, .seqlen_q = 2, .seqlen_kv = 16};
  Call call(c);  // its three batch entries are the pages
  const std::int32_t table[] = {0, 2, 1, 1, 2, 0}, seqlens[] = {20, 32, 0};
  Arguments& a = call.arguments;
  a.page_table = table;
  a.page_table_stride = a.pages_per_sequence = 2;
  a.seqlens_kv = seqlens;
  const Problem problem = problem_of(a, call.options).value();
  std::vector<std::uint8_t> room(workspace_bytes(problem, 2));
  set_thread_count(2);
  ASSERT_TRUE(attention(problem, a, {room.data(), room.size()}).ok());
  const std::int64_t before = allocations;
  ASSERT_TRUE(attention(problem, a, {room.data(), room.size()}).ok());
  EXPECT_EQ(allocations - before, 0);
}

TEST(CpuAllocation, ABackwardRunAllocatesNothing) {
  for (const std::int64_t seqlen_q : {100, 700}) {  // in one slice, and in several
    BackwardCase c{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = seqlen_q, .seqlen_kv = 200};
    BackwardCall call(c);
    call.add_bias(DType::f32, {1, 4, seqlen_q, 200}, DType::f32);
    call.add_alibi();
    call.add_sinks();
    call.make_padded({90, 50}, {200, 10}, {0, 5}, {});
    ASSERT_TRUE(call.run_forward().ok());
    const Problem problem = problem_of(call.arguments, call.options).value();
    const BackwardSlicing slicing = backward_slicing(problem);
    std::vector<std::uint8_t> room(backward_workspace_bytes(slicing, problem, &call.arguments, 2));
    set_thread_count(2);
    const std::int64_t before = allocations;
    ASSERT_TRUE(
        attention_backward(slicing, problem, call.arguments, {room.data(), room.size()}).ok());
    EXPECT_EQ(allocations - before, 0);
  }
}

}  // namespace
}  // namespace octavo::cpu
