// SPDX-License-Identifier: Apache-2.0
// The kernels of the ladder compile without spills, each with the instructions of its idea.
#include <gtest/gtest.h>

#include "device/ladder/problem.cuh"
#include "emulator/long.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/ladder/ladder.h"

namespace octavo {
namespace {

// The instructions of one kernel; none without spilling.
InstructionCounts instructions_of(const LadderConfig& config) {
  const Result<CompiledKernel> kernel = compile(kernel_source(config, 90));
  EXPECT_TRUE(kernel.ok()) << to_text(config) << kernel.status().message();
  if (!kernel.ok()) return {};
  const Result<CubinInfo> info = read_cubin(kernel->image);
  EXPECT_TRUE(info.ok()) << info.status().message();
  EXPECT_TRUE(check_cubin(*info, kernel->lowered_name, {}).ok()) << to_text(config);
  return info->find(kernel->lowered_name)->instructions;
}

// The kernels of 128 columns, which need more registers; `make test-long`: all.
TEST(Ladder, CompilesToTheInstructionsOfItsIdeas) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const LadderConfig& config : kLadder) {
    if (config.head_dim != 128 && !test_long()) continue;
    const InstructionCounts n = instructions_of(config);
    const Rung rung = config.rung;
    EXPECT_EQ(n.shared_loads > 0, rung != Rung::scalar) << to_text(config);
    // S = Q K^T and O += P V, 16 columns or keys at a time. Of mma.sync one for every eight
    // columns.
    const int steps = config.head_dim / 16 * 8 + 4 * config.head_dim / 8;
    EXPECT_EQ(n.hmma, rung == Rung::tensor_cores || rung == Rung::async_copies ? steps : 0)
        << to_text(config);
    EXPECT_EQ(n.ldmatrix > 0, rung == Rung::async_copies) << to_text(config);
    EXPECT_EQ(n.async_copies > 0, rung == Rung::async_copies) << to_text(config);
    EXPECT_EQ(n.wgmma_f16, rung == Rung::specialised_warps ? config.head_dim / 16 + 8 : 0)
        << to_text(config);
  }
}

}  // namespace
}  // namespace octavo
