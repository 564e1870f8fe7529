// SPDX-License-Identifier: Apache-2.0
// Every feature of the CPU backend against the fp64 oracle, with every instruction set that this
// machine supports.
#include <gtest/gtest.h>

#include "case.h"
#include "cpu/kernels.h"
#include "cpu/task.h"

namespace octavo::cpu {
namespace {

class CpuAttention : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override { use_kernels(GetParam()); }
  void TearDown() override { use_kernels(nullptr); }
};

INSTANTIATE_TEST_SUITE_P(Targets, CpuAttention, testing::ValuesIn(available_kernels()),
                         [](const auto& target) { return std::string(target.param->name); });

TEST_P(CpuAttention, LengthsAroundEveryTileBoundary) {
  for (const std::int64_t seqlen_q : {1, 15, 16, 17, 47, 48, 49, 97, 290})
    for (const std::int64_t seqlen_kv : {1, 7, 63, 64, 65, 129}) {
      SCOPED_TRACE(testing::Message() << seqlen_q << " x " << seqlen_kv);
      Call({.heads_q = 1, .heads_kv = 1, .seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv})
          .expect_matches_reference(tolerance(DType::f32));
    }
}

TEST_P(CpuAttention, AnyHeadDim) {
  for (const std::int64_t head_dim :
       {1, 2, 3, 7, 8, 15, 17, 33, 63, 64, 65, 80, 127, 130, 256, 300}) {
    SCOPED_TRACE(head_dim);
    Call({.seqlen_q = 51, .seqlen_kv = 70, .head_dim = head_dim})
        .expect_matches_reference(tolerance(DType::f32));
  }
}

TEST_P(CpuAttention, AnyHeadDimOfV) {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{192, 128}, {64, 128}, {128, 64}, {1, 70}, {70, 1}, {33, 7}, {24, 300}}) {
    SCOPED_TRACE(testing::Message() << head_dim << ' ' << head_dim_v);
    Case c{.batch = 2,
           .heads_q = 4,
           .heads_kv = 2,
           .seqlen_q = 51,
           .seqlen_kv = 70,
           .head_dim = head_dim,
           .head_dim_v = head_dim_v,
           .row_gap = 3};
    c.options.causal = Causal::bottom_right;
    Call(c).expect_matches_reference(tolerance(DType::f32));
  }
}

// Several groups of keys are added up in FP64.
TEST_P(CpuAttention, UnequalHeadDimsOverManyKeys) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{9, 24}, {24, 9}})
    Call({.heads_q = 1,
          .heads_kv = 1,
          .seqlen_q = 5,
          .seqlen_kv = 2 * kGroupKeys + 70,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v})
        .expect_matches_reference(tolerance(DType::f32));
}

TEST_P(CpuAttention, EveryFormatOfEveryOperand) {
  for (const DType q : kAllDTypes)
    for (const DType k : kAllDTypes)
      for (const DType v : kAllDTypes) {
        SCOPED_TRACE(testing::Message() << name(q) << ' ' << name(k) << ' ' << name(v));
        Call({.seqlen_q = 19, .seqlen_kv = 21, .head_dim = 20, .q = q, .k = k, .v = v})
            .expect_matches_reference(tolerance(DType::f32));
      }
}

TEST_P(CpuAttention, EveryOutputFormat) {
  for (const DType out : {DType::f32, DType::f16, DType::bf16})
    for (const std::int64_t head_dim : {5, 16, 40})
      Call({.seqlen_q = 20, .seqlen_kv = 30, .head_dim = head_dim, .out = out, .row_gap = 3})
          .expect_matches_reference(tolerance(out));
}

TEST_P(CpuAttention, EveryGranularityOfTheCallersScales) {
  for (const Granularity granularity : kAllGranularities)
    for (const DType dtype : {DType::e4m3, DType::sim8}) {
      SCOPED_TRACE(testing::Message() << name(granularity) << ' ' << name(dtype));
      Call call({.batch = 2,
                 .heads_q = 4,
                 .seqlen_q = 20,
                 .seqlen_kv = 70,
                 .q = dtype,
                 .k = dtype,
                 .v = dtype});
      Call::scales(granularity, call.arguments.q, call.q_scales, call.arguments.q_scales);
      Call::scales(granularity, call.arguments.k, call.k_scales, call.arguments.k_scales);
      Call::scales(granularity, call.arguments.v, call.v_scales, call.arguments.v_scales);
      call.expect_matches_reference(tolerance(DType::f32));
    }
}

TEST_P(CpuAttention, MasksAndWindows) {
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right})
    for (const auto& [left, right] : {std::pair{-1, -1}, {0, 0}, {5, -1}, {-1, 3}, {70, 2}})
      for (const auto& [seqlen_q, seqlen_kv] :
           {std::pair{130, 150}, {150, 130}, {3, 200}, {200, 3}}) {
        SCOPED_TRACE(testing::Message() << name(causal) << " window " << left << ',' << right
                                        << " lengths " << seqlen_q << ',' << seqlen_kv);
        Case c{.heads_q = 1, .heads_kv = 1, .seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv};
        c.options.causal = causal;
        c.options.window_left = left;
        c.options.window_right = right;
        Call(c).expect_matches_reference(tolerance(DType::f32));
      }
}

