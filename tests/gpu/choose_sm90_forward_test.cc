// SPDX-License-Identifier: Apache-2.0
// The problems that the Hopper kernel serves, the chosen configuration, and the launch parameters.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/hopper_problems.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace {

TEST(ChooseSm90, Serves16And8BitsOnHopper) {
  GpuInfo gpu = h200();
  Problem p = problem(1, 8, 512, 64);
  EXPECT_TRUE(sm90_forward_supports(*resolve(p), gpu));
  p.q = p.k = p.v = DType::bf16;
  EXPECT_TRUE(sm90_forward_supports(*resolve(p), gpu));
  p.head_dim = p.head_dim_v = 60;
  EXPECT_FALSE(sm90_forward_supports(*resolve(p), gpu));
  p.head_dim = p.head_dim_v = 8;
  EXPECT_TRUE(sm90_forward_supports(*resolve(p), gpu));
  for (const DType given : {DType::e4m3, DType::e5m2, DType::int8}) {
    p.q = p.k = p.v = given;
    EXPECT_TRUE(sm90_forward_supports(*resolve(p), gpu));
  }
  p.q = p.k = p.v = DType::sim8;
  EXPECT_FALSE(sm90_forward_supports(*resolve(p), gpu));
  // f32 inputs must be quantized first; only 8-bit precisions do that.
  p.q = p.k = p.v = DType::f32;
  for (const auto& [precision, serves] :
       {std::pair{Precision::fp8, true}, {Precision::int8, true}, {Precision::fp16, false}}) {
    p.options.precision = precision;
    EXPECT_EQ(sm90_forward_supports(*resolve(p), gpu), serves) << name(precision);
  }
  for (const int arch : {80, 89, 100}) {
    gpu.arch = arch;
    EXPECT_FALSE(sm90_forward_supports(*resolve(problem(1, 8, 512, 64)), gpu)) << arch;
  }
}

TEST(ChooseSm90, EveryHeadDimAndLengthGetsAFeasibleKernel) {
  for (std::int64_t d = 8; d <= 256; d += 8) {
    for (const std::int64_t s : {0, 1, 64, 512, 2048, 16384, 1 << 20}) {
      for (const bool varlen : {false, true}) {
        for (const bool lse : {false, true}) {
          Problem p = problem(2, 8, s, d);
          p.varlen = varlen;
          p.lse = lse;
          p.out = DType::f32;
          const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
          EXPECT_TRUE(feasible(c, 90).ok()) << d << " " << s << feasible(c, 90).message();
          EXPECT_GE(c.head_dim, d);
          EXPECT_EQ(c.output.element, Element::f32);
          EXPECT_FALSE(varlen && sm90::is_split_kv(c)) << d << " " << s;
          EXPECT_FALSE(lse && c.sum_rounded_p) << d << " " << s;
        }
      }
    }
  }
}

// Block masks in 8 bits: tiles of a block's rows, 128 keys wherever registers hold them, and two
// stages or more.
TEST(ChooseSm90, BlockMasksIn8BitsGetAFeasibleKernel) {
  for (const std::int64_t d : {8, 64, 72, 96, 128, 192, 256})
    for (const DType type : {DType::e4m3, DType::e5m2, DType::int8})
      for (const Granularity scales : {Granularity::head, Granularity::row, Granularity::block})
        for (const std::int64_t size : {64, 128})
          for (int form = 0; form < 4; ++form) {
            Problem p = problem(2, 8, 4096, d);
            p.q = p.k = p.v = type;
            if (form == 2) p.v = DType::f16;
            p.k_scales = scales;
            p.q_max_quantized = p.k_max_quantized = form == 3 ? 16 : 0;
            p.lse = form == 1;
            p.block_mask = size;
            const Result<Resolved> resolved = resolve(p);
            ASSERT_TRUE(resolved.ok()) << resolved.status().message();
            ASSERT_TRUE(sm90_forward_supports(*resolved, h200())) << describe(p);
            const Sm90ForwardConfig c = choose_sm90_forward(*resolved, h200()).config;
            EXPECT_TRUE(feasible(c, 90).ok()) << describe(p) << ": " << feasible(c, 90).message();
            EXPECT_EQ(sm90::block_m(c), size);
            EXPECT_EQ(c.modifiers.block_mask, size);
            EXPECT_EQ(c.sum_rounded_p, !p.lse && is_8bit(p.v));
            EXPECT_GE(c.stages, 2) << describe(p);
            if (is_8bit(p.v) && d <= 128 && d > 64) {
              EXPECT_EQ(c.block_n, 128) << describe(p);
            }
            p.alibi = true;
            EXPECT_FALSE(sm90_forward_supports(*resolve(p), h200()));
          }
}

