// SPDX-License-Identifier: Apache-2.0
// sm90_feasible: each rule with a config that breaks only that rule, and configs that must be
// accepted. Those that tests/device/sm90_forward_test.cc compiles must be accepted too, which is
// tested there.
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "config/sm90_shipped.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

Status check_sm90(std::string_view text, int chip = 90) {
  return feasible(parse_sm90_forward(text).value(), chip);
}

TEST(Sm90Feasible, AcceptsFeasibleConfigs) {
  for (const char* text :
       {"",
        "element=bf16,v_element=bf16,output.element=f32",
        "head_dim=96,block_n=96",
        "head_dim=128,block_n=80",
        "head_dim=256,warpgroups=2,block_n=80,sum_rounded_p=false",
        "warpgroups=4,block_n=64",
        "row_groups=1,warpgroups=1,cluster=8",
        "row_groups=1,warpgroups=2,stages=1,schedule=in_turn",
        "row_groups=1,warpgroups=2,schedule=pv_first",
        "row_groups=1,warpgroups=1,min_ctas=4,stages=1,block_n=64,schedule=in_turn",
        "element=e4m3,v_element=e4m3,sum_rounded_p=false,pv_columns=32",
        "element=e5m2,v_element=e5m2,sum_rounded_p=false,pv_columns=16,k_scales=row",
        "element=e4m3,v_element=e4m3,pv_columns=64,scores=f16",
        "schedule=pv_first",
        "warpgroups=4,block_n=64,schedule=pv_first_queued",
        "element=e4m3,v_element=f16,schedule=pv_first_queued",
        "element=e4m3,v_element=e4m3,pv_columns=64,scores=f16_fast",
        "element=e4m3,v_element=e4m3,pv_columns=64,pv_buffers=2,scores=f16,"
        "block_n=256,row_groups=1,schedule=pv_first,warpgroups=2,stages=1",
        "element=e4m3,v_element=e4m3,pv_columns=64,scores=f16,row_groups=1,"
        "schedule=pv_first_queued,warpgroups=1",
        "element=int8,v_element=int8,pv_columns=64,block_n=64",
        "element=int8,v_element=int8,pv_columns=32,schedule=pv_first,warpgroups=4,"
        "block_n=96",
        "head_dim=192,head_dim_v=128,warpgroups=2,block_n=96",
        "head_dim_v=256,warpgroups=2,block_n=64,sum_rounded_p=false",
        "head_dim=512,warpgroups=2,block_n=64,stages=1,sum_rounded_p=false",
        "head_dim=384,warpgroups=2,block_n=96,stages=1,sum_rounded_p=false",
        "head_dim_v=512,warpgroups=2,block_n=80,schedule=pv_first,sum_rounded_p=false",
        "element=e4m3",
        "element=e4m3,v_element=e5m2,pv_columns=64,block_n=64",
        "element=int8,v_element=bf16,block_n=80",
        "element=e4m3,warpgroups=4,block_n=64,k_scales=block",
        "element=e4m3,block_n=80,k_scales=block",
        "element=int8,head_dim=128,warpgroups=2,k_scales=block",
        "output.element=e4m3,output.amax=true",
        "output.amax=true",
        "modifiers.softcap=true,modifiers.bias=true,modifiers.alibi=true,modifiers.mask=true,"
        "modifiers.sinks=true,modifiers.padded=true",
        "element=e4m3,v_element=e4m3,output.element=int8,sum_rounded_p=false,"
        "pv_columns=32"}) {
    EXPECT_TRUE(check_sm90(text).ok()) << text << ": " << check_sm90(text).message();
  }
}

// The text is added to the configuration, so that it names the field that breaks the rule.
struct Refused {
  const char* text;
  const char* part;  // of the message
};
void expect_refused(const std::string& base, std::span<const Refused> cases) {
  for (const auto& [text, part] : cases) {
    const Status status = check_sm90(base + text);
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument) << text;
    EXPECT_NE(status.message().find(part), std::string::npos) << text << ": " << status.message();
  }
}

