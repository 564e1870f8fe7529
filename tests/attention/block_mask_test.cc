// SPDX-License-Identifier: Apache-2.0
// Block masks: what is refused, and that blocks and bits hide what a mask tensor of the same keys
// hides, in the oracle and in the CPU backend.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/block_mask_call.h"
#include "attention/validate.h"
#include "evidence/cases/inputs.h"
#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

using test::BlockMaskCall;

TEST(BlockMask, RefusesWhatDoesNotFit) {
  const auto refusal = [](const auto& change) {
    BlockMaskCall call;
    change(call.arguments.block_mask, call);
    return call.refusal();
  };
  EXPECT_EQ(refusal([](BlockMask&, BlockMaskCall&) {}), "");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.block_size = 32; }),
            "block_mask.block_size is 32; supported: 64, 128.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.batch = 3; }),
            "block_mask.batch is 3; supported: 2, that of q, or 1.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.heads = 2; }),
            "block_mask.heads is 2; supported: 4, that of q, or 1.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.q_blocks = 2; }),
            "block_mask.q_blocks is 2; supported: 3, the blocks of 130 queries.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.kv_capacity = 6; }),
            "block_mask.kv_indices capacity is 6; supported: 0 to 5, the blocks of keys.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall&) { m.kv_num_blocks = nullptr; }),
            "block_mask.kv_indices is given with one of its arrays; supported: both arrays, or "
            "neither.");
  EXPECT_EQ(refusal([](BlockMask& m, BlockMaskCall& call) {
              call.inputs.block_mask.bits.resize(64);
              m.bits = call.inputs.block_mask.bits.data();
              m.bit_indices = nullptr;
            }),
            "block_mask.bit_indices is null; supported: both arrays, or neither.");
}

TEST(BlockMask, RefusesIndicesThatDoNotAscendOrLeaveTheKeys) {
  const auto refusal = [](const auto& change) {
    BlockMaskCall call;
    evidence::BlockMaskArrays& lists = call.inputs.block_mask;
    // The first block of queries sees blocks 0 and 1 of keys in full.
    lists.full_num_blocks[0] = 2;
    lists.full_indices[0] = 0;
    lists.full_indices[1] = 1;
    change(lists);
    return call.refusal();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(refusal([](auto& lists) { lists.full_indices[1] = 5; }),
            "an index of block_mask.full_kv_num_blocks[0] is 5; supported: ascending indices, here "
            "1 to 4.");
  EXPECT_EQ(refusal([](auto& lists) { lists.full_indices[1] = 0; }),
            "an index of block_mask.full_kv_num_blocks[0] is 0; supported: ascending indices, here "
            "1 to 4.");
  EXPECT_EQ(refusal([](auto& lists) { lists.full_indices[0] = -1; }),
            "an index of block_mask.full_kv_num_blocks[0] is -1; supported: ascending indices, "
            "here 0 to 4.");
  EXPECT_EQ(refusal([](auto& lists) { lists.full_num_blocks[0] = 6; }),
            "block_mask.full_kv_num_blocks[0] is 6; supported: 0 to 5, the capacity of its list.");
  EXPECT_EQ(refusal([](auto& lists) { lists.num_blocks[0] = 1, lists.indices[0] = 1; }),
            "an index of block_mask.full_kv_num_blocks[0] is 1, which kv_indices has too; "
            "supported: each block once.");
  EXPECT_EQ(refusal([](auto& lists) { lists.num_blocks[0] = 1, lists.indices[0] = 2; }), "");
  EXPECT_EQ(refusal([](auto& lists) { lists.num_blocks[0] = -1; }),
            "block_mask.kv_num_blocks[0] is -1; supported: 0 to 5, the capacity of its list.");
}

TEST(BlockMask, RefusesVarlenAndPadding) {
  BlockMaskCall call;
  const std::vector<std::int32_t> lengths = {100, 130};
  call.arguments.seqlens_q = lengths.data();
  EXPECT_EQ(
      call.refusal(),
      "block_mask is given together with padding; supported here: batches of sequences of one "
      "length.");
  Problem p = problem_of(BlockMaskCall().arguments).value();
  p.varlen = true;
  EXPECT_TRUE(
      plan(p).status().message().starts_with("block_mask is given together with cu_seqlens"));
}

TEST(BlockMask, EqualsAMaskTensor) {
  for (const std::int64_t size : {64, 128})
    for (std::uint64_t seed = 1; seed < 5; ++seed) {
      BlockMaskCall call(seed, size);
      if (seed % 3 == 0) call.c.options.causal = Causal::bottom_right;
      std::vector<std::uint8_t> bytes;
      const Arguments masked = call.with_mask_tensor(bytes);
      const auto rows = static_cast<std::size_t>(call.c.batch * call.c.heads_q * call.c.seqlen_q);
      const std::size_t values = rows * static_cast<std::size_t>(call.c.head_dim);
      std::vector<double> out(values), lse(rows), other_out(values), other_lse(rows);
      ASSERT_TRUE(reference(call.arguments, call.c.options, out.data(), lse.data()).ok());
      ASSERT_TRUE(reference(masked, call.c.options, other_out.data(), other_lse.data()).ok());
      EXPECT_EQ(out, other_out) << call.c.name();
      EXPECT_EQ(lse, other_lse) << call.c.name();

      // Blocks that are skipped leave every bit of the CPU's sums as they are.
      ASSERT_TRUE(attention(call.arguments, call.c.options).ok());
      const std::vector<std::byte> sparse = call.inputs.out.bytes,
                                   sparse_lse = call.inputs.lse.bytes;
      ASSERT_TRUE(attention(masked, call.c.options).ok());
      EXPECT_EQ(sparse, call.inputs.out.bytes) << call.c.name();
      EXPECT_EQ(sparse_lse, call.inputs.lse.bytes) << call.c.name();
    }
}

TEST(BlockMask, RowsWithoutBlocksGetZero) {
  BlockMaskCall call;
  for (auto* counts : {&call.inputs.block_mask.num_blocks, &call.inputs.block_mask.full_num_blocks})
    counts->assign(counts->size(), 0);
  ASSERT_TRUE(attention(call.arguments, call.c.options).ok());
  const Tensor& out = call.inputs.out.view;
  const Tensor& lse = call.inputs.lse.view;
  for (std::int64_t row = 0; row < call.c.batch * call.c.heads_q * call.c.seqlen_q; ++row) {
    EXPECT_EQ(static_cast<float*>(lse.data)[row], -HUGE_VALF);
    for (std::int64_t d = 0; d < call.c.head_dim; ++d)
      ASSERT_EQ(static_cast<float*>(out.data)[row * call.c.head_dim + d], 0.0f);
  }
}

}  // namespace
}  // namespace octavo
