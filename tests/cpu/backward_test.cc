// SPDX-License-Identifier: Apache-2.0
// The backward pass of the CPU backend against the fp64 oracle.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "cpu/backward_case.h"
#include "cpu/kernels.h"

namespace octavo::cpu {
namespace {

// Runs the test with every table of kernels that this machine has.
class CpuBackward : public testing::Test {
 protected:
  ~CpuBackward() override {
    use_kernels(nullptr);
    set_thread_count(0);
  }
  template <class Body>
  void with_all_kernels(const Body& body) {
    for (const Kernels* table : available_kernels()) {
      SCOPED_TRACE(table->name);
      use_kernels(table);
      body();
    }
  }
};

TEST_F(CpuBackward, EveryDtypeAndHeadDimension) {
  with_all_kernels([] {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const std::int64_t head_dim : {1, 8, 40, 64, 80, 128, 256}) {
        SCOPED_TRACE(std::string(name(dtype)) + " D=" + std::to_string(head_dim));
        BackwardCase c;
        c.dtype = dtype;
        c.head_dim = head_dim;
        c.seqlen_q = 70, c.seqlen_kv = 90;
        BackwardCall(c).expect_matches_reference(backward_tolerance(dtype));
      }
  });
}

TEST_F(CpuBackward, EveryMaskAndLength) {
  with_all_kernels([] {
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right})
      for (const auto& [left, right] : {std::pair{-1, -1}, {10, -1}, {-1, 3}, {20, 0}, {0, 0}})
        for (const auto& [seqlen_q, seqlen_kv] : {std::pair{100, 100}, {33, 150}, {150, 33}}) {
          BackwardCase c;
          c.seqlen_q = seqlen_q, c.seqlen_kv = seqlen_kv;
          c.options.causal = causal;
          c.options.window_left = left, c.options.window_right = right;
          SCOPED_TRACE(describe(problem_of(BackwardCall(c).arguments, c.options).value()));
          BackwardCall(c).expect_matches_reference(backward_tolerance(c.dtype));
        }
  });
}

TEST_F(CpuBackward, GroupsBatchesStridesAndScale) {
  for (const auto& [heads_q, heads_kv] : {std::pair{4, 2}, {6, 1}, {3, 3}})
    for (const auto order : {OwnedTensor::Order::bhsd, OwnedTensor::Order::bshd})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        BackwardCase c;
        c.batch = 2, c.heads_q = heads_q, c.heads_kv = heads_kv;
        c.seqlen_q = 65, c.seqlen_kv = 129, c.head_dim = 24;
        c.order = order, c.row_gap = 5, c.dtype = dtype;
        c.scale = 0.31f;
        c.options.causal = Causal::bottom_right;
        BackwardCall(c).expect_matches_reference(backward_tolerance(dtype));
      }
}

// Enough rows for several slices, whose sums of dK and dV are stored and added up.
TEST_F(CpuBackward, SlicesAreAddedUp) {
  for (const bool invariant : {false, true}) {
    BackwardCase c;
    c.heads_q = 4, c.heads_kv = 1;
    c.seqlen_q = 700, c.seqlen_kv = 200, c.head_dim = 16;
    c.options.batch_invariant = invariant;
    c.options.causal = Causal::bottom_right;
    BackwardCall call(c);
    const Problem problem = problem_of(call.arguments, c.options).value();
    ASSERT_TRUE(backward_slicing(problem).stored);
    call.expect_matches_reference(2 * backward_tolerance(c.dtype));
  }
}

TEST_F(CpuBackward, VarlenSequences) {
  for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
    BackwardCase c;
    c.heads_q = 4, c.heads_kv = 2, c.seqlen_q = 130, c.seqlen_kv = 140, c.head_dim = 32;
    c.order = OwnedTensor::Order::bshd;
    c.options.causal = causal;
    BackwardCall call(c);
    // Token 0 of q and the last 10 of both belong to no sequence; two sequences lack queries or
    // keys, and one is longer than max_seqlen_q.
    call.make_varlen({1, 60, 60, 90, 120}, {0, 50, 60, 60, 130}, 55, 70);
    const auto skips = [&](const char* what, std::size_t i) {
      const bool of_q = std::strcmp(what, "dq") == 0;
      const auto tokens = static_cast<std::size_t>(of_q ? c.seqlen_q : c.seqlen_kv);
      const auto token = i / static_cast<std::size_t>(c.head_dim) % tokens;
      if (!of_q) return token >= 130;
      return token < 1 || (token >= 56 && token < 60) || token >= 120;
    };
    call.expect_matches_reference(backward_tolerance(c.dtype), skips);
  }
}

