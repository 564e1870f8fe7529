// SPDX-License-Identifier: Apache-2.0
// The chosen configuration of the decode kernel runs on every chip.
#include <gtest/gtest.h>

#include <cstdint>

#include "gpu/decode/decode.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/config_text.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

GpuInfo decoding_chip(int arch) {
  GpuInfo info;
  info.arch = arch;
  info.sms = arch == 90 ? 132 : 58;
  info.smem_per_block_optin = max_smem_bytes(arch);
  return info;
}

Problem decoding(DType q, DType kv, std::int64_t heads, std::int64_t head_dim) {
  Problem p;
  p.batch = 2;
  p.heads_q = heads;
  p.heads_kv = 1;
  p.seqlen_q = 1;
  p.seqlen_kv = 4096;
  p.head_dim = p.head_dim_v = head_dim;
  p.q = p.out = q;
  p.k = p.v = kv;
  return p;
}

TEST(ChooseDecode, FitsEveryChip) {
  int chosen = 0;
  for (const int arch : {80, 86, 89, 90, 120})
    for (const DType kv : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::int8})
      for (const std::int64_t head_dim : {16, 64, 80, 96, 128, 160, 192, 256})
        for (const std::int64_t heads : {1, 8, 17, 64})
          for (const std::int64_t batch : {1, 200}) {
            const DType q = kv == DType::bf16 ? DType::bf16 : DType::f16;
            Problem p = decoding(q, kv, heads, head_dim);
            p.batch = batch;
            const GpuInfo info = decoding_chip(arch);
            const bool fp8 = kv == DType::e4m3 || kv == DType::e5m2;
            EXPECT_EQ(decode_supports(p, info), arch >= 89 || !fp8);
            if (!decode_supports(p, info)) continue;
            ++chosen;
            const DecodeConfig config = choose_decode(p, info).config;
            const Status status = feasible(config, info);
            EXPECT_TRUE(status.ok()) << arch << ' ' << to_text(config) << ": " << status.message();
            EXPECT_GE(config.head_dim, head_dim);
          }
  EXPECT_EQ(chosen, 1344);  // of 1600, without FP8 on two chips
}

// Addresses within a row are combined by XOR, so stages begin at multiples of a row.
TEST(ChooseDecode, StagesThatAreNotAlignedToARowAreRefused) {
  DecodeConfig c =
      choose_decode(decoding(DType::f16, DType::e4m3, 1, 256), decoding_chip(90)).config;
  EXPECT_TRUE(feasible(c, decoding_chip(90)).ok());
  c.block_m = 8;
  c.block_n = 16;
  c.warps = 1;
  c.min_ctas = 1;
  const Status status = feasible(c, decoding_chip(90));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("aligned to a row"), std::string::npos) << status.message();
}

// Up to eight query rows are the columns of mma tiles; more are 16 or 32 rows. A quantized cache of
// many work tiles then has more CTAs per SM.
TEST(ChooseDecode, UpToEightRowsAreColumns) {
  const GpuInfo hopper = decoding_chip(90);
  const auto chosen = [&hopper](DType kv, std::int64_t heads) {
    Problem p = decoding(DType::bf16, kv, heads, 128);
    p.batch = 200;
    if (kv == DType::int4) {
      p.paged = true;
      p.page_size = 16;
      p.kv_group = 32;
    }
    return choose_decode(p, hopper).config;
  };
  for (const DType kv : {DType::bf16, DType::e4m3, DType::int8, DType::int4}) {
    EXPECT_EQ(chosen(kv, 1).block_m, 8);
    EXPECT_EQ(chosen(kv, 8).block_m, 8);
    EXPECT_EQ(chosen(kv, 9).block_m, 16);
    EXPECT_EQ(chosen(kv, 17).block_m, kv == DType::int4 ? 16 : 32);
  }
  EXPECT_EQ(chosen(DType::bf16, 8).min_ctas, 1);
  for (const std::int64_t heads : {8, 16}) {
    EXPECT_EQ(chosen(DType::e4m3, heads).min_ctas, 2);
    EXPECT_EQ(chosen(DType::e4m3, heads).stages, 3);
    EXPECT_EQ(chosen(DType::int4, heads).min_ctas, 2);
    EXPECT_EQ(chosen(DType::int4, heads).block_n, 64);
  }
}

