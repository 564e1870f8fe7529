// SPDX-License-Identifier: Apache-2.0
// The size of a plan's workspace: fixed by the plan, whatever the number of threads when the size
// is queried and when the plan runs.
#include <gtest/gtest.h>
#include <sched.h>

#include <string>
#include <thread>
#include <vector>

#include "attention/call.h"
#include "octavo/octavo.h"

namespace octavo {
namespace {

using test::Call;

class Workspaces : public testing::Test {
 protected:
  ~Workspaces() override { EXPECT_TRUE(set_cpu_threads(0).ok()); }
};

// Runs `work` on a thread that is pinned to one core.
template <class Work>
void on_one_core(const Work& work) {
  std::thread([&work] {
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    work();
  }).join();
}

std::vector<Options> all_options() {
  std::vector<Options> list(3);
  list[1].precision = Precision::fp8;
  list[1].quantization.smooth_k = true;
  list[2].precision = Precision::automatic;
  list[2].max_error = 1;
  return list;
}

TEST_F(Workspaces, SizeOfAPlanDoesNotDependOnThreads) {
  for (const Options& options : all_options())
    for (const auto& [planned, run] : {std::pair{1, 8}, {8, 1}, {2, 3}}) {
      SCOPED_TRACE(std::to_string(planned) + " threads, then " + std::to_string(run));
      ASSERT_TRUE(set_cpu_threads(planned).ok());
      Call call(2, 4, 2, 300, 310, 32);
      const Plan plan = octavo::plan(problem_of(call.arguments, options).value()).value();
      const std::size_t bytes = plan.workspace_bytes();
      std::vector<std::byte> memory(bytes);
      ASSERT_EQ(plan.run(call.arguments, {memory.data(), bytes}).message(), "");
      const std::vector<float> first = call.out, first_lse = call.lse;
      ASSERT_TRUE(set_cpu_threads(run).ok());
      EXPECT_EQ(plan.workspace_bytes(), bytes);
      EXPECT_EQ(plan.workspace_bytes(call.arguments), bytes);
      EXPECT_EQ(plan.explain().workspace_bytes, bytes);
      Call again(2, 4, 2, 300, 310, 32);
      ASSERT_EQ(plan.run(again.arguments, {memory.data(), bytes}).message(), "");
      EXPECT_EQ(again.out, first);
      EXPECT_EQ(again.lse, first_lse);
    }
}

TEST_F(Workspaces, SizeFromAPinnedThreadServesOthers) {
  Call call(1, 4, 2, 200, 150, 32);
  const Problem problem = problem_of(call.arguments).value();
  std::size_t bytes = 0;
  on_one_core([&] {
    const Plan plan = octavo::plan(problem).value();
    bytes = plan.workspace_bytes();
    std::thread([&] {  // inherits the one core
      EXPECT_EQ(plan.workspace_bytes(), bytes);
    })
        .join();
  });
  const Plan plan = octavo::plan(problem).value();
  bytes = plan.workspace_bytes();
  std::vector<std::byte> memory(bytes);
  on_one_core([&] {
    EXPECT_EQ(plan.workspace_bytes(), bytes);
    EXPECT_EQ(plan.run(call.arguments, {memory.data(), bytes}).message(), "");
  });
  Plan pinned = plan;
  on_one_core([&] {
    pinned = octavo::plan(problem).value();
    bytes = pinned.workspace_bytes();
  });
  std::vector<std::byte> small(bytes);
  EXPECT_EQ(pinned.workspace_bytes(), bytes);
  EXPECT_EQ(pinned.run(call.arguments, {small.data(), bytes}).message(), "");
}

TEST_F(Workspaces, OneCallFormFollowsTheThreads) {
  for (const Options& options : all_options()) {
    std::vector<float> first;
    for (const int threads : {1, 8, 2, 5}) {
      ASSERT_TRUE(set_cpu_threads(threads).ok());
      Call call(2, 4, 2, 301, 311, 32);
      ASSERT_EQ(attention(call.arguments, options).message(), "") << threads << " threads";
      if (first.empty()) first = call.out;
      EXPECT_EQ(call.out, first) << threads << " threads";
    }
  }
}

TEST_F(Workspaces, SizeInTheCInterfaceDoesNotDependOnThreads) {
  Call call(1, 2, 2, 100, 90, 16);
  octavo_arguments arguments;
  octavo_arguments_init(&arguments);
  const auto view = [](const ConstTensor& t) {
    return octavo_tensor_bhsd(const_cast<void*>(t.data), OCTAVO_F32, t.shape[0], t.shape[1],
                              t.shape[2], t.shape[3]);
  };
  arguments.q = view(call.arguments.q);
  arguments.k = view(call.arguments.k);
  arguments.v = view(call.arguments.v);
  arguments.out = view(call.arguments.out);
  ASSERT_TRUE(set_cpu_threads(1).ok());
  octavo_plan* plan = nullptr;
  ASSERT_EQ(octavo_plan_create(&arguments, nullptr, "cpu", &plan), OCTAVO_OK);
  std::size_t bytes = 0, later = 0;
  EXPECT_EQ(octavo_plan_workspace_bytes(plan, &arguments, &bytes), OCTAVO_OK);
  std::vector<std::byte> memory(bytes);
  ASSERT_TRUE(set_cpu_threads(8).ok());
  EXPECT_EQ(octavo_plan_workspace_bytes(plan, &arguments, &later), OCTAVO_OK);
  EXPECT_EQ(later, bytes);
  EXPECT_EQ(octavo_plan_run(plan, &arguments, memory.data(), bytes, nullptr), OCTAVO_OK)
      << octavo_last_error();
  octavo_plan_destroy(plan);
}

}  // namespace
}  // namespace octavo