TEST_F(CpuBackward, VarlenSequencesInSlices) {
  BackwardCase c;
  c.heads_q = 8, c.heads_kv = 1, c.seqlen_q = 300, c.seqlen_kv = 310, c.head_dim = 8;
  BackwardCall call(c);
  call.make_varlen({0, 200, 210, 300}, {0, 100, 250, 310}, 200, 150);
  ASSERT_TRUE(backward_slicing(problem_of(call.arguments, {}).value()).stored);
  call.expect_matches_reference(2 * backward_tolerance(c.dtype));
}

TEST_F(CpuBackward, RowsWithoutKeysGiveZeroAndDisturbNothing) {
  BackwardCase c;
  c.seqlen_q = 100, c.seqlen_kv = 60;
  c.options.causal = Causal::bottom_right;  // rows 0 to 39 see no key
  BackwardCall call(c), disturbed(c);
  call.expect_matches_reference(backward_tolerance(c.dtype));
  const std::vector<float> dq = call.values(call.dq);
  for (std::int64_t i = 0; i < 40 * c.head_dim; ++i) ASSERT_EQ(dq[static_cast<std::size_t>(i)], 0);
  // Their dout is NaN: dout * 0 would be NaN.
  ASSERT_TRUE(disturbed.run_forward().ok());
  for (std::int64_t row = 0; row < 40; ++row)
    static_cast<float*>(disturbed.dout.view.data)[disturbed.dout.at(0, 0, row, 3)] =
        std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(disturbed.run_backward().ok());
  Call::expect_near(disturbed.values(disturbed.dq), disturbed.expected().dq, 1e-5, "dq");
  Call::expect_near(disturbed.values(disturbed.dk), disturbed.expected().dk, 1e-5, "dk");
  Call::expect_near(disturbed.values(disturbed.dv), disturbed.expected().dv, 1e-5, "dv");
}

// A NaN or infinity reaches the gradients of what sees it, and no others.
TEST_F(CpuBackward, NanReachesWhatSeesIt) {
  with_all_kernels([] {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
      for (const int which : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::to_string(bad) + " in tensor " + std::to_string(which));
        BackwardCase c;
        c.heads_q = c.heads_kv = 1;
        c.seqlen_q = c.seqlen_kv = 150;
        c.options.causal = Causal::top_left;
        c.options.window_left = 40;
        BackwardCall call(c);
        OwnedTensor* const tensor = std::array{&call.q, &call.k, &call.v, &call.dout}[which];
        static_cast<float*>(tensor->view.data)[tensor->at(0, 0, 70, 5)] = bad;
        ASSERT_EQ(call.run_forward().message(), "");
        ASSERT_EQ(call.run_backward().message(), "");
        const auto bad_rows = [&](const OwnedTensor& t) {
          const std::vector<float> x = call.values(t);
          std::vector<bool> rows(150);
          for (std::size_t i = 0; i < x.size(); ++i)
            if (!std::isfinite(x[i])) rows[i / 16] = true;
          return rows;
        };
        // Queries that see key 70 are 70 to 110; the keys that these see are 30 to 110. Query 70
        // sees keys 30 to 70. The forward pass may spread a NaN of V to other rows of its sequence.
        const std::vector<bool> dq = bad_rows(call.dq), dk = bad_rows(call.dk);
        const bool of_keys = which == 1 || which == 2;
        if (which == 2) continue;
        EXPECT_TRUE(dq[70]);
        for (std::size_t row = 0; row < 150; ++row) {
          EXPECT_LE(dq[row], of_keys ? row >= 70 && row <= 110 : row == 70) << "dq " << row;
          EXPECT_LE(dk[row], row >= 30 && row <= (of_keys ? 110u : 70u)) << "dk " << row;
        }
        if (std::isnan(bad)) {
          EXPECT_TRUE(dk[30] && dk[70]);
        }
        EXPECT_EQ(bad_rows(call.dv)[29], false);
        EXPECT_EQ(bad_rows(call.dv)[111], false);
      }
  });
}