// V with other columns: tiles that hold both, with every mask that a kernel has. Only numbers of
// columns of one tile need no other kernel.
TEST(ChooseSm90, EveryHeadDimOfVGetsAFeasibleKernel) {
  constexpr std::int64_t kDims[] = {8, 64, 72, 128, 192, 256};
  for (const std::int64_t d : kDims)
    for (const std::int64_t v : kDims)
      for (const std::int64_t s : {0, 64, 512, 4096, 1 << 20})
        for (int form = 0; form < 6; ++form) {
          Problem p = problem(2, 8, s, d);
          p.head_dim_v = v;
          p.varlen = form == 1;
          p.lse = form == 2;
          p.mask = form == 3;
          p.block_mask = form == 4 ? 64 : form == 5 ? 128 : 0;
          ASSERT_TRUE(sm90_forward_supports(*resolve(p), h200()));
          const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
          EXPECT_TRUE(feasible(c, 90).ok()) << describe(p) << ": " << feasible(c, 90).message();
          EXPECT_GE(c.head_dim, d);
          EXPECT_GE(sm90::v_columns(c), v);
          EXPECT_FALSE(p.varlen && sm90::is_split_kv(c));
        }
  Problem p = problem(1, 16, 8192, 192);
  p.head_dim_v = 128;
  Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
  EXPECT_EQ(c.head_dim, 192);
  EXPECT_EQ(c.head_dim_v, 128);
  // The rows that were timed for this pair: large tiles if they fill the chip, small ones if not.
  EXPECT_EQ(std::pair(c.warpgroups, c.block_n), std::pair(3, 80));
  EXPECT_EQ(c.stages, 3);
  p.seqlen_q = p.seqlen_kv = 1024;
  c = choose_sm90_forward(*resolve(p), h200()).config;
  EXPECT_EQ(std::pair(c.warpgroups, c.block_n), std::pair(2, 64));
  p.heads_q = p.heads_kv = 8;
  p.seqlen_q = p.seqlen_kv = 512;
  EXPECT_TRUE(sm90::is_split_kv(choose_sm90_forward(*resolve(p), h200()).config));
  p.head_dim = 72;
  p.head_dim_v = 96;
  c = choose_sm90_forward(*resolve(p), h200()).config;
  EXPECT_EQ(c.head_dim, 96);
  EXPECT_EQ(c.head_dim_v, 0);
  p.head_dim_v = 100;
  EXPECT_FALSE(sm90_forward_supports(*resolve(p), h200()));
}

// More than 256 columns of Q and K or of V: one kernel, whatever the length, the mask or the
// modifiers, also where V has few columns or many.
TEST(ChooseSm90, WideHeadsGetAFeasibleKernel) {
  constexpr std::int64_t kDims[] = {8, 64, 128, 192, 256, 264, 384, 392, 512};
  for (const std::int64_t d : kDims)
    for (const std::int64_t v : kDims)
      for (int form = 0; form < 5; ++form) {
        if (std::max(d, v) <= 256) continue;
        Problem p = problem(2, 8, form == 1 ? 1 << 20 : 70, d);
        p.head_dim_v = v;
        p.varlen = form == 1;
        p.lse = form == 2;
        if (form == 3) {
          p.bias = DType::bf16;
          p.mask = p.alibi = p.sinks = p.padded = true;
        }
        p.out = form == 4 ? DType::f32 : DType::f16;
        ASSERT_TRUE(sm90_forward_supports(*resolve(p), h200()));
        const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
        EXPECT_TRUE(feasible(c, 90).ok()) << describe(p) << ": " << feasible(c, 90).message();
        EXPECT_GE(c.head_dim, d);
        EXPECT_GE(sm90::all_v_columns(c), v);
        EXPECT_EQ(sm90::column_tiles(c), v > 256 ? 2 : 1);
        EXPECT_FALSE(c.sum_rounded_p);
      }
  const Problem p = problem(1, 8, 4096, 512);
  const ChosenSm90Forward chosen = choose_sm90_forward(*resolve(p), h200());
  EXPECT_EQ(chosen.reason, "tiles of 128 rows by 64 keys, for half of the columns of V each");
  EXPECT_EQ(sm90::k_slices(chosen.config), 4);
}