TEST(Sm90Feasible, RefusesInfeasibleConfigsWithAReason) {
  constexpr Refused kCases[] = {
      {"element=sim8", "config.element is sim8"},
      {"scores=f16", "f32 with 16-bit V"},
      {"scores=f16_fast", "f32 with 16-bit V"},
      {"pv_buffers=2", "1 with 16-bit V"},
      {"pv_columns=64", "0 with 16-bit V"},
      {"k_scales=block", "config.k_scales is block; supported: head with 16-bit"},
      {"k_scales=row", "config.k_scales is row; supported: head with 16-bit"},
      {"v_element=bf16", "the same as element"},
      {"v_element=e4m3", "the same as element"},
      {"output.element=sim8", "config.output.element"},
      {"head_dim=80", "64, 96, 128, 192, 256, 384, 512"},
      {"head_dim=320", "64, 96, 128, 192, 256, 384, 512"},
      {"head_dim_v=80",
       "config.head_dim_v is 80; supported: 64, 96, 128, 192, 256, 384, 512 other than"},
      {"head_dim=512,warpgroups=2,block_n=64,stages=2,sum_rounded_p=false",
       "bytes of shared memory"},
      {"head_dim=512,warpgroups=2,block_n=64,stages=1", "the limit of wgmma"},
      {"head_dim=384,warpgroups=2,block_n=64,stages=1,schedule=pv_first",
       "config.schedule is pv_first; supported: qk_first with head_dim above 256"},
      {"head_dim=384,row_groups=1,warpgroups=2,block_n=64,stages=1",
       "config.head_dim is 384; supported: up to 256 with row_groups"},
      {"head_dim_v=512,row_groups=1,warpgroups=2,block_n=64,stages=1",
       "config.head_dim_v is 512; supported: up to 256 with row_groups"},
      {"head_dim=512,warpgroups=1,block_n=64,stages=1,modifiers.block_mask=64",
       "config.head_dim is 512; supported: up to 256 with a block mask"},
      {"element=e4m3,head_dim=512,warpgroups=2,block_n=64,stages=1",
       "config.head_dim is 512; supported: up to 256 with 8-bit Q and K"},
      {"head_dim_v=64", "other than head_dim, 0 for head_dim"},
      {"head_dim_v=256,warpgroups=2,block_n=64", "the limit of wgmma"},
      {"head_dim_v=128", "registers for scores"},
      {"head_dim=256,head_dim_v=64,block_n=128", "bytes of shared memory"},
      {"row_groups=1,warpgroups=2,cluster=8,head_dim=128,head_dim_v=96,block_n=64",
       "divide 96 columns"},
      {"head_dim=256,warpgroups=2,block_n=80", "the limit of wgmma"},
      {"warpgroups=0", "config.warpgroups"},
      {"warpgroups=5", "config.warpgroups"},
      {"block_n=24", "config.block_n"},
      {"block_n=272", "config.block_n"},
      {"block_n=0", "config.block_n"},
      {"stages=0", "config.stages"},
      {"stages=9", "config.stages"},
      {"min_ctas=2", "1 unless row_groups is above 0"},
      {"min_ctas=5,row_groups=1", "config.min_ctas"},
      {"cluster=2", "1 unless row_groups is above 0"},
      {"row_groups=1,cluster=3", "1, 2, 4, 8"},
      {"row_groups=2", "divisors of warpgroups"},
      {"row_groups=-1", "divisors of warpgroups"},
      {"row_groups=1,warpgroups=4,block_n=64,cluster=4", "divide 64 columns"},
      {"pack_gqa=true", "false unless row_groups is above 0"},
      {"row_groups=3,pack_gqa=true", "1, 2, 4 with pack_gqa"},
      {"schedule=in_turn", "pv_first_queued unless row_groups is above 0"},
      {"row_groups=1,warpgroups=2,schedule=pv_first_queued",
       "in_turn with row_groups and 16-bit V"},
      {"block_n=192", "registers for scores"},
      {"head_dim=128,warpgroups=2,stages=3", "bytes of shared memory"},
      {"modifiers.bias=true,modifiers.bias_element=e4m3",
       "config.modifiers.bias_element is e4m3; supported: f16, bf16, f32"},
      {"modifiers.score_tiles=true",
       "config.modifiers.score_tiles is true; supported: false unless there is a bias"},
      {"modifiers.mask=true,modifiers.score_tiles=true,row_groups=1,warpgroups=2", "no row_groups"},
      {"head_dim=128,warpgroups=2,modifiers.bias=true,modifiers.score_tiles=true",
       "bytes of shared memory"},
  };
  expect_refused("", kCases);
}

