// SPDX-License-Identifier: Apache-2.0
// sm80_feasible: each rule with a config that breaks only that rule, and configs that must be
// accepted.
#include <gtest/gtest.h>

#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

Status check(std::string_view text, int chip = 90) {
  return feasible(parse_sm80_forward(text).value(), chip);
}

TEST(Sm80Feasible, AcceptsFeasibleConfigs) {
  for (const char* text :
       {"", "arch=90", "arch=89,element=e4m3,block_m=128", "arch=90,element=e5m2,head_dim=96",
        "element=int8,k_row_scales=true", "element=sim8,head_dim=256,stages=1", "load_bytes=2",
        "head_dim=192,head_dim_v=128", "head_dim_v=64", "element=int8,load_bytes=1",
        "warps_n=4,warps_m=2,block_m=32", "head_dim=16,block_n=16"}) {
    EXPECT_TRUE(check(text).ok()) << text << ": " << check(text).message();
  }
}

TEST(Sm80Feasible, RefusesInfeasibleConfigsWithAReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"arch=86", "config.arch"},
      {"element=f32", "config.element"},
      {"output.element=e4m3", "89 or later for FP8"},
      {"output.element=sim8", "config.output.element"},
      {"arch=80,element=e4m3", "89 or later"},
      {"k_row_scales=true", "k_row_scales"},
      {"head_dim=72", "multiples of 16"},
      {"element=int8,head_dim=80", "multiples of 32"},
      {"head_dim=528", "up to 512"},
      {"head_dim=272", "multiples of 32 above 256, or another head_dim_v"},
      {"element=int8,head_dim=288", "up to 256"},
      {"head_dim=384,block_m=64,modifiers.block_mask=64",
       "up to 256 for this element with a block"},
      {"head_dim=0", "config.head_dim"},
      {"head_dim=-64", "config.head_dim"},
      {"head_dim_v=72", "config.head_dim_v is 72; supported: multiples of 16 up to 512, 0 for"},
      {"head_dim_v=272", "config.head_dim_v is 272; supported: multiples of 32 up to 512"},
      {"head_dim_v=544", "config.head_dim_v"},
      {"head_dim_v=-16", "config.head_dim_v"},
      {"element=int8,head_dim_v=128", "0 for 8-bit elements"},
      {"block_m=48", "multiples of 16 warps_m = 64"},
      {"block_m=0", "config.block_m"},
      {"warps_m=0", "config.warps_m"},
      {"warps_n=-1", "config.warps_n"},
      {"warps_m=8,warps_n=8,block_m=128", "at most 32"},
      {"block_n=24", "config.block_n"},
      {"element=int8,block_n=48", "multiples of 32"},
      {"arch=89,element=e4m3,block_n=224", "up to 192"},
      {"stages=0", "config.stages"},
      {"load_bytes=3", "config.load_bytes"},
      {"load_bytes=1", "from 2 to 16"},
      {"load_bytes=32", "config.load_bytes"},
      {"v_tiles=0", "config.v_tiles"},
      {"v_tiles=3", "config.v_tiles"},
      {"rescale_log2=-1", "config.rescale_log2"},
      {"rescale_log2=16", "config.rescale_log2"},
      {"head_dim=256,block_n=256", "bytes of shared memory"},
      {"block_n=2147483632", "config.block_n"},
      {"warps_m=2147483647", "config.warps_m"},
  };
  for (const auto& [text, part] : cases) {
    const Status status = check(text);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
}

TEST(Sm80Feasible, RespectsTheChipsSharedMemory) {
  const char* const large = "head_dim=128,block_m=128,block_n=64,stages=3";  // 128 KB
  EXPECT_TRUE(check(large, 80).ok());
  EXPECT_FALSE(check(large, 86).ok());
  EXPECT_FALSE(check(large, 89).ok());
  EXPECT_TRUE(check(large, 90).ok());
  const char* const larger = "head_dim=128,block_m=64,block_n=64,stages=6";  // 208 KB
  EXPECT_FALSE(check(larger, 80).ok());
  EXPECT_TRUE(check(larger, 90).ok());
  EXPECT_TRUE(feasible(Sm80ForwardConfig{}, 90, sm80::smem_bytes(Sm80ForwardConfig{})).ok());
  EXPECT_FALSE(feasible(Sm80ForwardConfig{}, 90, sm80::smem_bytes(Sm80ForwardConfig{}) - 1).ok());
}

TEST(Sm80Feasible, RefusesConfigsForANewerChip) {
  EXPECT_FALSE(check("arch=90", 89).ok());
  EXPECT_FALSE(check("arch=89", 86).ok());
  EXPECT_TRUE(check("arch=80", 86).ok());
  EXPECT_FALSE(check("arch=80", 75).ok());
}

}  // namespace
}  // namespace octavo
