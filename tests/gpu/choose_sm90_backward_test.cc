// SPDX-License-Identifier: Apache-2.0
// The choice of the Hopper backward kernels: which problems they serve, with which tiles.
#include <gtest/gtest.h>

#include "gpu/backward/sm90_backward.h"
#include "gpu/forward/sm80_forward.h"

namespace octavo {
namespace {

Problem backward_problem(std::int64_t head_dim, DType dtype = DType::bf16) {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_kv = 4;
  p.seqlen_q = 100;
  p.seqlen_kv = 300;
  p.head_dim = p.head_dim_v = head_dim;
  p.q = p.k = p.v = p.out = dtype;
  return p;
}

GpuInfo chip_with_tma(int arch) {
  GpuInfo gpu;
  gpu.arch = arch;
  gpu.tensor_maps = true;
  return gpu;
}

// The SMs of an H200; backward_problem() fills at most 24 of them.
constexpr int kSms = 132;
// A problem with keys for every SM.
Problem full_problem(std::int64_t head_dim) {
  Problem p = backward_problem(head_dim);
  p.seqlen_kv = 30000;
  return p;
}

TEST(ChooseSm90Backward, ServesHopperWithoutBiasAndMask) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    const Problem problem = backward_problem(head_dim);
    EXPECT_TRUE(sm90_backward_serves(problem, chip_with_tma(90))) << head_dim;
    EXPECT_FALSE(sm90_backward_serves(problem, chip_with_tma(100))) << head_dim;
  }
  Problem biased = backward_problem(256);
  biased.bias = DType::bf16;
  EXPECT_FALSE(sm90_backward_serves(biased, chip_with_tma(90)));
  Problem masked = backward_problem(256);
  masked.mask = true;
  EXPECT_FALSE(sm90_backward_serves(masked, chip_with_tma(90)));
}

TEST(ChooseSm90Backward, TilesHoldTheHeadAndFitSharedMemory) {
  for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (Problem problem : {full_problem(head_dim), backward_problem(head_dim)}) {
      problem.options.softcap = 2.0f;
      problem.alibi = true;
      const Sm90BackwardConfig c = choose_sm90_backward(problem, kSms).config;
      EXPECT_GE(c.head_dim, head_dim);
      EXPECT_EQ(c.element, Element::bf16);
      EXPECT_EQ(c.modifiers, (ModifierConfig{.softcap = true, .alibi = true}));
      EXPECT_LE(sm90::backward::smem_bytes(c), max_smem_bytes(90)) << head_dim;
    }
  }
}

TEST(ChooseSm90Backward, ColumnsAreThoseOfTheNextWidth) {
  const auto columns = [](std::int64_t head_dim) {
    return choose_sm90_backward(full_problem(head_dim), kSms).config.head_dim;
  };
  for (const auto& [head_dim, expected] : {std::pair{8, 64},
                                           {64, 64},
                                           {72, 80},
                                           {80, 80},
                                           {88, 96},
                                           {96, 96},
                                           {104, 128},
                                           {128, 128},
                                           {136, 192},
                                           {192, 192},
                                           {200, 256},
                                           {256, 256}})
    EXPECT_EQ(columns(head_dim), expected) << head_dim;
}

// Tiles of 128 keys for 66 CTAs or fewer would leave half of the SMs without one. A head keeps at
// most 66 tiles, so that dQ is added in the cyclic order.
TEST(ChooseSm90Backward, FewKeysTakeSmallerTiles) {
  const auto keys_of_a_tile = [](std::int64_t head_dim, std::int64_t seqlen_kv, bool invariant,
                                 std::int64_t heads = 2) {
    Problem problem = backward_problem(head_dim);
    problem.batch = 1;
    problem.heads_q = problem.heads_kv = heads;
    problem.seqlen_kv = seqlen_kv;
    problem.options.batch_invariant = invariant;
    return choose_sm90_backward(problem, kSms).config.block_n;
  };
  for (const std::int64_t head_dim : {64, 96, 128}) {
    EXPECT_EQ(keys_of_a_tile(head_dim, 33 * 128, false), 64) << head_dim;
    EXPECT_EQ(keys_of_a_tile(head_dim, 33 * 128 + 1, false), 128) << head_dim;
    EXPECT_EQ(keys_of_a_tile(head_dim, 33 * 128 + 1, false, 1), 128) << head_dim;
    EXPECT_EQ(keys_of_a_tile(head_dim, 128, true), 128) << head_dim;
  }
  EXPECT_EQ(keys_of_a_tile(192, 128, false), 64);
}

// With 256 columns a pair of CTAs has a tile of 128 keys, also if there are few keys.
TEST(ChooseSm90Backward, WidestHeadsTakePairsOfCtas) {
  for (const Problem& problem : {full_problem(256), backward_problem(200)}) {
    const Sm90BackwardConfig c = choose_sm90_backward(problem, kSms).config;
    EXPECT_EQ(sm90::backward::ctas(c), 2);
    EXPECT_EQ(c.block_n, 128);
    EXPECT_EQ(sm90::backward::cta_keys(c), 64);
  }
  for (const std::int64_t head_dim : {64, 128, 192})
    EXPECT_EQ(sm90::backward::ctas(choose_sm90_backward(full_problem(head_dim), kSms).config), 1);
}

