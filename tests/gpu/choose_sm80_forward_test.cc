// SPDX-License-Identifier: Apache-2.0
// The choice of the sm80 forward kernel for problems with modifiers of the scores and padding, and
// of both forward kernels for block masks.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "config/shared_parts.h"
#include "emulator/long.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

Problem plain_problem(std::int64_t seqlen, std::int64_t head_dim, DType dtype = DType::f16) {
  Problem p;
  p.batch = 4;
  p.heads_q = p.heads_kv = 16;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.head_dim = p.head_dim_v = head_dim;
  p.q = p.k = p.v = p.out = dtype;
  return p;
}

GpuInfo chip(int arch) {
  GpuInfo gpu;
  gpu.arch = arch;
  gpu.sms = 108;
  gpu.smem_per_block_optin = max_smem_bytes(arch);
  gpu.tensor_maps = true;
  return gpu;
}

Sm80ForwardConfig chosen(const Problem& p, int arch = 80) {
  return choose_sm80_forward(resolve(p).value(), chip(arch), 16).config;
}

// The kernel has the fields of the problem and no others.
TEST(ChooseSm80Forward, FieldsAreThoseOfTheProblem) {
  EXPECT_EQ(count(chosen(plain_problem(512, 64)).modifiers), 0);
  const auto field = [](auto set, bool ModifierConfig::*wanted) {
    for (const std::int64_t seqlen : {9, 512}) {
      Problem p = plain_problem(seqlen, 64);
      set(p);
      const Sm80ForwardConfig c = chosen(p);
      EXPECT_TRUE(c.modifiers.*wanted) << brief_text(c);
      EXPECT_EQ(count(c.modifiers), 1) << brief_text(c);
    }
  };
  field([](Problem& p) { p.options.softcap = 2; }, &ModifierConfig::softcap);
  field([](Problem& p) { p.bias = DType::bf16; }, &ModifierConfig::bias);
  field([](Problem& p) { p.alibi = true; }, &ModifierConfig::alibi);
  field([](Problem& p) { p.mask = true; }, &ModifierConfig::mask);
  field([](Problem& p) { p.sinks = true; }, &ModifierConfig::sinks);
  field([](Problem& p) { p.padded = true; }, &ModifierConfig::padded);
}

Problem with_everything(Problem p) {
  p.options.softcap = 2;
  p.bias = DType::f32;
  p.alibi = p.mask = p.sinks = p.padded = true;
  return p;
}

TEST(ChooseSm80Forward, ConfigurationsWithModifiersAreFeasible) {
  for (const int arch : {80, 86, 89, 90, 120})
    for (const DType dtype : {DType::f16, DType::bf16, DType::int8, DType::sim8})
      for (const std::int64_t head_dim : {8, 64, 96, 128, 192, 256})
        for (const std::int64_t seqlen : {1, 100, 4096}) {
          Problem p = with_everything(plain_problem(seqlen, head_dim, dtype));
          p.out = DType::f16;
          p.padded = !is_8bit(dtype);
          const Sm80ForwardConfig c = chosen(p, arch);
          EXPECT_TRUE(feasible(c, arch).ok()) << feasible(c, arch).message();
          EXPECT_EQ(count(c.modifiers), is_8bit(dtype) ? 5 : 6);
        }
}

// V with other columns, in 16 bits: a field of its own, also where both have the same tiles.
TEST(ChooseSm80Forward, ConfigurationsWithOtherColumnsOfVAreFeasible) {
  constexpr std::int64_t kDims[] = {8, 60, 64, 96, 128, 192, 256, 300, 512};
  for (const int arch : {80, 86, 89, 90, 120})
    for (const std::int64_t head_dim : kDims)
      for (const std::int64_t head_dim_v : kDims)
        for (const std::int64_t seqlen : {1, 100, 4096}) {
          Problem p = plain_problem(seqlen, head_dim);
          p.head_dim_v = head_dim_v;
          const Sm80ForwardConfig c = chosen(p, arch);
          EXPECT_TRUE(feasible(c, arch).ok()) << feasible(c, arch).message();
          EXPECT_GE(c.head_dim, head_dim);
          EXPECT_EQ(c.head_dim_v != 0, head_dim != head_dim_v);
          EXPECT_GE(sm80::all_v_columns(c), head_dim_v);
          const bool narrow = (head_dim | head_dim_v) % 8 != 0;
          EXPECT_EQ(c.load_bytes, narrow ? 8 : 16);
        }
}

// 512 columns in the shared memory of each chip: 99 KB, 163 KB, 227 KB.
TEST(ChooseSm80Forward, WideHeadsFitTheSharedMemory) {
  const auto tiles = [](int arch) {
    const Sm80ForwardConfig c = chosen(plain_problem(4096, 512), arch);
    EXPECT_EQ(sm80::column_tiles(c), 2);
    return std::tuple(c.block_m, c.block_n, c.stages, c.v_barrier);
  };
  EXPECT_EQ(tiles(89), std::tuple(64, 16, 1, true));
  EXPECT_EQ(tiles(80), std::tuple(64, 32, 2, false));
  EXPECT_EQ(tiles(90), std::tuple(128, 32, 2, false));
}

