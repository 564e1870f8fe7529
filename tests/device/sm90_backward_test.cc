// SPDX-License-Identifier: Apache-2.0
// The Hopper backward kernels without a GPU: each configuration that a plan uses compiles without
// spills, its products stay asynchronous, and its shared memory fits.
#include "config/sm90_backward.h"

#include <gtest/gtest.h>

#include "emulator/long.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

namespace bwd = sm90::backward;

// The kernel in a compiled source; empty if it does not compile.
CubinKernel compiled(const KernelSource& source) {
  const Result<CompiledKernel> kernel = compile(source);
  EXPECT_TRUE(kernel.ok()) << kernel.status().message();
  if (!kernel.ok()) return {};
  EXPECT_EQ(kernel->log.find("serialized"), std::string::npos) << kernel->log;
  const Result<CubinInfo> info = read_cubin(kernel->image);
  EXPECT_TRUE(info.ok()) << info.status().message();
  const CubinKernel* const found = info.ok() ? info->find(kernel->lowered_name) : nullptr;
  EXPECT_NE(found, nullptr);
  return found != nullptr ? *found : CubinKernel{};
}

// dV and dK are in the code once, and S and dP before the loop over blocks too. With two warpgroups
// dQ of one of them follows a block late, so it is there again after the last block. With
// divides_products S and dP are there once, and both warpgroups have half of dQ, that of dV late.
// In a pair each sum is computed in two parts, and dQ in a loop over its slices, from dS of both
// CTAs.
int products(const Sm90BackwardConfig& c) {
  if (bwd::is_pair(c)) return 2 * (c.head_dim / 16) + 4 * (c.block_m / 16) + c.block_n / 16;
  const int scores = c.head_dim / 16, sum = c.block_m / 16, dq = c.block_n / 16;
  if (bwd::divides_products(c)) return 2 * scores + 2 * sum + 3 * dq;
  return 4 * scores + 2 * sum + bwd::warpgroups(c) * dq;
}

void expect_compiles(const Sm90BackwardConfig& config) {
  SCOPED_TRACE(brief_text(config));
  EXPECT_LE(bwd::smem_bytes(config), max_smem_bytes(90));
  const CubinKernel backward = compiled(kernel_source(config));
  EXPECT_FALSE(backward.spills()) << backward.stack_bytes << " bytes of stack";
  // setmaxnreg divides the registers that a CTA starts with.
  EXPECT_EQ(backward.registers, bwd::launch_registers(config));
  EXPECT_EQ(backward.instructions.wgmma_f16, products(config));
  EXPECT_EQ(backward.instructions.mma(), products(config));
  const CubinKernel finish_dq = compiled(finish_dq_source(config));
  EXPECT_FALSE(finish_dq.spills()) << finish_dq.stack_bytes << " bytes of stack";
}

TEST(Sm90Backward, CompilesWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const int head_dim : {64, 128, 256})
    expect_compiles(bwd::tiles_for(head_dim, head_dim == 128 ? Element::bf16 : Element::f16));
  if (!test_long()) return;
  for (const int head_dim : {64, 80, 96, 128, 192, 256})
    for (const Element element : {Element::f16, Element::bf16}) {
      expect_compiles(bwd::tiles_for(head_dim, element));
      expect_compiles(bwd::small_tiles_for(head_dim, element));
    }
}

// Every set of modifiers that a plan chooses.
TEST(Sm90Backward, ModifiedKernelsCompileWithoutSpillsOrSerialisedProducts) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  if (!test_long()) GTEST_SKIP() << "OCTAVO_TEST_LONG is not set";
  for (const int head_dim : {64, 80, 96, 128, 192, 256})
    for (int set = 1; set < 8; ++set) {
      const Element element = set % 2 != 0 ? Element::f16 : Element::bf16;
      const ModifierConfig modifiers{
          .softcap = (set & 1) != 0, .alibi = (set & 2) != 0, .padded = (set & 4) != 0};
      expect_compiles(with_modifiers(bwd::tiles_for(head_dim, element), modifiers));
      if (head_dim == 64 || head_dim == 128)
        expect_compiles(with_modifiers(bwd::small_tiles_for(head_dim, element), modifiers));
    }
}

}  // namespace
}  // namespace octavo
