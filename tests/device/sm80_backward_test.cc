// SPDX-License-Identifier: Apache-2.0
// The backward kernels without a GPU: the tiles that a plan takes on sm_90 for head dims 64 and 128
// compile without spills, in `make test-long` each tile for each chip whose shared memory it fits.
#include "gpu/backward/sm80_backward.h"

#include <gtest/gtest.h>

#include <span>

#include "config/sm80_backward_tiles.h"
#include "emulator/long.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

void expect_no_spills(const KernelSource& source) {
  const Result<CompiledKernel> kernel = compile(source);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const Result<CubinInfo> info = read_cubin(kernel->image);
  ASSERT_TRUE(info.ok()) << info.status().message();
  const CubinKernel* const found = info->find(kernel->lowered_name);
  ASSERT_NE(found, nullptr);
  EXPECT_FALSE(found->spills()) << source.name_expression << ": " << found->stack_bytes
                                << " bytes of stack, " << found->registers << " registers";
}

class Sm80Backward : public testing::TestWithParam<int> {};

TEST_P(Sm80Backward, CompilesWithoutSpills) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const int arch = GetParam();
  if (arch != 90 && !test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_no_spills(kernel_source(RowStatsConfig{.arch = arch}));
  const sm80::BackwardTiles* before = nullptr;
  for (const sm80::BackwardTiles& tiles : sm80::kBackwardTiles) {
    // The next rows of a head dimension are for chips with less shared memory.
    const bool is_first =
        before == nullptr || before->pass != tiles.pass || before->head_dim != tiles.head_dim;
    before = &tiles;
    const bool is_usual = tiles.head_dim == 64 || tiles.head_dim == 128;
    if ((!is_first || !is_usual) && !test_long()) continue;
    const Sm80BackwardConfig config = sm80::with_tiles({.arch = arch}, tiles);
    if (feasible(config, arch, max_smem_bytes(arch)).ok()) expect_no_spills(kernel_source(config));
  }
}

// With all modifiers, and with each of the most used ones alone.
TEST_P(Sm80Backward, ModifiedKernelsCompileWithoutSpills) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const int arch = GetParam();
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  expect_no_spills(kernel_source(RowStatsConfig{.arch = arch, .padded = true}));
  expect_no_spills(sink_gradients_source(RowStatsConfig{.arch = arch}));
  const ModifierConfig all = {
      .softcap = true, .bias = true, .alibi = true, .mask = true, .padded = true};
  const ModifierConfig modified[] = {all, {.softcap = true}, {.padded = true}};
  for (const ModifierConfig& modifiers : modified)
    for (const sm80::BackwardTiles& tiles : sm80::kModifiedBackwardTiles) {
      const Sm80BackwardConfig config =
          sm80::with_tiles({.arch = arch, .modifiers = modifiers}, tiles);
      if (feasible(config, arch, max_smem_bytes(arch)).ok())
        expect_no_spills(kernel_source(config));
    }
  for (const sm80::BackwardTiles& tiles : sm80::kBiasGradientTiles)
    expect_no_spills(kernel_source(sm80::with_tiles({.arch = arch, .modifiers = all}, tiles)));
}

TEST_P(Sm80Backward, BlockMaskedKernelsCompileWithoutSpills) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const int arch = GetParam();
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  const auto expect_tiles = [arch](std::span<const sm80::BackwardTiles> table, ModifierConfig m) {
    m.block_mask = table.data() == sm80::kBlocksOf64BackwardTiles ? 64 : 128;
    for (const sm80::BackwardTiles& tiles : table) {
      const Sm80BackwardConfig config = sm80::with_tiles({.arch = arch, .modifiers = m}, tiles);
      // With all modifiers these spill a few bytes.
      const bool spills = m.softcap && config.pass == BackwardPass::dkv &&
                          (config.head_dim <= 96 || (arch == 90 && config.head_dim == 256));
      if (!spills && feasible(config, arch, max_smem_bytes(arch)).ok())
        expect_no_spills(kernel_source(config));
    }
  };
  const ModifierConfig all = {.softcap = true, .bias = true, .alibi = true, .mask = true};
  for (const ModifierConfig& modifiers : {ModifierConfig{}, all}) {
    expect_tiles(sm80::kBlocksOf64BackwardTiles, modifiers);
    expect_tiles(sm80::kModifiedBackwardTiles, modifiers);
  }
  expect_tiles(sm80::kBiasGradientTiles, all);
}

INSTANTIATE_TEST_SUITE_P(Chips, Sm80Backward, testing::Values(80, 89, 90));

}  // namespace
}  // namespace octavo