TEST(ChooseSm90, WideHeadsNeed16BitsAndNoBlockMask) {
  Problem p = problem(1, 8, 512, 512);
  const auto refused = [](const Problem& with) { return resolve(with).status().message(); };
  EXPECT_TRUE(resolve(p).ok());
  constexpr const char* kIn16Bits =
      "head_dim is 512; supported here: 1 to 256 on a GPU; up to 512 with f16 or bf16 q, k and v "
      "and precision native.";
  p.options.precision = Precision::fp8;
  EXPECT_EQ(refused(p), kIn16Bits);
  p.options.precision = Precision::native;
  p.q = p.k = p.v = DType::e4m3;
  EXPECT_EQ(refused(p), kIn16Bits);
  p = problem(1, 8, 512, 512);
  p.k = p.v = DType::int8;
  EXPECT_EQ(refused(p), kIn16Bits);
  p = problem(1, 8, 512, 64);
  p.head_dim_v = 512;
  p.block_mask = 128;
  EXPECT_EQ(refused(p), "head_dim_v is 512; supported here: 1 to 256 with a block mask on a GPU.");
  p = problem(1, 8, 512, 520);
  EXPECT_EQ(refused(p), "head_dim is 520; supported here: 1 to 512 on a GPU.");
}

// Each tile of V's columns is one more head for the order of tiles.
TEST(ChooseSm90, WideHeadsHaveTwoTilesForEachRow) {
  const Problem p = problem(2, 3, 300, 512);
  const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
  const TileOrder order = tile_order(p, c, h200());
  EXPECT_EQ(order.heads_per_group * order.groups, 2 * 3 * 2);
}

// A row that is made for the tiles that it has stays as it is: what is counted agrees with the
// table.
TEST(ChooseSm90, RowsForOtherTilesAreCountedAsTheTableIs) {
  for (const sm90::TableRow& row : sm90::kTable) {
    const int columns = row.config.head_dim;
    const sm90::TableRow same = sm90::with_head_dims(row, columns, columns);
    EXPECT_EQ(same.config, row.config);
    EXPECT_EQ(same.estimate.resident, row.estimate.resident) << brief_text(row.config);
    EXPECT_EQ(same.estimate.block_us, row.estimate.block_us);
  }
  // Twice the columns of V: fewer CTAs on an SM, whose blocks take longer.
  const auto several = std::find_if(std::begin(sm90::kTable), std::end(sm90::kTable),
                                    [](const auto& row) { return row.estimate.resident == 4; });
  ASSERT_NE(several, std::end(sm90::kTable));
  const sm90::TableRow wider = sm90::with_head_dims(*several, 64, 128);
  EXPECT_LT(wider.estimate.resident, 4);
  EXPECT_GT(wider.estimate.block_us, several->estimate.block_us);
}

// 8-bit modes refuse it.
TEST(ChooseSm90, OtherColumnsOfVNeed16Bits) {
  Problem p = problem(1, 8, 512, 192);
  p.head_dim_v = 128;
  EXPECT_TRUE(resolve(p).ok());
  const auto refused = [](const Problem& with) {
    EXPECT_EQ(resolve(with).status().message(),
              "head_dim_v is 128; supported here: head_dim, here 192, on a GPU; others with f16 or "
              "bf16 q, k and v and precision native.");
  };
  p.options.precision = Precision::fp8;
  refused(p);
  p.options.precision = Precision::native;
  p.q = p.k = p.v = DType::int8;
  refused(p);
}