TEST_P(CpuAttention, GroupedHeadsMatchTheReference) {
  for (const std::int64_t heads_kv : {1, 2, 4, 8})
    for (const std::int64_t seqlen_q : {1, 3, 20, 100}) {
      SCOPED_TRACE(testing::Message() << heads_kv << " key heads, " << seqlen_q << " queries");
      Case c{
          .batch = 2, .heads_q = 8, .heads_kv = heads_kv, .seqlen_q = seqlen_q, .seqlen_kv = 100};
      c.options.causal = Causal::bottom_right;
      Call(c).expect_matches_reference(tolerance(DType::f32));
    }
}

TEST_P(CpuAttention, LayoutsAndScales) {
  for (const auto order : {OwnedTensor::Order::bhsd, OwnedTensor::Order::bshd})
    for (const std::int64_t gap : {0, 5})
      for (const std::optional<float> scale : {std::optional<float>{}, {0.0f}, {-0.7f}, {2.0f}})
        Call({.batch = 2,
              .seqlen_q = 30,
              .seqlen_kv = 33,
              .order = order,
              .row_gap = gap,
              .scale = scale})
            .expect_matches_reference(1e-5);
}

TEST_P(CpuAttention, ChannelScalesFollowTheColumnsOfEachTensor) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{40, 24}, {24, 40}}) {
    Call call({.heads_q = 4,
               .seqlen_q = 20,
               .seqlen_kv = 70,
               .head_dim = head_dim,
               .head_dim_v = head_dim_v,
               .q = DType::e4m3,
               .k = DType::int8,
               .v = DType::sim8});
    Call::scales(Granularity::channel, call.arguments.q, call.q_scales, call.arguments.q_scales);
    Call::scales(Granularity::channel, call.arguments.k, call.k_scales, call.arguments.k_scales);
    Call::scales(Granularity::channel, call.arguments.v, call.v_scales, call.arguments.v_scales);
    call.expect_matches_reference(tolerance(DType::f32));
  }
}

TEST_P(CpuAttention, VarlenSequencesOfAllLengths) {
  for (const DType dtype : {DType::f32, DType::int8})
    for (const Granularity granularity : kAllGranularities) {
      const std::vector<std::int32_t> cu_q{2, 2, 10, 75, 76}, cu_kv{0, 5, 5, 100, 103};
      Case c{.heads_q = 4,
             .seqlen_q = 80,
             .seqlen_kv = 104,
             .q = dtype,
             .k = dtype,
             .v = dtype,
             .order = OwnedTensor::Order::bshd};
      c.options.causal = Causal::bottom_right;
      Call call(c);
      Arguments& a = call.arguments;
      a.cu_seqlens_q = cu_q.data();
      a.cu_seqlens_kv = cu_kv.data();
      a.sequences = 4;
      a.max_seqlen_q = 65;
      a.max_seqlen_kv = 90;
      Call::scales(granularity, a.q, call.q_scales, a.q_scales, 4, a.max_seqlen_q);
      Call::scales(granularity, a.k, call.k_scales, a.k_scales, 4, a.max_seqlen_kv);
      Call::scales(granularity, a.v, call.v_scales, a.v_scales, 4, a.max_seqlen_kv);
      std::vector<double> expected(call.values(call.out).size());
      ASSERT_TRUE(reference(a, c.options, expected.data()).ok());
      ASSERT_EQ(call.run().message(), "");
      // Tokens of no sequence are not written.
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t s = 0; s < 80; ++s)
          for (std::int64_t d = 0; d < c.head_dim; ++d) {
            const float found = load_element(DType::f32, a.out.data, call.out.at(0, h, s, d));
            if (s < 2 || s >= 76)
              ASSERT_TRUE(std::isnan(found)) << "token " << s;
            else
              ASSERT_NEAR(found, expected[static_cast<std::size_t>((h * 80 + s) * c.head_dim + d)],
                          1e-5)
                  << "token " << s;
          }
    }
}

TEST_P(CpuAttention, RowsWithoutKeysAreZero) {
  for (const DType out : {DType::f32, DType::f16}) {
    Call call({.seqlen_q = 9, .seqlen_kv = 0, .out = out});
    ASSERT_EQ(call.run().message(), "");
    for (const float x : call.values(call.out)) EXPECT_EQ(x, 0.0f);
    for (const float x : call.values(call.lse))
      EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
  }
}