// A cluster computes each work tile if there are a few equally long ones, up to one for two SMs.
TEST(ChooseDecode, ClustersOfFewEqualWorkTiles) {
  Problem p = decoding(DType::bf16, DType::bf16, 32, 128);
  p.batch = 1;
  p.heads_kv = 8;
  const auto has_clusters = [](const Problem& problem, int arch = 90) {
    return choose_decode(problem, decoding_chip(arch)).config.clusters;
  };
  EXPECT_TRUE(has_clusters(p));
  EXPECT_FALSE(has_clusters(p, 89));
  Problem other = p;
  other.heads_kv = 4;  // too few SMs
  EXPECT_FALSE(has_clusters(other));
  other = p;
  other.batch = 8;
  EXPECT_TRUE(has_clusters(other));
  other.batch = 9;  // more than one work tile for two SMs
  EXPECT_FALSE(has_clusters(other));
  other = p;
  other.options.sm_margin = 120;
  EXPECT_FALSE(has_clusters(other));
  // Sequences of different length must be divided evenly; a single one may have any length.
  other = p;
  other.paged = true;
  other.page_size = 16;
  EXPECT_TRUE(has_clusters(other));
  other.options.batch_invariant = true;
  EXPECT_FALSE(has_clusters(other));
  other.options.batch_invariant = false;
  other.batch = 2;
  EXPECT_FALSE(has_clusters(other));
  other = p;
  other.batch = 2;
  other.padded = true;
  EXPECT_FALSE(has_clusters(other));
  // Half of the SMs read a 16-bit cache fast enough, but do not convert a long 8-bit one.
  other = p;
  other.seqlen_kv = 32768;
  EXPECT_TRUE(has_clusters(other));
  other.k = other.v = DType::e4m3;
  EXPECT_FALSE(has_clusters(other));
  other.seqlen_kv = 4096;
  EXPECT_TRUE(has_clusters(other));
}

TEST(ChooseDecode, UnsupportedProblemsAreRefused) {
  const GpuInfo info = decoding_chip(90);
  const Problem good = decoding(DType::f16, DType::f16, 8, 64);
  ASSERT_TRUE(decode_supports(good, info));
  const auto refused = [&](const auto& change) {
    Problem p = good;
    change(p);
    return !decode_supports(p, info);
  };
  EXPECT_TRUE(refused([](Problem& p) { p.heads_q = p.heads_kv = 0; }));
  EXPECT_TRUE(refused([](Problem& p) { p.seqlen_kv = 0; }));
  EXPECT_TRUE(refused([](Problem& p) { p.head_dim = p.head_dim_v = 60; }));
  EXPECT_TRUE(refused([](Problem& p) { p.head_dim = p.head_dim_v = 264; }));
  EXPECT_TRUE(refused([](Problem& p) { p.varlen = true; }));
  EXPECT_TRUE(refused([](Problem& p) { p.mask = true; }));
  EXPECT_TRUE(refused([](Problem& p) { p.bias = DType::f16; }));
  EXPECT_TRUE(refused([](Problem& p) { p.out = DType::e4m3; }));
  EXPECT_TRUE(refused([](Problem& p) { p.v = DType::int8; }));
  EXPECT_TRUE(refused([](Problem& p) { p.k = p.v = DType::sim8; }));
  EXPECT_TRUE(refused([](Problem& p) { p.options.batch_invariant = true; }));
  EXPECT_FALSE(refused([](Problem& p) {
    p.options.batch_invariant = p.paged = true;
    p.page_size = 16;
  }));
  EXPECT_TRUE(refused([](Problem& p) { p.options.precision = Precision::fp8; }));
  EXPECT_TRUE(refused([](Problem& p) { p.seqlen_q = std::int64_t{1} << 30; }));  // 2^33 rows
  // An empty paged cache is served; an empty dense one is not.
  EXPECT_FALSE(refused([](Problem& p) {
    p.paged = true;
    p.page_size = 16;
    p.seqlen_kv = 0;
  }));
}

}  // namespace
}  // namespace octavo