// A modifier or padding sets its field: the tiles are those of the plain problem, and with split-KV
// as many of its CTAs fit on an SM.
// 8-bit problems with them are left to the sm80 family.
TEST(ChooseSm90, ModifiersSetTheirFields) {
  struct Modifier {
    void (*set)(Problem&);
    bool ModifierConfig::*field;
  };
  const Modifier kModifiers[] = {
      {[](Problem& p) { p.options.softcap = 30; }, &ModifierConfig::softcap},
      {[](Problem& p) { p.bias = DType::bf16; }, &ModifierConfig::bias},
      {[](Problem& p) { p.alibi = true; }, &ModifierConfig::alibi},
      {[](Problem& p) { p.mask = true; }, &ModifierConfig::mask},
      {[](Problem& p) { p.sinks = true; }, &ModifierConfig::sinks},
      {[](Problem& p) { p.padded = true; }, &ModifierConfig::padded},
  };
  for (const std::int64_t d : {64, 96, 128, 192, 256})
    for (const std::int64_t s : {512, 16384})
      for (const Modifier& m : kModifiers) {
        Problem p = problem(2, 8, s, d);
        Sm90ForwardConfig plain = choose_sm90_forward(*resolve(p), h200()).config;
        EXPECT_FALSE(any(plain.modifiers));
        m.set(p);
        ASSERT_TRUE(sm90_forward_supports(*resolve(p), h200()));
        plain.modifiers.*m.field = true;
        const Sm90ForwardConfig chosen = choose_sm90_forward(*resolve(p), h200()).config;
        EXPECT_TRUE(feasible(chosen, 90).ok()) << feasible(chosen, 90).message();
        EXPECT_TRUE(chosen.min_ctas == 1 || sm90::is_split_kv(chosen));
        plain.min_ctas = chosen.min_ctas;
        // Bias and mask have tiles in shared memory, for which there may be fewer stages, except
        // for masks of four warpgroups.
        const bool has_tensor = chosen.modifiers.bias || chosen.modifiers.mask;
        EXPECT_EQ(chosen.modifiers.score_tiles,
                  has_tensor && !sm90::is_split_kv(chosen) &&
                      !(chosen.modifiers.mask && chosen.warpgroups == 4));
        EXPECT_EQ(chosen.modifiers.bias_element,
                  chosen.modifiers.bias ? Element::bf16 : Element::f32);
        if (has_tensor) {
          EXPECT_LE(chosen.stages, plain.stages);
          plain.modifiers.bias_element = chosen.modifiers.bias_element;
          plain.modifiers.score_tiles = chosen.modifiers.score_tiles;
          plain.stages = chosen.stages;
        }
        // Beside 80 keys of 256 columns there is no room for such tiles.
        if (!feasible(plain, 90).ok()) {
          EXPECT_TRUE(has_tensor && d == 256 && plain.block_n == 80);
          plain.block_n = 64;
        }
        EXPECT_TRUE(chosen == plain) << d << " " << s;
        p.q = p.k = p.v = DType::e4m3;
        if (!p.padded) {
          EXPECT_FALSE(sm90_forward_supports(*resolve(p), h200()));
        }
      }
}

// A block size that is a multiple of kScaledKeys costs nothing; other block sizes are handled like
// a scale per row.
TEST(ChooseSm90, ScalesOfKSelectTheKernel) {
  Problem p = problem(1, 8, 512, 64);
  p.q = p.k = p.v = DType::e5m2;
  struct Expected {
    Granularity granularity;
    std::int64_t block_rows;
    KScales k_scales;
  };
  for (const Expected& e : {Expected{Granularity::tensor, 64, KScales::head},
                            {Granularity::head, 64, KScales::head},
                            {Granularity::block, 64, KScales::block},
                            {Granularity::block, 128, KScales::block},
                            {Granularity::block, 50, KScales::row},
                            {Granularity::row, 64, KScales::row}}) {
    p.k_scales = e.granularity;
    p.k_block_rows = e.block_rows;
    const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
    EXPECT_EQ(c.k_scales, e.k_scales) << name(e.granularity) << e.block_rows;
    EXPECT_EQ(c.element, Element::e5m2);
    EXPECT_TRUE(feasible(c, 90).ok()) << feasible(c, 90).message();
  }
}

// For all scales of K: a scale per row takes shared memory that the row was timed without.
TEST(ChooseSm90, Every8BitProblemGetsAFeasibleKernel) {
  for (const DType type : {DType::e4m3, DType::e5m2, DType::int8})
    for (std::int64_t d = 8; d <= 256; d += 8)
      for (const std::int64_t s : {1, 64, 512, 2048, 16384})
        for (const Granularity scales :
             {Granularity::tensor, Granularity::head, Granularity::block, Granularity::row})
          for (const bool varlen : {false, true}) {
            Problem p = problem(2, 8, s, d);
            p.q = p.k = p.v = type;
            p.k_scales = scales;
            p.k_block_rows = 64;
            p.varlen = varlen;
            p.lse = s == 512;
            const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
            EXPECT_EQ(c.element, element_of(type));
            EXPECT_TRUE(feasible(c, 90).ok()) << name(type) << " " << d << " " << s << " "
                                              << name(scales) << ": " << feasible(c, 90).message();
          }
}

