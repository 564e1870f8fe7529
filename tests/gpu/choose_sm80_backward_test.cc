// SPDX-License-Identifier: Apache-2.0
// The choice of the sm80 backward kernels: what is refused, and that every choice can run.
#include <gtest/gtest.h>

#include <tuple>

#include "gpu/backward/sm80_backward.h"
#include "gpu/forward/sm80_forward.h"

namespace octavo {
namespace {

Problem problem_with(std::int64_t head_dim, DType dtype = DType::f16) {
  Problem p;
  p.batch = 2;
  p.heads_q = p.heads_kv = 4;
  p.seqlen_q = 100;
  p.seqlen_kv = 300;
  p.head_dim = p.head_dim_v = head_dim;
  p.q = p.k = p.v = p.out = dtype;
  return p;
}

TEST(ChooseSm80Backward, EveryChoiceCanRun) {
  for (const int arch : {80, 86, 89, 90, 100, 120})
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int load_bytes : {2, 4, 8, 16}) {
        GpuInfo gpu;
        gpu.arch = arch;
        gpu.smem_per_block_optin = max_smem_bytes(arch);
        const Problem problem = problem_with(head_dim);
        ASSERT_TRUE(sm80_backward_serves(problem).ok());
        const ChosenSm80Backward chosen = choose_sm80_backward(problem, gpu, load_bytes);
        for (const Sm80BackwardConfig& c : {chosen.dkv, chosen.dq}) {
          const Status status = feasible(c, arch, gpu.smem_per_block_optin);
          EXPECT_TRUE(status.ok()) << arch << " " << head_dim << ": " << status.message();
          EXPECT_GE(c.head_dim, head_dim);
          EXPECT_EQ(c.load_bytes, load_bytes);
        }
        EXPECT_EQ(chosen.dkv.pass, BackwardPass::dkv);
        EXPECT_EQ(chosen.dq.pass, BackwardPass::dq);
        EXPECT_EQ(chosen.row_stats.load_bytes, load_bytes);
      }
}

// A kernel has the modifiers of its problem and no others, and a bias gets a kernel for its
// gradient.
TEST(ChooseSm80Backward, ModifiersAreThoseOfTheProblem) {
  for (const int arch : {80, 89, 90})
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (int set = 0; set < 32; ++set) {
        GpuInfo gpu;
        gpu.arch = arch;
        gpu.smem_per_block_optin = max_smem_bytes(arch);
        Problem problem = problem_with(head_dim);
        problem.options.softcap = (set & 1) != 0 ? 2.0f : 0.0f;
        if ((set & 2) != 0) problem.bias = DType::bf16;
        problem.alibi = (set & 4) != 0;
        problem.mask = (set & 8) != 0;
        problem.padded = (set & 16) != 0;
        problem.sinks = set % 3 == 0;  // in the LSE: kernels need not know
        const ChosenSm80Backward chosen = choose_sm80_backward(problem, gpu, 16);
        EXPECT_EQ(chosen.row_stats.padded, problem.padded);
        ASSERT_EQ(chosen.dbias.has_value(), problem.bias.has_value());
        for (const Sm80BackwardConfig& c :
             {chosen.dkv, chosen.dq, chosen.dbias.value_or(chosen.dq)}) {
          const Status status = feasible(c, arch, gpu.smem_per_block_optin);
          EXPECT_TRUE(status.ok()) << arch << " " << head_dim << ": " << status.message();
          EXPECT_GE(c.head_dim, head_dim);
          const ModifierConfig expected = {.softcap = (set & 1) != 0,
                                           .bias = (set & 2) != 0,
                                           .alibi = (set & 4) != 0,
                                           .mask = (set & 8) != 0,
                                           .padded = (set & 16) != 0};
          EXPECT_EQ(c.modifiers, expected);
        }
      }
}

// Each block of queries and of keys of a block mask holds whole tiles, on every chip.
TEST(ChooseSm80Backward, TilesFitIntoTheBlocksOfABlockMask) {
  for (const int arch : {80, 89, 90})
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (const int size : {64, 128}) {
        GpuInfo gpu;
        gpu.arch = arch;
        gpu.smem_per_block_optin = max_smem_bytes(arch);
        Problem problem = problem_with(head_dim);
        problem.bias = DType::f16;
        problem.block_mask = size;
        ASSERT_TRUE(sm80_backward_serves(problem).ok());
        const ChosenSm80Backward chosen = choose_sm80_backward(problem, gpu, 16);
        for (const Sm80BackwardConfig& c : {chosen.dkv, chosen.dq, chosen.dbias.value()}) {
          EXPECT_EQ(c.modifiers.block_mask, size);
          const Status status = feasible(c, arch, gpu.smem_per_block_optin);
          EXPECT_TRUE(status.ok()) << arch << " " << head_dim << ": " << status.message();
          EXPECT_LT(c.head_dim, head_dim + (c.pass == BackwardPass::dbias ? 128 : 64));
        }
      }
}

TEST(ChooseSm80Backward, RefusesOtherTypesAndHeadDims) {
  const auto message = [](const Problem& p) {
    const Status status = sm80_backward_serves(p);
    EXPECT_EQ(status.code(), ErrorCode::unsupported);
    return status.message();
  };
  EXPECT_NE(message(problem_with(64, DType::f32)).find("f16, bf16"), std::string::npos);
  EXPECT_NE(message(problem_with(64, DType::e4m3)).find("q.dtype"), std::string::npos);
  EXPECT_NE(message(problem_with(12)).find("multiples of 8"), std::string::npos);
  EXPECT_NE(message(problem_with(264)).find("up to 256"), std::string::npos);
  Problem mixed = problem_with(64);
  mixed.k = DType::bf16;
  EXPECT_NE(message(mixed).find("k.dtype"), std::string::npos);
}

// Two floats for each query row, rounded up to 128 rows: nothing grows with the product of lengths.
TEST(ChooseSm80Backward, WorkspaceIsTwoFloatsPerRow) {
  EXPECT_EQ(row_stats_bytes(problem_with(64)), 2 * 4 * 128 * 2 * sizeof(float));
  Problem empty = problem_with(64);
  empty.seqlen_q = 0;
  EXPECT_EQ(row_stats_bytes(empty), 0U);
}

}  // namespace
}  // namespace octavo