// With an LSE of another call nothing crashes and only its row is wrong.
TEST_F(CpuBackward, AnLseFarTooSmallGivesInfinitiesInItsRow) {
  with_all_kernels([] {
    BackwardCase c;
    c.heads_q = c.heads_kv = 1;
    c.seqlen_q = 20, c.seqlen_kv = 30;
    BackwardCall call(c);
    ASSERT_TRUE(call.run_forward().ok());
    static_cast<float*>(call.lse.view.data)[call.lse.at(0, 0, 3, 0)] = -1e8f;
    ASSERT_TRUE(call.run_backward().ok());
    const std::vector<float> dq = call.values(call.dq);
    for (std::size_t i = 0; i < dq.size(); ++i) EXPECT_EQ(std::isfinite(dq[i]), i / 16 != 3) << i;
  });
}

TEST_F(CpuBackward, ZeroSizes) {
  for (const auto& [batch, heads, seqlen_q, seqlen_kv] :
       {std::tuple{0, 2, 5, 7}, {1, 0, 5, 7}, {1, 2, 0, 7}, {1, 2, 5, 0}, {2, 3, 0, 0}}) {
    BackwardCase c;
    c.batch = batch, c.heads_q = c.heads_kv = heads;
    c.seqlen_q = seqlen_q, c.seqlen_kv = seqlen_kv;
    BackwardCall call(c);
    ASSERT_EQ(call.run_backward().message(), "");
    for (const OwnedTensor* t : {&call.dq, &call.dk, &call.dv}) {
      for (const float x : call.values(*t)) EXPECT_EQ(x, 0.0f);
      EXPECT_EQ(t->touched_guards(), 0);
    }
  }
  // Keys without queries, because there are no query heads.
  BackwardCase c;
  c.heads_q = 0, c.heads_kv = 2;
  BackwardCall call(c);
  ASSERT_EQ(call.run_backward().message(), "");
  for (const float x : call.values(call.dk)) EXPECT_EQ(x, 0.0f);
  for (const float x : call.values(call.dv)) EXPECT_EQ(x, 0.0f);
}

TEST_F(CpuBackward, BitsDoNotDependOnThreads) {
  for (const std::int64_t seqlen_q : {100, 900}) {  // in one slice, and in several
    BackwardCase c;
    c.batch = 2, c.heads_q = 4, c.heads_kv = 2;
    c.seqlen_q = seqlen_q, c.seqlen_kv = 333, c.head_dim = 40;
    c.options.causal = Causal::bottom_right;
    BackwardCall call(c);
    call.add_bias(DType::f32, {1, 1, seqlen_q, 333}, DType::f32);
    call.add_sinks();
    ASSERT_TRUE(call.run_forward().ok());
    std::vector<std::uint8_t> first;
    for (const int threads : {1, 2, 5, 16}) {
      set_thread_count(threads);
      for (OwnedTensor* t : {&call.dq, &call.dk, &call.dv, &call.dbias})
        t->for_each(
            [&](std::int64_t at, std::int64_t) { static_cast<float*>(t->view.data)[at] = -7; });
      ASSERT_TRUE(call.run_backward(threads).ok());
      std::vector<std::uint8_t> all = call.dq.bytes;
      all.insert(all.end(), call.dk.bytes.begin(), call.dk.bytes.end());
      all.insert(all.end(), call.dv.bytes.begin(), call.dv.bytes.end());
      all.insert(all.end(), call.dbias.bytes.begin(), call.dbias.bytes.end());
      for (const float x : call.dsinks) {
        const auto* const bytes = reinterpret_cast<const std::uint8_t*>(&x);
        all.insert(all.end(), bytes, bytes + sizeof(x));
      }
      if (first.empty()) first = all;
      EXPECT_TRUE(all == first) << threads << " threads";
    }
  }
}