// 8-bit Q and K with 16-bit V use the 16-bit rows whose kernel has registers for scales.
TEST(ChooseSm90, MixedProblemsUse16BitRows) {
  for (const Precision precision : {Precision::fp8_mixed, Precision::int8_mixed})
    for (std::int64_t d = 8; d <= 256; d += 8)
      for (const std::int64_t s : {0, 1, 64, 512, 2048, 16384})
        for (const bool varlen : {false, true})
          for (const auto& [qk, k_scales] : {std::pair{Granularity::row, KScales::row},
                                             {Granularity::block, KScales::block},
                                             {Granularity::head, KScales::head}}) {
            Problem p = problem(2, 8, s, d);
            p.varlen = varlen;
            p.lse = s == 512;
            p.q = p.k = p.v = p.out = d % 16 == 0 ? DType::f16 : DType::bf16;
            p.options.precision = precision;
            p.options.quantization.qk = qk;
            EXPECT_TRUE(sm90_forward_supports(*resolve(p), h200()));
            const ChosenSm90Forward chosen = choose_sm90_forward(*resolve(p), h200());
            const Sm90ForwardConfig& c = chosen.config;
            EXPECT_TRUE(feasible(c, 90).ok()) << d << " " << s << feasible(c, 90).message();
            EXPECT_GE(c.head_dim, d);
            EXPECT_EQ(c.element,
                      precision == Precision::int8_mixed ? Element::int8 : Element::e4m3);
            EXPECT_EQ(c.v_element, d % 16 == 0 ? Element::f16 : Element::bf16);
            EXPECT_EQ(c.output.element, c.v_element);
            EXPECT_EQ(c.k_scales, k_scales);
            EXPECT_FALSE(c.pack_gqa || sm90::has_f16_scores(c) || c.pv_columns != 0);
            EXPECT_FALSE(varlen && sm90::is_split_kv(c)) << d << " " << s;
            EXPECT_FALSE(p.lse && c.sum_rounded_p) << d << " " << s;
            EXPECT_EQ(v_layout(c), VLayout::rows);
            EXPECT_NE(chosen.reason.find("by the table of 16-bit kernels"), std::string::npos);
          }
  Problem p = problem(1, 8, 512, 64);
  p.q = p.k = DType::e5m2;
  EXPECT_TRUE(sm90_forward_supports(*resolve(p), h200()));
  EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config.v_element, Element::f16);
  p.k = DType::e4m3;
  EXPECT_FALSE(resolve(p).ok());
  p.q = p.k = DType::sim8;
  EXPECT_FALSE(resolve(p).ok());
  p.q = p.k = DType::int8;
  p.v = DType::f32;
  EXPECT_FALSE(resolve(p).ok());
}

// FP16 scores need quantized values that are known to be small: Octavo's own, or those of a caller
// who declares it.
TEST(ChooseSm90, Fp16ScoresIfTheyFit) {
  Problem p = problem(1, 8, 512, 64);
  p.options.precision = Precision::fp8;
  const auto scores = [&p] { return choose_sm90_forward(*resolve(p), h200()).config.scores; };
  EXPECT_EQ(scores(), ScoreType::f16);
  p.options.quantization.qk = Granularity::row;
  EXPECT_EQ(scores(), ScoreType::f32);
  p.options.quantization = {};
  p.options.precision = Precision::int8;
  EXPECT_EQ(scores(), ScoreType::f32);

  p.options.precision = Precision::native;
  p.q = p.k = p.v = DType::e4m3;
  EXPECT_EQ(scores(), ScoreType::f32);
  p.q_max_quantized = 30;
  EXPECT_EQ(scores(), ScoreType::f32) << "448 of K's";
  p.k_max_quantized = 30;
  EXPECT_EQ(scores(), ScoreType::f16);
  p.k_max_quantized = 36;
  EXPECT_EQ(scores(), ScoreType::f32) << "64 * 30 * 36 > 65504";
}

TEST(ChooseSm90, FastExpIfRequested) {
  for (const std::int64_t d : {64, 128, 256}) {
    Problem p = problem(1, 8, 512, d);
    p.options.precision = Precision::fp8_fast;
    EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config.scores, ScoreType::f16_fast) << d;
    p.varlen = true;
    EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config.scores, ScoreType::f16_fast) << d;
    EXPECT_FALSE(sm90::is_split_kv(choose_sm90_forward(*resolve(p), h200()).config)) << d;
    p.varlen = false;
    p.lse = true;
    EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config.scores, ScoreType::f16) << d;
  }
}