// A circle has at most half of the tiles, and a group all of them, that the SMs hold.
TEST(ChooseSm90Backward, PairsCountAsTwoCtas) {
  GpuInfo chip = chip_with_tma(90);
  chip.sms = kSms;
  Problem problem = backward_problem(256);
  problem.batch = 3;
  problem.heads_q = problem.heads_kv = 10;
  problem.seqlen_kv = 20 * 128;
  const auto params = [&](std::int64_t head_dim) {
    problem.head_dim = problem.head_dim_v = head_dim;
    BackwardArguments arguments;
    arguments.q.shape = {problem.batch, problem.heads_q, problem.seqlen_q, head_dim};
    arguments.k.shape = {problem.batch, problem.heads_kv, problem.seqlen_kv, head_dim};
    return sm90_backward_params(problem, arguments, choose_sm90_backward(problem, kSms), chip,
                                nullptr);
  };
  EXPECT_EQ(params(256).n_tiles, 20);
  EXPECT_EQ(params(256).heads_per_group, 3);
  EXPECT_EQ(params(256).max_cyclic_tiles, 33);
  EXPECT_EQ(params(128).heads_per_group, 6);
  EXPECT_EQ(params(128).max_cyclic_tiles, 66);
}

// Heads of up to 128 columns have 128 keys in a CTA, those of 192 the 64 that two warpgroups share,
// and wider ones 128 in two CTAs.
TEST(ChooseSm90Backward, ReasonNamesKeysAndQueries) {
  const auto reason = [](std::int64_t head_dim) {
    return choose_sm90_backward(full_problem(head_dim), kSms).reason;
  };
  EXPECT_NE(reason(64).find("128 keys by 128 queries"), std::string::npos) << reason(64);
  EXPECT_NE(reason(96).find("128 keys by 64 queries"), std::string::npos) << reason(96);
  EXPECT_NE(reason(192).find("64 keys by 64 queries"), std::string::npos) << reason(192);
  EXPECT_NE(reason(256).find("128 keys by 64 queries"), std::string::npos) << reason(256);
}

// Two partial sums of dQ at 64 columns and with few keys. With 80 to 128 columns, a head whose
// tiles are too many for one circle of half of the SMs, but not for two; tiles of a masked head
// form none.
TEST(ChooseSm90Backward, PartialSumsOfDq) {
  const auto sums = [](std::int64_t head_dim, std::int64_t seqlen_kv, Causal causal = Causal::none,
                       bool batch_invariant = false) {
    Problem problem = backward_problem(head_dim);
    problem.seqlen_kv = seqlen_kv;
    problem.options.causal = causal;
    problem.options.batch_invariant = batch_invariant;
    return choose_sm90_backward(problem, kSms).dq_sums;
  };
  for (const Causal causal : {Causal::none, Causal::top_left}) {
    EXPECT_EQ(sums(64, 30000, causal), 2);
    EXPECT_EQ(sums(128, 300, causal), 2);
    EXPECT_EQ(sums(256, 300, causal), 1);
  }
  for (const std::int64_t head_dim : {80, 96, 128}) {
    EXPECT_EQ(sums(head_dim, 66 * 128), 1) << head_dim;
    EXPECT_EQ(sums(head_dim, 66 * 128 + 1), 2) << head_dim;
    EXPECT_EQ(sums(head_dim, 132 * 128), 2) << head_dim;
    EXPECT_EQ(sums(head_dim, 132 * 128 + 1), 1) << head_dim;
    EXPECT_EQ(sums(head_dim, 100 * 128, Causal::top_left), 1) << head_dim;
    EXPECT_EQ(sums(head_dim, 100 * 128, Causal::none, true), 1) << head_dim;
  }
}

// The workspace has a counter for each slice of dQ: 64 columns of wide heads.
TEST(ChooseSm90Backward, WorkspaceHasEverySumOfDqAndACounterForEachSlice) {
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    const Problem problem = full_problem(head_dim);
    const ChosenSm90Backward chosen = choose_sm90_backward(problem, kSms);
    const Sm90BackwardConfig& c = chosen.config;
    const Sm90BackwardWorkspace w = sm90_backward_workspace(problem, problem.seqlen_q, chosen);
    EXPECT_EQ(w.tiles, (head_dim == 64 ? 1 : 2) * problem.batch);
    const auto tiles = static_cast<std::size_t>(chosen.dq_sums * w.tiles * problem.heads_q);
    EXPECT_EQ(w.turn_bytes, tiles * (head_dim > 128 ? head_dim / 64 : 1) * sizeof(u32));
    EXPECT_GE(w.dq_sum, w.turns + w.turn_bytes);
    EXPECT_EQ(w.total - w.dq_sum,
              tiles * static_cast<std::size_t>(c.block_m * c.head_dim) * sizeof(float));
  }
}

}  // namespace
}  // namespace octavo