// With batch_invariant a sequence has the same bits alone and with others.
TEST_F(CpuBackward, BatchInvariantBits) {
  BackwardCase c;
  c.batch = 3, c.heads_q = 2, c.heads_kv = 1, c.seqlen_q = 300, c.seqlen_kv = 100;
  c.options.batch_invariant = true;
  BackwardCall all(c);
  ASSERT_TRUE(all.run_forward().ok());
  ASSERT_TRUE(all.run_backward().ok());
  BackwardCall one(c);
  ASSERT_TRUE(one.run_forward().ok());
  for (ConstTensor* t : {&one.arguments.q, &one.arguments.k, &one.arguments.v, &one.arguments.out,
                         &one.arguments.lse, &one.arguments.dout})
    t->shape[0] = 1;
  for (Tensor* t : {&one.arguments.dq, &one.arguments.dk, &one.arguments.dv}) t->shape[0] = 1;
  ASSERT_TRUE(one.run_backward().ok());
  for (const auto& [a, b] : {std::pair{&all.dq, &one.dq}, {&all.dk, &one.dk}, {&all.dv, &one.dv}})
    EXPECT_EQ(std::memcmp(a->view.data, b->view.data,
                          static_cast<std::size_t>(a->view.stride[0]) * sizeof(float)),
              0);
}

enum Feature : int {
  kSoftcap = 1,
  kBias = 2,
  kAlibi = 4,
  kSinks = 8,
  kMask = 16,
  kPadded = 32,
  kAllFeatures = 63
};

// A padded batch of two with the features of a set.
BackwardCall modified_call(int features, const BackwardCase& base,
                           const std::array<std::int64_t, 4>& bias_shape) {
  BackwardCase c = base;
  if (features & kSoftcap) c.options.softcap = 1.3f;
  BackwardCall call(c);
  if (features & kBias) call.add_bias(DType::f32, bias_shape, DType::f32);
  if (features & kAlibi) call.add_alibi();
  if (features & kSinks) call.add_sinks();
  if (features & kMask) call.add_mask({c.batch, 1, c.seqlen_q, c.seqlen_kv});
  if (features & kPadded) {
    const auto q = static_cast<std::int32_t>(c.seqlen_q);
    const auto kv = static_cast<std::int32_t>(c.seqlen_kv);
    call.make_padded({q - 20, 30}, {kv - 3, 57}, {3, 0}, {0, 11});
  }
  return call;
}

// Every modifier alone, every pair of them, and all together; padding gets zeros.
TEST_F(CpuBackward, ModifiersAndPaddingInPairs) {
  with_all_kernels([] {
    std::vector<int> sets = {kAllFeatures};
    for (int a = 1; a < kAllFeatures; a *= 2)
      for (int b = a; b < kAllFeatures; b *= 2) sets.push_back(a | b);
    for (const int features : sets) {
      SCOPED_TRACE("features " + std::to_string(features));
      BackwardCase c;
      c.batch = 2, c.heads_q = 4, c.heads_kv = 2, c.seqlen_q = 70, c.seqlen_kv = 90;
      if (features % 3 == 0) c.options.causal = Causal::bottom_right;
      modified_call(features, c, {2, 4, 70, 90})
          .expect_matches_reference(backward_tolerance(c.dtype));
    }
  });
}

TEST_F(CpuBackward, BiasGradientsSumOverWhatSharesAnEntry) {
  for (int broadcast = 0; broadcast < 16; ++broadcast) {
    SCOPED_TRACE(broadcast);
    BackwardCase c;
    c.batch = 2, c.heads_q = 4, c.heads_kv = 2, c.seqlen_q = 70, c.seqlen_kv = 90;
    std::array<std::int64_t, 4> shape = {2, 4, 70, 90};
    for (int i = 0; i < 4; ++i)
      if (broadcast & (1 << i)) shape[static_cast<std::size_t>(i)] = 1;
    c.options.causal = Causal::top_left;
    modified_call(kBias | kSoftcap | kPadded, c, shape)
        .expect_matches_reference(2 * backward_tolerance(c.dtype));
  }
}

TEST_F(CpuBackward, BiasGradientsInEveryDtype) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const DType gradient : {dtype, DType::f32}) {
      BackwardCase c;
      c.dtype = dtype, c.seqlen_q = 20, c.seqlen_kv = 30;
      BackwardCall call(c);
      call.add_bias(dtype, {1, 1, 20, 30}, gradient);
      call.expect_matches_reference(backward_tolerance(dtype));
    }
}