// It may start while its own quantizers run, and waits for them.
TEST(ChooseSm90, EightBitKernelsLaunchEarlyAfterOurQuantizers) {
  Problem p = problem(1, 8, 512, 64);
  EXPECT_FALSE(choose_sm90_forward(*resolve(p), h200()).early_start);
  p.options.precision = Precision::fp8;
  EXPECT_TRUE(choose_sm90_forward(*resolve(p), h200()).early_start);
  p.options.precision = Precision::native;
  p.q = p.k = p.v = DType::e4m3;
  EXPECT_TRUE(choose_sm90_forward(*resolve(p), h200()).early_start) << "V is transposed first";
  p.v_layout = VLayout::transposed;
  EXPECT_FALSE(choose_sm90_forward(*resolve(p), h200()).early_start);
}

TEST(ChooseSm90, SmallGridsDivideKeysAndLargeOnesRows) {
  for (const std::int64_t d : {64, 128}) {
    EXPECT_TRUE(
        sm90::is_split_kv(choose_sm90_forward(*resolve(problem(1, 8, 512, d)), h200()).config))
        << d;
    EXPECT_FALSE(
        sm90::is_split_kv(choose_sm90_forward(*resolve(problem(8, 32, 2048, d)), h200()).config))
        << d;
  }
}

// 176 tiles of 192 rows take two waves on 132 SMs, 128 tiles of 256 rows take one: the smaller tile
// wastes more in its second wave than the larger one does in padding.
TEST(ChooseSm90, CountsWaves) {
  EXPECT_EQ(choose_sm90_forward(*resolve(problem(2, 8, 2048, 64)), h200()).config.warpgroups, 4);
  EXPECT_EQ(choose_sm90_forward(*resolve(problem(1, 32, 16384, 64)), h200()).config.warpgroups, 3);
}

TEST(ChooseSm90, BatchInvariantIgnoresBatchAndHeads) {
  for (const std::int64_t s : {64, 512, 4096}) {
    Problem one = problem(1, 1, s, 64);
    Problem many = problem(64, 32, s, 64);
    one.options.batch_invariant = many.options.batch_invariant = true;
    EXPECT_EQ(choose_sm90_forward(*resolve(one), h200()).config,
              choose_sm90_forward(*resolve(many), h200()).config);
  }
}

Problem few_queries(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                    std::int64_t seqlen_q) {
  Problem p = problem(batch, heads_q, 4096, 128);
  p.heads_kv = heads_kv;
  p.seqlen_q = seqlen_q;
  return p;
}

TEST(ChooseSm90, FewQueriesUsePackGqa) {
  for (const std::int64_t seqlen_q : {1, 4, 16, 32}) {
    const ChosenSm90Forward chosen =
        choose_sm90_forward(*resolve(few_queries(8, 32, 8, seqlen_q)), h200());
    EXPECT_TRUE(chosen.config.pack_gqa) << seqlen_q;
    EXPECT_TRUE(feasible(chosen.config, 90).ok());
    EXPECT_NE(chosen.reason.find("of several heads"), std::string::npos) << chosen.reason;
  }
  EXPECT_FALSE(choose_sm90_forward(*resolve(few_queries(8, 32, 32, 4)), h200()).config.pack_gqa);
  EXPECT_FALSE(choose_sm90_forward(*resolve(few_queries(8, 32, 8, 33)), h200()).config.pack_gqa);
  Problem p = few_queries(8, 32, 8, 4);
  p.varlen = true;
  EXPECT_FALSE(choose_sm90_forward(*resolve(p), h200()).config.pack_gqa);
  // A row's bits must not depend on the head ratio either.
  p.varlen = false;
  p.options.batch_invariant = true;
  const Sm90ForwardConfig config = choose_sm90_forward(*resolve(p), h200()).config;
  EXPECT_FALSE(config.pack_gqa);
  p.batch = 1;
  p.heads_q = p.heads_kv = 1;
  EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config, config);
}

// Here K and V of all heads do not fit into L2, so that the tile order depends on the SMs.
TEST(ChooseSm90, TheMarginChangesNoEstimate) {
  Problem p = problem(8, 8, 2048, 256, Causal::top_left);
  for (const sm90::TableRow& row : sm90::kTable) {
    if (row.config.head_dim != 256) continue;
    p.options.sm_margin = 0;
    const double us = estimated_us(row, p, h200());
    for (const std::int64_t margin : {4, 8, 33}) {
      p.options.sm_margin = margin;
      EXPECT_EQ(estimated_us(row, p, h200()), us) << margin;
    }
  }
}

