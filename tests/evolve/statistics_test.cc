// SPDX-License-Identifier: Apache-2.0
// What the comparison of interleaved times decides, on a simulated clock: how often it takes a
// kernel for faster than itself, and how often it sees a planted slowdown.
#include "evolve/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "evolve/measure.h"
#include "simulated.h"

namespace octavo::evolve {
namespace {

const std::vector<double> kTimes = {10, 50, 200};

std::vector<double> times_with(double slowdown) {
  std::vector<double> times = kTimes;
  for (double& us : times) us *= 1 + slowdown;
  return times;
}

Comparison trial(double slowdown, int number, int blocks = 1) {
  std::vector<Block> all;
  for (int block = 0; block < blocks; ++block)
    all.push_back(
        simulated_block(kTimes, times_with(slowdown),
                        seed_for(3, "trial", static_cast<std::uint64_t>(number * 10 + block)), 20));
  return compare(all);
}

TEST(EvolveStatistics, AKernelIsNotFasterThanItself) {
  constexpr int kTrials = 200;
  int faster = 0, slower = 0;
  double resolution = 0;
  for (int i = 0; i < kTrials; ++i) {
    const Comparison comparison = trial(0, i);
    faster += comparison.effect == Effect::faster;
    slower += comparison.effect == Effect::slower;
    resolution += comparison.resolution / kTrials;
  }
  std::printf("A/A: faster in %d of %d, slower in %d; resolution %.2f%%\n", faster, kTrials, slower,
              resolution * 100);
  EXPECT_LE(faster, kTrials * 25 / 1000);
  EXPECT_LT(resolution, 0.005);
}

// Over three processes, as before an admission. One process does not know what it adds itself: its
// interval alone is too narrow.
TEST(EvolveStatistics, TheIntervalHoldsTheTruth) {
  constexpr int kTrials = 400, kBlocks = 3;
  int outside = 0;
  for (int i = 0; i < kTrials; ++i) {
    const Speedup speedup = trial(0.02, 1000 + i, kBlocks).speedup;
    outside += speedup.low > 1 / 1.02 || speedup.high < 1 / 1.02;
  }
  EXPECT_LE(outside, kTrials * 5 / 100);
  EXPECT_LT(trial(0.02, 1000, kBlocks).resolution, 0.01);
}

TEST(EvolveStatistics, PlantedSlowdownsAreDetected) {
  constexpr int kTrials = 100;
  for (const double slowdown : {0.01, 0.02, 0.05, 0.12}) {
    int detected = 0, vetoed = 0, faster = 0;
    for (int i = 0; i < kTrials; ++i) {
      const Comparison comparison = trial(slowdown, 10000 + i);
      detected += comparison.effect == Effect::slower;
      vetoed += comparison.vetoed();
      faster += comparison.effect == Effect::faster;
    }
    std::printf("+%.0f%%: detected in %d of %d, vetoed in %d\n", slowdown * 100, detected, kTrials,
                vetoed);
    EXPECT_EQ(faster, 0) << slowdown;
    if (slowdown >= 0.02) {
      EXPECT_EQ(detected, kTrials) << slowdown;
    }
    EXPECT_EQ(vetoed, slowdown > 0.11 ? kTrials : 0) << slowdown;
  }
}

// A large gain on one shape does not make up for a sure loss on two.
TEST(EvolveStatistics, TwoShapesVeto) {
  const auto with = [](double third) {
    return compare({simulated_block({10, 10, 10}, {11.5, third, 2}, 5, 20)});
  };
  const Comparison two = with(11.5), one = with(10);
  EXPECT_EQ(two.effect, Effect::faster);
  EXPECT_TRUE(two.vetoed());
  EXPECT_EQ(two.veto, (std::vector<int>{0, 1}));
  EXPECT_FALSE(one.vetoed());
  Task task;
  task.shapes = {{"a"}, {"b"}, {"c"}};
  EXPECT_EQ(objection(two, task),
            "Vetoed: more than 10% slower on 2 shapes with certainty (a, b).");
  EXPECT_EQ(objection(one, task), "");
}

// One process may place its buffers well: between processes there is more noise than within one.
TEST(EvolveStatistics, BlocksWidenTheInterval) {
  const Block lucky = simulated_block({10}, {9.8}, 1, 20),
              unlucky = simulated_block({10}, {10.2}, 2, 20);
  EXPECT_EQ(compare({lucky}).effect, Effect::faster);
  EXPECT_NE(compare({lucky, unlucky, unlucky}).effect, Effect::faster);
}

TEST(EvolveStatistics, OneDisturbedRoundDecidesNothing) {
  Block block = simulated_block({10}, {10}, 4, 20);
  block[0].base_us[7] = 1000;
  EXPECT_NE(compare({block}).effect, Effect::faster);
  EXPECT_NEAR(compare({block}).speedup.value, 1, 0.01);
}

TEST(EvolveStatistics, IncompleteTimesAreUndecided) {
  const Block good = simulated_block({10}, {10}, 1, 4);
  Block zero = good, missing = good, infinite = good;
  zero[0].candidate_us[1] = 0;
  missing[0].candidate_us.pop_back();
  infinite[0].base_us[2] = HUGE_VAL;
  const Block single = {{{10}, {5}}};
  for (const std::vector<Block>& blocks :
       {std::vector<Block>{}, {zero}, {missing}, {infinite}, {Block{}}, {good, Block{}}, {single}})
    EXPECT_EQ(compare(blocks).effect, Effect::undecided);
}

TEST(EvolveStatistics, StudentsDistribution) {
  EXPECT_NEAR(student_t(1), 12.706, 1e-3);
  EXPECT_NEAR(student_t(30), 2.042, 1e-3);
  EXPECT_NEAR(student_t(31), 2.0395, 1e-3);
  EXPECT_NEAR(student_t(1000), 1.9623, 1e-3);
}

}  // namespace
}  // namespace octavo::evolve