TEST_F(CpuBackward, ModifiersInSlicesAndVarlen) {
  BackwardCase c;
  c.heads_q = 8, c.heads_kv = 1, c.seqlen_q = 300, c.seqlen_kv = 310, c.head_dim = 8;
  c.options.softcap = 2, c.options.window_left = 40;
  BackwardCall call(c);
  call.make_varlen({0, 200, 210, 300}, {0, 100, 250, 310}, 200, 150);
  call.add_sinks();
  call.slopes.resize(16, 0.01f);
  call.add_alibi();
  ASSERT_TRUE(backward_slicing(problem_of(call.arguments, call.options).value()).stored);
  call.expect_matches_reference(2 * backward_tolerance(c.dtype));
}

// A NaN in padding, in a key that the mask hides, or in a row without keys reaches nothing.
TEST_F(CpuBackward, HiddenValuesDoNotMatter) {
  with_all_kernels([] {
    for (const bool with_mask : {false, true}) {
      BackwardCase c;
      c.batch = 2, c.heads_q = 4, c.heads_kv = 2, c.seqlen_q = 70, c.seqlen_kv = 90;
      const auto shape = std::array<std::int64_t, 4>{1, 4, 70, 90};
      BackwardCall call =
          modified_call(kBias | kSinks | kPadded | (with_mask ? kMask : 0), c, shape);
      const auto hide = [&](std::int64_t row, std::int64_t key) {
        for (std::int64_t head = 0; head < 4; ++head)
          static_cast<float*>(call.bias.view.data)[call.bias.at(0, head, row, key)] =
              -std::numeric_limits<float>::infinity();
      };
      for (std::int64_t row = 0; row < 70; ++row) hide(row, 40);
      for (std::int64_t key = 0; key < 90; ++key) hide(8, key);
      ASSERT_EQ(call.run_forward().message(), "");
      const auto poison = [](OwnedTensor& t, std::int64_t b, std::int64_t row) {
        static_cast<float*>(t.view.data)[t.at(b, 0, row, 1)] =
            std::numeric_limits<float>::quiet_NaN();
      };
      for (OwnedTensor* t : {&call.q, &call.dout, &call.out}) poison(*t, 1, 60), poison(*t, 0, 1);
      for (OwnedTensor* t : {&call.k, &call.v}) poison(*t, 1, 2), poison(*t, 0, 88);
      poison(call.k, 0, 40);
      poison(call.q, 0, 8);
      ASSERT_EQ(call.run_backward().message(), "");
      for (const OwnedTensor* t : {&call.dq, &call.dk, &call.dv, &call.dbias})
        for (const float x : call.values(*t)) ASSERT_TRUE(std::isfinite(x));
      for (const float x : call.dsinks) ASSERT_TRUE(std::isfinite(x));
    }
  });
}

// An LSE of such a size does not determine P: the row has no gradients and harms no others.
TEST_F(CpuBackward, RowsWithAHugeLseGiveNoGradients) {
  with_all_kernels([] {
    for (const float level : {-1e9f, std::numeric_limits<float>::lowest(), 1e9f}) {
      BackwardCase c;
      c.heads_q = 2, c.heads_kv = 1, c.seqlen_q = 40, c.seqlen_kv = 90;
      BackwardCall call = modified_call(kBias, c, {1, 2, 40, 90});
      call.set_bias_row(8, level);
      ASSERT_EQ(call.run_forward().message(), "");
      ASSERT_EQ(call.run_backward().message(), "");
      call.clear_dout_row(8);
      const BackwardCall::Expected e = call.expected();
      const auto all = [](const char*, std::size_t) { return false; };
      const double tolerance = backward_tolerance(c.dtype);
      call.expect_near(call.values(call.dq), e.dq, tolerance, 1, "dq", all);
      call.expect_near(call.values(call.dk), e.dk, tolerance, 1, "dk", all);
      call.expect_near(call.values(call.dv), e.dv, tolerance, 1, "dv", all);
      call.expect_near(call.values(call.dbias), e.dbias, tolerance, 1, "dbias", all);
    }
  });
}