TEST(ChooseSm90, LaunchesEarlyIfAllowed) {
  Problem p = problem(1, 8, 512, 64);
  const ChosenSm90Forward waits = choose_sm90_forward(*resolve(p), h200());
  EXPECT_FALSE(waits.early_start);
  p.options.overlap_launch = true;
  const ChosenSm90Forward early = choose_sm90_forward(*resolve(p), h200());
  EXPECT_TRUE(early.early_start);
  EXPECT_EQ(early.config, waits.config);
}

// 8-bit outputs are stored from registers. amax is cleared by a memset, which cannot be overlapped.
TEST(ChooseSm90, EightBitOutputsAndAmax) {
  for (const std::int64_t length : {512, 4096}) {
    Problem p = problem(1, 8, length, 128);
    Sm90ForwardConfig config = choose_sm90_forward(*resolve(p), h200()).config;
    p.out = DType::e4m3;
    p.options.overlap_launch = true;
    config.output.element = Element::e4m3;
    EXPECT_TRUE(choose_sm90_forward(*resolve(p), h200()).early_start);
    EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config, config);
    EXPECT_TRUE(feasible(config, 90).ok());
    p.out_amax = true;
    config.output.amax = true;
    EXPECT_FALSE(choose_sm90_forward(*resolve(p), h200()).early_start);
    EXPECT_EQ(choose_sm90_forward(*resolve(p), h200()).config, config);
    EXPECT_TRUE(feasible(config, 90).ok());
  }
}

// A few queries of heads that share keys share tiles, in 8 bits too.
TEST(ChooseSm90, PackGqaInEveryFormat) {
  for (const int d : {64, 128})
    for (const DType input : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::int8}) {
      Problem p = problem(8, 64, 4, d);
      p.heads_kv = 8;
      p.seqlen_kv = 4096;
      p.q = p.k = p.v = input;
      const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
      EXPECT_TRUE(c.pack_gqa) << name(input) << " " << d;
      EXPECT_TRUE(feasible(c, 90).ok()) << feasible(c, 90).message();
      p.options.batch_invariant = true;
      EXPECT_FALSE(choose_sm90_forward(*resolve(p), h200()).config.pack_gqa)
          << name(input) << " " << d;
    }
}

// One kind of FP8 for Q and K, and the other for V: the same rows, with V's own type.
TEST(ChooseSm90, BothKindsOfFp8) {
  for (const auto& [qk, v] : {std::pair{DType::e4m3, DType::e5m2}, {DType::e5m2, DType::e4m3}}) {
    Problem p = problem(1, 8, 512, 64);
    p.q = p.k = qk;
    p.v = v;
    EXPECT_TRUE(sm90_forward_supports(*resolve(p), h200()));
    EXPECT_TRUE(resolve(p).ok()) << resolve(p).status().message();
    EXPECT_EQ(sm80_forward_supports(*resolve(p)).message(),
              fmt::format("dtypes of q, k, v is {0}, {0}, {1}; supported here: one dtype for all "
                          "three on a GPU; e4m3 with e5m2 if an sm_90 kernel supports the problem "
                          "and all addresses and strides are multiples of 16 bytes.",
                          name(qk), name(v)));
    const Sm90ForwardConfig c = choose_sm90_forward(*resolve(p), h200()).config;
    EXPECT_EQ(c.element, element_of(qk));
    EXPECT_EQ(c.v_element, element_of(v));
    EXPECT_EQ(v_layout(c), VLayout::transposed);
    EXPECT_TRUE(feasible(c, 90).ok()) << feasible(c, 90).message();
    p.k = v;
    EXPECT_FALSE(resolve(p).ok());
    p.q = p.k = DType::int8;
    EXPECT_FALSE(resolve(p).ok());
  }
}

TEST(ChooseSm90, ReasonContainsTheEstimate) {
  const Problem p = problem(1, 8, 512, 64);
  double least = 1e9;
  for (const sm90::TableRow& row : sm90::kTable)
    if (row.config.head_dim == 64) least = std::min(least, estimated_us(row, p, h200()));
  const std::string reason = choose_sm90_forward(*resolve(p), h200()).reason;
  EXPECT_NE(reason.find(fmt::format("{:.3g} us", least)), std::string::npos) << reason;
}

