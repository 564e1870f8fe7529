// What sm90_feasible refuses, each rule by a config that breaks only it, and what it must not.
#include "gpu/sm90_feasible.h"

#include <gtest/gtest.h>

#include "config/sm90_shipped.h"
#include "gpu/config_text.h"

namespace octavo {
namespace {

Status check_sm90(std::string_view text, int chip = 90) {
  return feasible(parse_sm90_forward(text).value(), chip);
}

TEST(Sm90Feasible, WhatRuns) {
  for (const char* text :
       {"",
        "element=bf16,out=f32",
        "head_dim=96,block_n=96",
        "head_dim=128,block_n=80",
        "head_dim=256,warpgroups=2,block_n=80,own_o=false,ones=false",
        "warpgroups=4,block_n=64",
        "split_keys=true,persistent=false,warpgroups=2,cluster=2,stages=1",
        "split_keys=true,persistent=false,warpgroups=1,cluster=8",
        "rescale_log2=0",
        "element=e4m3,own_o=false,ones=false,fold_columns=32",
        "element=e5m2,own_o=false,ones=false,fold_columns=16,k_row_scales=true",
        "element=e4m3,own_o=false,fold_columns=64,f16_scores=true",
        "element=e4m3,own_o=false,warpgroups=4,fold_columns=32,f16_scores=true,overlap=false",
        "overlap=false",
        "warpgroups=4,block_n=64,overlap=false,scores_behind=true",
        "element=e4m3,mixed_v=f16,own_o=false,overlap=false,scores_behind=true",
        "element=e4m3,own_o=false,head_dim=256,warpgroups=2,fold_columns=32,f16_scores=true,"
        "overlap=false,scores_behind=true,fold_buffers=2",
        "element=e4m3,own_o=false,fold_columns=64,f16_scores=true,code_exp=true",
        "element=e4m3,own_o=false,fold_columns=64,fold_buffers=2,f16_scores=true,block_n=256,"
        "split_keys=true,persistent=false,overlap=false,warpgroups=2,stages=1",
        "element=e4m3,own_o=false,ones=false,fold_columns=32,early_start=true",
        "element=int8,own_o=false,fold_columns=64,block_n=64",
        "element=int8,own_o=false,fold_columns=32,overlap=false,warpgroups=4,block_n=96",
        "element=e4m3,mixed_v=f16,own_o=false",
        "element=e4m3,mixed_v=e5m2,own_o=false,fold_columns=64,block_n=64",
        "element=int8,mixed_v=bf16,own_o=false,block_n=80",
        "element=e4m3,mixed_v=f16,own_o=false,warpgroups=4,block_n=64,k_block_scales=true",
        "element=e4m3,mixed_v=f16,own_o=false,block_n=80,k_block_scales=true",
        "element=int8,mixed_v=f16,head_dim=128,warpgroups=2,own_o=false,k_block_scales=true",
        "out=e4m3,own_o=false,amax=true",
        "amax=true",
        "element=e4m3,out=int8,own_o=false,ones=false,fold_columns=32,early_start=true"}) {
    EXPECT_TRUE(check_sm90(text).ok()) << text << ": " << check_sm90(text).message();
  }
}

TEST(Sm90Feasible, WhatDoesNotAndWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"arch=89", "config.arch"},
      {"element=sim8", "config.element"},
      {"element=e4m3", "config.fold_columns"},
      {"element=e4m3,fold_columns=48", "divide 64 columns"},
      {"element=e4m3,fold_columns=32,ones=false", "config.own_o"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,block_n=80", "multiples of 32"},
      {"element=e4m3,fold_columns=64,ones=false,own_o=false,block_n=160", "registers for scores"},
      {"element=int8,fold_columns=32,ones=false,own_o=false,f16_scores=true", "config.f16_scores"},
      {"element=int8,own_o=false,fold_columns=32,overlap=false,warpgroups=4,block_n=96,"
       "k_row_scales=true",
       "registers for scores"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,f16_scores=true,k_row_scales=true",
       "config.f16_scores"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,f16_scores=true,k_block_scales=true",
       "config.f16_scores"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,f16_scores=true,code_exp=true",
       "config.code_exp"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,k_row_scales=true,k_block_scales=true",
       "config.k_block_scales"},
      {"f16_scores=true", "config.f16_scores"},
      {"scores_behind=true", "false with overlap"},
      {"split_keys=true,persistent=false,overlap=false,scores_behind=true",
       "false with split_keys and V of 16 bits"},
      {"fold_buffers=2", "1 with 16-bit elements"},
      {"element=e4m3,fold_columns=32,ones=false,own_o=false,fold_buffers=3", "1, 2 with 2 parts"},
      {"element=e4m3,fold_columns=64,ones=false,own_o=false,block_n=64,fold_buffers=2",
       "1 with 1 parts"},
      {"k_block_scales=true", "config.k_block_scales"},
      {"code_exp=true", "config.code_exp"},
      {"element=e4m3,fold_columns=16,ones=false,own_o=false,block_n=192", "up to 160 in FP8"},
      {"element=e4m3,fold_columns=64,own_o=false,f16_scores=true,block_n=256", "two buffers"},
      {"element=e4m3,fold_columns=32,fold_buffers=2,own_o=false,f16_scores=true,block_n=256",
       "all columns folded"},
      {"fold_columns=64", "0 with 16-bit elements"},
      {"k_row_scales=true", "false with 16-bit elements"},
      {"mixed_v=f16", "none with 16-bit elements"},
      {"mixed_v=e4m3", "none with 16-bit elements"},
      {"element=e4m3,mixed_v=e4m3,own_o=false,fold_columns=64", "e5m2 with e4m3"},
      {"element=int8,mixed_v=e5m2,own_o=false,ones=false,fold_columns=64", "e5m2 with e4m3"},
      {"element=e4m3,mixed_v=f16", "config.own_o"},
      {"element=e4m3,mixed_v=f16,own_o=false,fold_columns=64", "0 with mixed_v"},
      {"element=e4m3,mixed_v=f16,own_o=false,f16_scores=true", "false with mixed_v"},
      {"element=int8,mixed_v=f16,own_o=false,code_exp=true", "config.code_exp"},
      {"element=int8,mixed_v=f16,own_o=false,block_n=72", "multiples of 16"},
      {"element=int8,mixed_v=f16,own_o=false,k_row_scales=true,k_block_scales=true",
       "config.k_block_scales"},
      {"element=int8,mixed_v=f16,own_o=false,block_n=96,k_block_scales=true", "multiples of 64"},
      {"element=int8,mixed_v=f16,own_o=false,block_n=80,k_row_scales=true", "multiples of 64"},
      {"element=int8,mixed_v=f16,own_o=false,warpgroups=4,block_n=64", "1 to 3 with int8"},
      {"element=e4m3,mixed_v=f16,own_o=false,ones=false,head_dim=96,block_n=144", "up to 128 with"},
      {"element=e4m3,mixed_v=f16,own_o=false,head_dim=256,warpgroups=2,block_n=80",
       "wgmma has no more"},
      {"out=int8", "config.own_o"},
      {"out=sim8,own_o=false", "config.out"},
      {"amax=true,early_start=true", "false with amax"},
      {"head_dim=80", "64, 96, 128, 192, 256"},
      {"head_dim=256,warpgroups=2,block_n=80,own_o=false", "wgmma has no more"},
      {"warpgroups=0", "config.warpgroups"},
      {"warpgroups=5", "config.warpgroups"},
      {"block_n=24", "config.block_n"},
      {"block_n=272", "config.block_n"},
      {"block_n=0", "config.block_n"},
      {"stages=0", "config.stages"},
      {"stages=9", "config.stages"},
      {"rescale_log2=16", "config.rescale_log2"},
      {"ctas=2", "1 unless split_keys"},
      {"ctas=5,split_keys=true,persistent=false", "config.ctas"},
      {"cluster=2", "1 unless split_keys"},
      {"split_keys=true,persistent=false,cluster=3", "1, 2, 4, 8"},
      {"split_keys=true", "config.persistent"},
      {"split_keys=true,persistent=false,warpgroups=4,block_n=64,cluster=4", "divide 64 columns"},
      {"pack_heads=true", "false unless split_keys"},
      {"split_keys=true,persistent=false,row_groups=3,pack_heads=true", "1, 2, 4 with pack_heads"},
      {"block_n=192", "registers for scores"},
      {"head_dim=128,warpgroups=2,stages=3", "bytes of shared memory"},
  };
  for (const auto& [text, part] : cases) {
    const Status status = check_sm90(text);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
}

// Its instructions are of sm_90 alone: neither an older nor a newer chip has them.
TEST(Sm90Feasible, OneChip) {
  for (const int chip : {80, 89, 100, 120}) EXPECT_FALSE(check_sm90("", chip).ok()) << chip;
  const Sm90Forward config;
  EXPECT_TRUE(feasible(config, 90, sm90::smem_bytes(config)).ok());
  EXPECT_FALSE(feasible(config, 90, sm90::smem_bytes(config) - 1).ok());
}

TEST(Sm90Feasible, TheWholeTableWithLseAndWithout) {
  for (const sm90::TableRow& row : sm90::kTable) {
    for (const Element element : sm90::kShippedElements) {
      Sm90Forward config = sm90::config_of(row, element);
      EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
      config.ones = false;
      EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
    }
  }
}

TEST(Sm90Feasible, TheWholeTableOf8BitsWithLseAndWithout) {
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    const bool bytes = row.scores == sm90::Scores8Bit::bytes;
    Sm90Forward config = sm90::config_of(row, bytes ? Element::int8 : Element::e4m3);
    EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
    config.ones = config.code_exp;
    EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
  }
}

// Scales of K's rows want more registers than those of its blocks: some row has them.
TEST(Sm90Feasible, EveryHeadDimensionInFp8WithScalesOfKeys) {
  for (const Element element : {Element::e4m3, Element::e5m2})
    for (const int head_dim : {64, 96, 128, 192, 256}) {
      int served = 0;
      for (const sm90::TableRow& row : sm90::kTable8Bit) {
        if (row.head_dim != head_dim || row.scores != sm90::Scores8Bit::f32) continue;
        Sm90Forward config = sm90::config_of(row, element);
        config.k_row_scales = true;
        served += feasible(config, 90).ok() ? 1 : 0;
      }
      EXPECT_GT(served, 0) << head_dim;
    }
}

}  // namespace
}  // namespace octavo