TEST_F(CpuBackward, ModifierGradientsOfEmptyProblemsAreZero) {
  for (const auto& [batch, seqlen_q, seqlen_kv] : {std::tuple{0, 5, 7}, {1, 0, 7}, {1, 5, 0}}) {
    BackwardCase c;
    c.batch = batch, c.seqlen_q = seqlen_q, c.seqlen_kv = seqlen_kv;
    BackwardCall call(c);
    call.add_bias(DType::f32, {1, 2, 1, 1}, DType::f32);
    call.add_sinks();
    if (batch * seqlen_q > 0) {
      ASSERT_EQ(call.run_forward().message(), "");
    }
    ASSERT_EQ(call.run_backward().message(), "");
    for (const float x : call.values(call.dbias)) EXPECT_EQ(x, 0.0f);
    for (const float x : call.dsinks) EXPECT_EQ(x, 0.0f);
  }
}

TEST_F(CpuBackward, LengthsOutsideTheTensorAreRefused) {
  BackwardCase c;
  c.batch = 2;
  BackwardCall call(c);
  call.make_padded({5, 6}, {}, {}, {});
  EXPECT_EQ(call.run_backward().message(),
            "seqlens_q[1] is 6; supported: 0 to 5, the rows behind the padding.");
  for (const float x : call.values(call.dq)) EXPECT_TRUE(std::isnan(x));
}

TEST_F(CpuBackward, DecreasingCuSeqlensAreRefused) {
  BackwardCase c;
  c.seqlen_q = c.seqlen_kv = 20;
  BackwardCall call(c);
  call.make_varlen({0, 12, 10}, {0, 10, 20}, 12, 10);
  const Status status = call.run_backward();
  EXPECT_EQ(status.message(), "cu_seqlens_q[2] is 10; supported: 12 or more, the entry before it.");
  for (const float x : call.values(call.dq)) EXPECT_TRUE(std::isnan(x));
}

// Random problems: sizes, heads, masks, types, strides and varlen batches.
TEST_F(CpuBackward, RandomProblems) {
  std::uint64_t draws = 0;
  const auto draw = [&draws](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(
                       random_below(11, 0, draws++, static_cast<std::uint64_t>(most - least + 1)));
  };
  for (int n = 0; n < 150; ++n) {
    BackwardCase c;
    c.batch = draw(1, 3);
    c.heads_kv = draw(1, 3);
    c.heads_q = c.heads_kv * draw(1, 3);
    c.seqlen_q = draw(1, draw(0, 3) == 0 ? 400 : 80);
    c.seqlen_kv = draw(1, draw(0, 3) == 0 ? 400 : 80);
    c.head_dim = draw(0, 2) == 0 ? draw(1, 160) : 8 * draw(1, 12);
    c.dtype = std::array{DType::f32, DType::f16, DType::bf16}[draw(0, 2)];
    c.order = draw(0, 1) == 0 ? OwnedTensor::Order::bhsd : OwnedTensor::Order::bshd;
    c.row_gap = draw(0, 2);
    c.options.causal = std::array{Causal::none, Causal::top_left, Causal::bottom_right}[draw(0, 2)];
    if (draw(0, 2) == 0) c.options.window_left = draw(0, 100);
    if (draw(0, 2) == 0) c.options.window_right = draw(0, 100);
    if (draw(0, 2) == 0) c.scale = static_cast<float>(draw(1, 8)) / 16.0f;
    c.options.batch_invariant = draw(0, 1) == 1;
    const bool varlen = draw(0, 2) == 0;
    if (varlen) c.batch = 1;
    BackwardCall call(c);
    if (varlen) {
      std::vector<std::int32_t> q{0}, kv{0};
      for (std::int64_t i = draw(1, 4); i > 0; --i) {
        q.push_back(static_cast<std::int32_t>(draw(q.back(), c.seqlen_q)));
        kv.push_back(static_cast<std::int32_t>(draw(kv.back(), c.seqlen_kv)));
      }
      q.back() = static_cast<std::int32_t>(c.seqlen_q);
      kv.back() = static_cast<std::int32_t>(c.seqlen_kv);
      call.make_varlen(q, kv, c.seqlen_q, c.seqlen_kv);
    }
    SCOPED_TRACE("problem " + std::to_string(n) + ": " +
                 describe(problem_of(call.arguments, c.options).value()));
    use_kernels(available_kernels()[static_cast<std::size_t>(n) % available_kernels().size()]);
    call.expect_matches_reference(2 * backward_tolerance(c.dtype));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace octavo::cpu
