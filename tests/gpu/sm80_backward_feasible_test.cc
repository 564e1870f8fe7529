// SPDX-License-Identifier: Apache-2.0
// Each rule of the backward kernel's configurations with a config that breaks only that rule, and
// configs that must be accepted.
#include <gtest/gtest.h>

#include <span>

#include "config/sm80_backward_tiles.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

Status check_backward(std::string_view text, int chip = 90) {
  return feasible(parse_sm80_backward(text).value(), chip, max_smem_bytes(chip));
}

TEST(Sm80BackwardFeasible, AcceptsFeasibleConfigs) {
  for (const char* text :
       {"", "arch=90,element=bf16", "pass=dq,block_m=64,block_n=32", "head_dim=16,load_bytes=2",
        "head_dim=256,block_n=64,block_m=64,warps=2,warps_d=4", "stages=1", "block_m=128",
        "pass=dbias,block_m=64,block_n=64,stages=1,modifiers.bias=true"})
    EXPECT_TRUE(check_backward(text).ok()) << text << ": " << check_backward(text).message();
}

TEST(Sm80BackwardFeasible, RefusesInfeasibleConfigsWithAReason) {
  const std::pair<const char*, const char*> cases[] = {
      {"arch=86", "config.arch"},
      {"element=f32", "config.element"},
      {"element=e4m3", "f16, bf16"},
      {"head_dim=72", "multiples of 16"},
      {"head_dim=16,warps_d=2", "multiples of 16 warps_d = 32"},
      {"head_dim=272", "up to 256"},
      {"head_dim=0", "config.head_dim"},
      {"head_dim=-64", "config.head_dim"},
      {"block_m=24", "config.block_m"},
      {"block_m=48", "divide 128"},
      {"block_m=256", "divide 128"},
      {"block_m=0", "config.block_m"},
      {"block_m=16,warps_d=2", "multiples of 32"},
      {"block_n=96", "multiples of 64"},
      {"block_n=0", "config.block_n"},
      {"block_n=2147483584", "up to 1024"},
      {"pass=dq,block_m=32", "multiples of 64"},
      {"pass=dq,block_m=64,block_n=24", "config.block_n"},
      {"warps=0", "config.warps"},
      {"warps=2147483647", "config.warps"},
      {"warps=16,warps_d=2,block_n=256", "1 to 15"},
      {"warps=12,warps_d=4,block_n=192,block_m=64", "at most 32 warps"},
      {"warps_d=3", "1, 2, 4"},
      {"stages=0", "config.stages"},
      {"load_bytes=1", "2, 4, 8, 16"},
      {"load_bytes=32", "2, 4, 8, 16"},
      {"warps=1,block_n=16,block_m=128", "up to two queries"},
      {"head_dim=256,stages=4", "bytes of shared memory"},
      {"pass=dbias,block_m=64,block_n=64,stages=1", "config.modifiers.bias"},
      {"pass=dbias,block_m=64,block_n=64,modifiers.bias=true", "config.stages"},
      {"pass=dbias,block_m=64,block_n=64,stages=1,modifiers.bias=true,warps_d=2", "config.warps_d"},
      {"pass=dbias,block_m=64,block_n=64,stages=1,modifiers.bias=true,own_in_registers=true",
       "config.own_in_registers"},
      {"modifiers.block_mask=32", "config.modifiers.block_mask"},
      {"modifiers.block_mask=64", "config.block_n"},
      {"modifiers.block_mask=64,pass=dq,block_m=128,block_n=32", "config.block_m"},
      {"modifiers.block_mask=128,warps=2,block_n=128", "config.warps"},
      {"modifiers.block_mask=128,block_m=64", "at most 1024 scores"},
      {"modifiers.block_mask=128,modifiers.padded=true", "config.modifiers.padded"},
  };
  for (const auto& [text, part] : cases) {
    const Status status = check_backward(text);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
  EXPECT_NE(check_backward("arch=90", 89).message().find("up to 89"), std::string::npos);
}

// Each head dimension of the table has tiles for the smallest shared memory, and every row can run
// on some chip.
void expect_tiles_for_every_chip(std::span<const sm80::BackwardTiles> table) {
  const Sm80BackwardConfig base{.modifiers = {.bias = true}};
  for (const sm80::BackwardTiles& tiles : table) {
    const Sm80BackwardConfig config = sm80::with_tiles(base, tiles);
    EXPECT_TRUE(feasible(config, 90, max_smem_bytes(90)).ok()) << to_text(config);
    for (const int arch : {80, 89}) {
      bool found = false;
      for (const sm80::BackwardTiles& other : table)
        found = found || (other.pass == tiles.pass && other.head_dim == tiles.head_dim &&
                          feasible(sm80::with_tiles(base, other), arch, max_smem_bytes(arch)).ok());
      EXPECT_TRUE(found) << to_text(config) << " on sm_" << arch;
    }
  }
}

TEST(Sm80BackwardFeasible, TablesFitEveryChip) {
  expect_tiles_for_every_chip(sm80::kBackwardTiles);
  expect_tiles_for_every_chip(sm80::kModifiedBackwardTiles);
  expect_tiles_for_every_chip(sm80::kBlocksOf64BackwardTiles);
  expect_tiles_for_every_chip(sm80::kBiasGradientTiles);
}

}  // namespace
}  // namespace octavo