TEST(Sm90Feasible, RefusesInfeasible8BitConfigsWithAReason) {
  constexpr Refused kFp8[] = {
      {"", "config.pv_columns"},
      {",pv_columns=64,head_dim_v=128",
       "config.head_dim_v is 128; supported: 0 with 8-bit Q and K"},
      {",pv_columns=48", "divide 64 columns"},
      {",pv_columns=64,modifiers.softcap=true",
       "config.modifiers.softcap is true; supported: false with 8-bit Q and K"},
      {",pv_columns=64,modifiers.bias=true",
       "config.modifiers.bias is true; supported: false with 8-bit Q and K"},
      {",pv_columns=64,modifiers.alibi=true", "config.modifiers.alibi is true"},
      {",pv_columns=64,modifiers.mask=true", "config.modifiers.mask is true"},
      {",pv_columns=64,modifiers.sinks=true", "config.modifiers.sinks is true"},
      {",pv_columns=64,modifiers.padded=true", "config.modifiers.padded is true"},
      {",pv_columns=32,block_n=80", "multiples of 32"},
      {",pv_columns=64,sum_rounded_p=false,block_n=160", "registers for scores"},
      {",pv_columns=32,scores=f16,k_scales=row", "config.scores"},
      {",pv_columns=32,scores=f16,k_scales=block", "config.scores"},
      {",pv_columns=32,sum_rounded_p=false,scores=f16_fast", "f32, f16 without sum_rounded_p"},
      {",pv_columns=32,sum_rounded_p=false,pv_buffers=3", "1, 2 with 2 products"},
      {",pv_columns=64,sum_rounded_p=false,block_n=64,pv_buffers=2", "1 with 1 products"},
      {",pv_columns=16,sum_rounded_p=false,block_n=192", "up to 160 in FP8"},
      {",pv_columns=64,scores=f16,block_n=256", "pv_buffers=2"},
      {",pv_columns=32,pv_buffers=2,scores=f16,block_n=256", "pv_columns=head_dim"},
  };
  expect_refused("element=e4m3,v_element=e4m3", kFp8);
  constexpr Refused kInt8[] = {
      {",pv_columns=32,scores=f16", "config.scores is f16"},
      {",pv_columns=32,schedule=pv_first,warpgroups=4,block_n=96,k_scales=row",
       "registers for scores"},
  };
  expect_refused("element=int8,v_element=int8", kInt8);
  constexpr Refused kOtherV[] = {
      {"element=e4m3,v_element=int8,block_n=64,pv_columns=64", "e4m3, e5m2 with FP8 Q and K"},
      {"element=int8,v_element=e5m2,pv_columns=64", "f16, bf16, int8 with INT8"},
      {"element=e4m3,v_element=f32,block_n=64", "config.v_element is f32"},
      {"element=e4m3,pv_columns=64", "0 with 16-bit V"},
      {"element=e4m3,scores=f16", "f32 with 16-bit V"},
      {"element=int8,block_n=72", "multiples of 16"},
      {"element=int8,block_n=96,k_scales=block", "multiples of 64"},
      {"element=int8,block_n=80,k_scales=row", "multiples of 64"},
      {"element=int8,warpgroups=4,block_n=64", "1 to 3 with INT8"},
      {"element=int8", "three warpgroups and more than 96 keys"},
      {"element=e4m3,sum_rounded_p=false,head_dim=96,block_n=144", "up to 128 with"},
      {"element=e4m3,head_dim=256,warpgroups=2,block_n=80", "the limit of wgmma"},
  };
  expect_refused("", kOtherV);
}

// Values that no text has, but that a caller of the library may construct.
TEST(Sm90Feasible, ValuesWithoutAName) {
  Sm90ForwardConfig c;
  c.schedule = static_cast<Schedule>(4);
  EXPECT_EQ(feasible(c, 90).message(),
            "config.schedule is 4; supported: qk_first, pv_first, pv_first_queued, in_turn.");
  c = {};
  c.k_scales = static_cast<KScales>(-1);
  EXPECT_EQ(feasible(c, 90).message(), "config.k_scales is -1; supported: head, block, row.");
  c = {};
  c.scores = static_cast<ScoreType>(3);
  EXPECT_EQ(feasible(c, 90).message(), "config.scores is 3; supported: f32, f16, f16_fast.");
}

// Its instructions exist only on sm_90: neither an older nor a newer chip has them.
TEST(Sm90Feasible, OtherArchitecturesAreRefused) {
  for (const int chip : {80, 89, 100, 120}) EXPECT_FALSE(check_sm90("", chip).ok()) << chip;
  const Sm90ForwardConfig config;
  EXPECT_TRUE(feasible(config, 90, sm90::smem_bytes(config)).ok());
  EXPECT_FALSE(feasible(config, 90, sm90::smem_bytes(config) - 1).ok());
}

TEST(Sm90Feasible, TheWholeTableWithLseAndWithout) {
  for (const sm90::TableRow& row : sm90::kTable) {
    for (const Element element : sm90::kShippedElements) {
      Sm90ForwardConfig config = sm90::config_of(row, element);
      EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
      config.sum_rounded_p = false;
      EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
    }
  }
}

TEST(Sm90Feasible, TheWholeTableOf8BitsWithLseAndWithout) {
  for (const sm90::TableRow& row : sm90::kTable8Bit) {
    Sm90ForwardConfig config = sm90::config_of(row, row.config.element);
    EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
    config.sum_rounded_p = config.scores == ScoreType::f16_fast;
    EXPECT_TRUE(feasible(config, 90).ok()) << feasible(config, 90).message();
  }
}

// A scale per row of K needs more registers than one per block: some row of the table has them.
TEST(Sm90Feasible, EveryHeadDimensionInFp8WithScalesOfKeys) {
  for (const Element element : {Element::e4m3, Element::e5m2})
    for (const int head_dim : {64, 96, 128, 192, 256}) {
      int served = 0;
      for (const sm90::TableRow& row : sm90::kTable8Bit) {
        const Sm90ForwardConfig& c = row.config;
        if (c.head_dim != head_dim || c.element == Element::int8 || c.scores != ScoreType::f32)
          continue;
        Sm90ForwardConfig config = sm90::config_of(row, element);
        config.k_scales = KScales::row;
        served += feasible(config, 90).ok() ? 1 : 0;
      }
      EXPECT_GT(served, 0) << head_dim;
    }
}

}  // namespace
}  // namespace octavo