TEST_P(CpuAttention, EmptyInputsSucceed) {
  for (const Case& c : {Case{.batch = 0}, Case{.seqlen_q = 0}, Case{.heads_q = 0, .heads_kv = 1}})
    EXPECT_EQ(Call(c).run().message(), "");
}

// A NaN or infinity that a row does not see must not reach it.
TEST_P(CpuAttention, NonFiniteValuesReachOnlyRowsThatSeeThem) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Case c{.heads_q = 1, .heads_kv = 1, .seqlen_q = 100, .seqlen_kv = 100};
    c.options.causal = Causal::top_left;
    Call clean(c), dirty(c);
    ASSERT_TRUE(clean.run().ok());
    store_element(DType::f32, dirty.k.view.data, dirty.k.at(0, 0, 70, 3), bad);
    store_element(DType::f32, dirty.q.view.data, dirty.q.at(0, 0, 20, 3), bad);
    ASSERT_TRUE(dirty.run().ok());
    const auto expected = clean.values(clean.out), found = dirty.values(dirty.out);
    for (std::int64_t row = 0; row < 70; ++row)
      for (std::int64_t d = 0; d < c.head_dim; ++d) {
        const auto at = static_cast<std::size_t>(row * c.head_dim + d);
        if (row == 20) continue;
        ASSERT_EQ(found[at], expected[at]) << "row " << row;
      }
    EXPECT_TRUE(std::isnan(found[static_cast<std::size_t>(20 * c.head_dim)]));
    if (std::isnan(bad)) {
      for (std::int64_t row = 70; row < 100; ++row)
        EXPECT_TRUE(std::isnan(found[static_cast<std::size_t>(row * c.head_dim)])) << row;
    }
  }
}

TEST_P(CpuAttention, LargeScoresDoNotOverflow) {
  Call call({.seqlen_q = 40, .seqlen_kv = 90, .scale = 300.0f});
  call.expect_matches_reference(2e-3);
}

// A row alone, in another batch, or in another panel has the same bits.
TEST_P(CpuAttention, BitsDoNotDependOnOtherRows) {
  for (const Causal causal : {Causal::none, Causal::bottom_right}) {
    Case c{.heads_q = 4, .heads_kv = 2, .seqlen_q = 131, .seqlen_kv = 150, .head_dim = 24};
    c.options.causal = causal;
    Call whole(c);
    ASSERT_TRUE(whole.run().ok());
    const auto expected = whole.values(whole.out);
    for (const std::int64_t first : {1, 50, 100}) {
      Call part(c);
      // Computes the last rows alone: bottom_right keeps their diagonal.
      part.arguments.q.data = static_cast<const float*>(part.arguments.q.data) + first * 24;
      part.arguments.q.shape[2] -= first;
      part.arguments.out.data = static_cast<float*>(part.arguments.out.data) + first * 24;
      part.arguments.out.shape[2] -= first;
      part.arguments.lse = {};
      ASSERT_EQ(part.run().message(), "");
      const auto found = part.values(part.out);
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t i = first * 24; i < 131 * 24; ++i) {
          const auto at = static_cast<std::size_t>(h * 131 * 24 + i);
          ASSERT_EQ(found[at], expected[at]) << "head " << h << " row " << i / 24;
        }
    }
  }
}

TEST(CpuWorkspace, IsRefusedWhenTooSmallAndNothingIsWritten) {
  Call call({});
  const Problem problem = problem_of(call.arguments, call.options).value();
  std::vector<std::uint8_t> room(64);
  const Status status = attention(problem, call.arguments, {room.data(), room.size()});
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_NE(status.message().find("64 bytes"), std::string::npos) << status.message();
  for (const float x : call.values(call.out)) EXPECT_TRUE(std::isnan(x));
}

TEST(CpuWorkspace, SizeForOneThreadServesAnyNumberOfThreads) {
  Call call({.heads_q = 4, .seqlen_q = 200, .seqlen_kv = 100});
  const Problem problem = problem_of(call.arguments, call.options).value();
  std::vector<std::uint8_t> room(workspace_bytes(problem, 1) + 1);
  set_thread_count(5);
  // Its alignment does not matter either.
  EXPECT_TRUE(attention(problem, call.arguments, {room.data() + 1, room.size() - 1}).ok());
  set_thread_count(0);
}

TEST(CpuWorkspace, StaysBelowTwoMegabytesPerThread) {
  for (const std::int64_t head_dim : {1, 64, 128, 200, 256}) {
    Problem p;
    p.batch = 4, p.heads_q = p.heads_kv = 32, p.seqlen_q = p.seqlen_kv = 1 << 20;
    p.head_dim = p.head_dim_v = head_dim;
    EXPECT_LT(workspace_bytes(p, 1), std::size_t{2} << 20) << head_dim;
    EXPECT_LT(workspace_bytes(p, 2) - workspace_bytes(p, 1), std::size_t{2} << 20) << head_dim;
  }
}

}  // namespace
}  // namespace octavo::cpu
