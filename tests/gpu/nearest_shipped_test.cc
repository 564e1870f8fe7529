// SPDX-License-Identifier: Apache-2.0
// The replacement for a kernel that cannot be compiled: always correct, and as similar as possible.
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/shipped.h"

namespace octavo {
namespace {

Sm80ForwardConfig config(const std::string& text) { return parse_sm80_forward(text).value(); }

std::optional<Sm80ForwardConfig> nearest(const Sm80ForwardConfig& wanted) {
  return nearest_shipped(wanted, wanted.arch, max_smem_bytes(wanted.arch));
}

TEST(NearestShipped, ShippedConfigIsItsOwnNearest) {
  for (const int arch : kShippedArchs) {
    for (const Sm80ForwardConfig& shipped : shipped_configs(arch)) {
      const std::optional<Sm80ForwardConfig> found = nearest(shipped);
      ASSERT_TRUE(found) << to_text(shipped);
      EXPECT_EQ(to_text(*found), to_text(shipped));
    }
  }
}

TEST(NearestShipped, WiderRowsAndTheNearestTile) {
  for (const int block_m : {32, 64, 128}) {
    Sm80ForwardConfig wanted =
        config("arch=90,element=bf16,output.element=bf16,head_dim=96,stages=3");
    wanted.block_m = block_m;
    const std::optional<Sm80ForwardConfig> found = nearest(wanted);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->head_dim, 128);
    EXPECT_EQ(found->block_m, block_m);
    EXPECT_EQ(found->element, Element::bf16);
  }
  const std::optional<Sm80ForwardConfig> narrow = nearest(config("arch=80,head_dim=32"));
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->head_dim, 64);
}

TEST(NearestShipped, PrecisionOfPMattersMoreThanTheTile) {
  const std::optional<Sm80ForwardConfig> two =
      nearest(config("arch=89,element=e4m3,head_dim=64,block_m=128,warps_m=8,p_terms=2"));
  ASSERT_TRUE(two);
  EXPECT_EQ(two->p_terms, 2);
  const std::optional<Sm80ForwardConfig> one =
      nearest(config("arch=89,element=e4m3,head_dim=64,block_m=64,p_terms=1"));
  ASSERT_TRUE(one);
  EXPECT_EQ(one->p_terms, 1);
}

// Each of these would access something else than the problem's bytes.
TEST(NearestShipped, NeverAnIncompatibleConfig) {
  for (const char* wanted :
       {"arch=90,head_dim=256,block_n=32", "arch=90,load_bytes=8", "arch=90,output.element=f32",
        "arch=90,element=bf16,output.element=f16", "arch=89,element=int8,k_row_scales=true",
        "arch=80,modifiers.softcap=true", "arch=80,modifiers.bias=true",
        "arch=80,modifiers.alibi=true", "arch=80,modifiers.mask=true",
        "arch=80,modifiers.sinks=true", "arch=80,modifiers.padded=true"}) {
    EXPECT_FALSE(nearest(config(wanted))) << wanted;
  }
}

TEST(NearestShipped, OnlyConfigsThatFitSharedMemory) {
  Sm80ForwardConfig wanted = config("arch=80,element=int8,head_dim=64");
  bool smaller = false;
  for (const Sm80ForwardConfig& shipped : shipped_configs(80)) {
    wanted.element = shipped.element;
    wanted.output = shipped.output;
    wanted.head_dim = shipped.head_dim;
    const std::optional<Sm80ForwardConfig> largest = nearest(wanted);
    ASSERT_TRUE(largest);
    const int less = sm80::smem_bytes(*largest) - 1;
    const std::optional<Sm80ForwardConfig> other = nearest_shipped(wanted, 80, less);
    if (!other) continue;
    EXPECT_LE(sm80::smem_bytes(*other), less);
    smaller = true;
  }
  EXPECT_TRUE(smaller);
  EXPECT_FALSE(nearest_shipped(wanted, 80, 1024));
}

// Chips newer than the cubins compile the PTX of an older arch.
TEST(NearestShipped, NewerChipsUseThePtxOfAnOlderArch) {
  const CodeFor code = code_for(120);
  EXPECT_TRUE(code.ptx);
  Sm80ForwardConfig wanted = config("head_dim=96");
  wanted.arch = code.arch;
  const std::optional<Sm80ForwardConfig> found = nearest_shipped(wanted, 120, max_smem_bytes(120));
  ASSERT_TRUE(found);
  const std::vector<KernelSource> shipped = shipped_kernels();
  EXPECT_NE(std::find(shipped.begin(), shipped.end(), kernel_source(*found, true)), shipped.end());
}

}  // namespace
}  // namespace octavo