// Sinks leave the tiles alone; what works on scores has fewer of them in a warp.
TEST(ChooseSm80Forward, ModifiersHaveTilesThatFitTheRegisters) {
  Problem p = plain_problem(4096, 64);
  const Sm80ForwardConfig plain = chosen(p);
  p.sinks = true;
  Sm80ForwardConfig c = chosen(p);
  c.modifiers = plain.modifiers;
  EXPECT_EQ(c, plain);
  p.alibi = true;
  c = chosen(p);
  EXPECT_EQ(c.block_n, 64);
  EXPECT_EQ(c.block_m / c.warps_m, 32);
  p.mask = true;
  EXPECT_EQ(chosen(p).block_m / chosen(p).warps_m, 16);
}

// Kernels with modifiers, and with other columns of V, of long sequences, whose tiles leave the
// fewest registers.
TEST(ChooseSm80Forward, KernelsThatAreNotShippedDoNotSpill) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const auto expect_no_spills = [](const Problem& p, int arch) {
    const Sm80ForwardConfig c = chosen(p, arch);
    const Result<CompiledKernel> kernel = compile(kernel_source(c));
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    const CubinInfo info = read_cubin(kernel->image).value();
    EXPECT_FALSE(info.find(kernel->lowered_name)->spills()) << to_text(c);
  };
  for (const int arch : {80, 90})
    for (const std::int64_t head_dim : {64, 128})
      if ((arch == 80 && head_dim == 64) || test_long())
        expect_no_spills(with_everything(plain_problem(4096, head_dim)), arch);
  Problem mla = plain_problem(4096, 192);
  mla.head_dim_v = 128;
  expect_no_spills(mla, 80);
  expect_no_spills(plain_problem(4096, 512), 80);
  if (!test_long()) return;
  expect_no_spills(plain_problem(4096, 512), 89);
  Problem wide_warps = with_everything(plain_problem(4096, 64));
  wide_warps.bias.reset();
  wide_warps.mask = false;
  expect_no_spills(wide_warps, 80);
}

Problem block_mask_problem(std::int64_t size, std::int64_t head_dim, DType dtype = DType::f16) {
  Problem p = plain_problem(4096, head_dim, dtype);
  p.out = DType::f16;
  p.block_mask = size;
  return p;
}

TEST(ChooseSm80Forward, TilesAndStepsLieInBlocksOfABlockMask) {
  for (const int arch : {80, 86, 89, 90, 120})
    for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::int8, DType::sim8})
      for (const std::int64_t head_dim : {8, 64, 96, 128, 192, 256})
        for (const std::int64_t seqlen : {1, 100, 4096})
          for (const std::int64_t size : {64, 128}) {
            if (dtype == DType::e4m3 && arch < 89) continue;
            Problem p = block_mask_problem(size, head_dim, dtype);
            p.seqlen_q = p.seqlen_kv = seqlen;
            const Sm80ForwardConfig c = chosen(p, arch);
            EXPECT_EQ(c.modifiers.block_mask, size);
            EXPECT_TRUE(feasible(c, arch).ok()) << feasible(c, arch).message();
          }
  Sm80ForwardConfig c = chosen(block_mask_problem(64, 128));
  c.block_m = 128;
  EXPECT_EQ(feasible(c, 80).message(),
            "config.block_m is 128; supported: divisors of 64, a block of rows.");
}

// And those of Hopper, whose tiles are the blocks: as many CTAs as it is compiled for fit on an SM.
TEST(ChooseSm90Forward, BlockMasksHaveTilesOfTheirBlocks) {
  for (const std::int64_t head_dim : {8, 64, 96, 128, 192, 256})
    for (const auto& [size, dtype] :
         {std::pair{64, DType::f16}, {128, DType::f16}, {64, DType::e4m3}, {128, DType::int8}}) {
      const Resolved resolved = resolve(block_mask_problem(size, head_dim, dtype)).value();
      EXPECT_TRUE(sm90_forward_supports(resolved, chip(90)));
      const Sm90ForwardConfig c = choose_sm90_forward(resolved, chip(90)).config;
      EXPECT_TRUE(feasible(c, 90).ok()) << feasible(c, 90).message();
      EXPECT_EQ(sm90::block_m(c), size);
      EXPECT_EQ(c.modifiers.block_mask, size);
      constexpr int kSmBytes = 228 * 1024, kReservedBytes = 1024, kRegisters = 65536;
      EXPECT_LE(c.min_ctas * (sm90::smem_bytes(c) + kReservedBytes), kSmBytes) << to_text(c);
      EXPECT_LE(c.min_ctas * 128 *
                    (c.warpgroups * sm90::consumer_registers(c) + sm90::producer_registers(c)),
                kRegisters);
      EXPECT_GE(c.stages, 2);
    }
  const Resolved sim8 = resolve(block_mask_problem(64, 128, DType::sim8)).value();
  EXPECT_FALSE(sm90_forward_supports(sim8, chip(90)));
}

TEST(ChooseSm90Forward, KernelsWithBlockMasksDoNotSpill) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  std::vector<std::pair<int, DType>> kernels = {{64, DType::f16}, {128, DType::int8}};
  if (test_long()) kernels.insert(kernels.end(), {{128, DType::f16}, {64, DType::e4m3}});
  for (const auto& [size, dtype] : kernels) {
    const Resolved resolved = resolve(block_mask_problem(size, 128, dtype)).value();
    const Result<CompiledKernel> kernel =
        compile(kernel_source(choose_sm90_forward(resolved, chip(90)).config));
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    const CubinInfo info = read_cubin(kernel->image).value();
    EXPECT_FALSE(info.find(kernel->lowered_name)->spills()) << size;
  }
}

}  // namespace
}  // namespace octavo
