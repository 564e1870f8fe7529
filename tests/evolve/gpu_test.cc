// SPDX-License-Identifier: Apache-2.0
// The measurement on a GPU: a kernel against itself, and against one that is known to be slower.
// $OCTAVO_EVOLVE_TRIALS, 10 by default, is how often.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "evolve/gates/gpu_child.h"
#include "evolve/isolation/isolate.h"
#include "evolve/measure.h"

namespace octavo::evolve {
namespace {

int trials() {
  const char* const text = std::getenv("OCTAVO_EVOLVE_TRIALS");
  return text == nullptr ? 10 : std::max(1, std::atoi(text));
}

// In a child: this process must not open the GPU, or its children could not.
bool is_hopper(const Task& task) {
  Limits limits;
  limits.gpu = true;
  limits.isolation = task.gpu_isolation;
  return run_isolated(limits, [&task] {
           for (const DeviceInfo& info : devices())
             if (info.available && info.device == task.device &&
                 info.description.find("sm_90") != std::string::npos)
               return std::string("yes");
           return std::string();
         }).output == "yes";
}

class EvolveOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    find_device(task_, Device{Device::Kind::cuda, 0});
    if (!is_hopper(task_)) GTEST_SKIP() << "needs an sm_90 GPU";
    task_.kernel = "sm90_forward";
    task_.shapes = {{"mission", 1, 8, 512, 64}, {"small", 2, 8, 512, 64}};
    task_.base_config = kFast;
    base_.kernel = slower_.kernel = task_.kernel;
    base_.config = kFast;
    slower_.config = kSlow;
  }
  Comparison compared(const Candidate& candidate, int number) {
    const Result<Block> block = measurer_->measure(
        task_, {&base_, &candidate, static_cast<std::uint64_t>(number), 20, "", 60});
    EXPECT_TRUE(block.ok()) << block.status().message();
    return block.ok() ? compare({*block}) : Comparison{};
  }

  static constexpr const char* kFast =
      "Sm90ForwardConfig{head_dim=64,warpgroups=2,block_n=128,stages=1,schedule=in_turn,"
      "row_groups=1,cluster=2}";
  static constexpr const char* kSlow =
      "Sm90ForwardConfig{head_dim=64,warpgroups=4,block_n=64,stages=4,schedule=pv_first_queued}";
  Task task_;
  Candidate base_, slower_;
  std::unique_ptr<Measurer> measurer_ = gpu_measurer();
};

TEST_F(EvolveOnGpu, AKernelIsNotFasterThanItself) {
  int faster = 0, slower = 0;
  double widest = 0;
  for (int i = 0; i < trials(); ++i) {
    const Comparison comparison = compared(base_, i);
    faster += comparison.effect == Effect::faster;
    slower += comparison.effect == Effect::slower;
    widest = std::max(widest, comparison.resolution);
  }
  std::printf("A/A: faster in %d of %d, slower in %d; resolution %.2f%% at worst\n", faster,
              trials(), slower, widest * 100);
  EXPECT_LE(faster, std::max(1, trials() * 25 / 1000));
}

TEST_F(EvolveOnGpu, ASlowerKernelIsVetoed) {
  const Comparison comparison = compared(slower_, 1);
  EXPECT_EQ(comparison.effect, Effect::slower) << comparison.speedup.value;
  EXPECT_TRUE(comparison.vetoed()) << comparison.speedup.value;
  for (std::size_t i = 0; i < task_.shapes.size(); ++i)
    EXPECT_GT(10, tensor_floor_us(task_, task_.shapes[i]));
}

// What a candidate does wrong is a reason.
TEST_F(EvolveOnGpu, ACandidateThatDoesNotLoad) {
  Candidate broken = base_;
  broken.patch = "no diff";
  const Result<Block> block = measurer_->measure(task_, {&base_, &broken, 1, 5, "", 60});
  ASSERT_FALSE(block.ok());
  EXPECT_FALSE(block.status().message().empty());
}

}  // namespace
}  // namespace octavo::evolve