TEST(LaunchSm90, ParamsMatchTheArguments) {
  Arguments a;
  a.q = ConstTensor::bshd(reinterpret_cast<void*>(0x1000), DType::f16, 2, 6, 100, 72);
  a.k = a.v = ConstTensor::bhsd(reinterpret_cast<void*>(0x2000), DType::f16, 2, 3, 300, 72);
  a.out = Tensor::bshd(reinterpret_cast<void*>(0x3000), DType::f16, 2, 6, 100, 72);
  a.lse = Tensor::bhsd(reinterpret_cast<void*>(0x4000), DType::f32, 2, 6, 100, 1);
  a.scale = -0.5f;
  Problem p = problem(2, 6, 100, 72);
  p.heads_kv = 3;
  p.seqlen_kv = 300;
  p.options.window_left = 17;
  const Sm90ForwardParams params = sm90_forward_params(p, a, {}, tile_order(p, {}, h200()));
  EXPECT_EQ(params.out, a.out.data);
  EXPECT_EQ(params.o_strides.row, 6 * 72);
  EXPECT_EQ(params.lse, a.lse.data);
  EXPECT_EQ(params.lse_strides.head, 100);
  EXPECT_EQ(params.row_tiles, 1);
  EXPECT_EQ(params.tiles, 12);
  EXPECT_EQ(params.heads_per_kv, 2);
  EXPECT_EQ(params.sequences, 2);
  EXPECT_EQ(params.seqlen_kv, 300);
  EXPECT_EQ(params.head_dim_v, 72);
  EXPECT_NEAR(params.scale_log2, 0.5 * 1.4426950408889634, 1e-7);
  EXPECT_EQ(params.negate, 1);
  EXPECT_EQ(params.bottom_right, 1);
  EXPECT_EQ(params.window_left, 17);
  EXPECT_EQ(params.window_right, kNoLimit);
}

// Five queries take eight rows per head: three heads that share keys take 24 of a tile's 64 rows.
TEST(LaunchSm90, ParamsWithPackGqa) {
  Arguments a;
  a.q = ConstTensor::bhsd(reinterpret_cast<void*>(0x1000), DType::f16, 2, 6, 5, 64);
  a.k = a.v = ConstTensor::bhsd(reinterpret_cast<void*>(0x20000), DType::f16, 2, 2, 300, 64);
  a.out = Tensor::bhsd(reinterpret_cast<void*>(0x900000), DType::f16, 2, 6, 5, 64);
  const Sm90ForwardConfig config{.warpgroups = 1, .row_groups = 1, .pack_gqa = true};
  const Problem p = *problem_of(a);
  const Sm90ForwardParams params = sm90_forward_params(p, a, config, tile_order(p, config, h200()));
  EXPECT_EQ(params.query_bits, 3);
  EXPECT_EQ(params.row_tiles, 1);
  EXPECT_EQ(params.tiles, 4);
  EXPECT_EQ(params.tile_heads, 2);
  EXPECT_EQ(params.heads_per_kv, 3);
  for (const auto& [seqlen_q, bits] : {std::pair{1, 0}, {2, 1}, {3, 2}, {4, 2}, {64, 6}, {65, 7}})
    EXPECT_EQ(query_bits(seqlen_q), bits) << seqlen_q;
}

TEST(LaunchSm90, OneTensorUnsuitableForTmaIsEnough) {
  Arguments a;
  a.q = a.k = a.v = ConstTensor::bhsd(reinterpret_cast<void*>(0x1000), DType::f16, 2, 6, 100, 64);
  a.out = Tensor::bhsd(reinterpret_cast<void*>(0x3000), DType::f16, 2, 6, 100, 64);
  EXPECT_TRUE(sm90_forward_can_address(a));
  for (ConstTensor* t : {&a.q, &a.k, &a.v}) {
    t->data = reinterpret_cast<void*>(0x1002);
    EXPECT_FALSE(sm90_forward_can_address(a));
    t->data = reinterpret_cast<void*>(0x1000);
  }
  // Empty K and V are not loaded, so their alignment does not matter.
  a.k = a.v = ConstTensor::bhsd(reinterpret_cast<void*>(0x1002), DType::f16, 2, 6, 0, 64);
  EXPECT_TRUE(sm90_forward_can_address(a));
  a.out.stride[2] = 68;
  EXPECT_FALSE(sm90_forward_can_address(a));
}

}  // namespace
}  // namespace octavo
