// SPDX-License-Identifier: Apache-2.0
// Paged KV caches: each error sentence, and the oracle and the CPU against a dense call.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/call.h"
#include "attention/validate.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

constexpr float kUnusedValue = std::numeric_limits<float>::quiet_NaN();

// Two sequences of 20 and 35 keys in a cache of 7 pages of 16 rows, of which they use 5 and share
// none; 4 query heads over 2, 3 queries, head dimension 8. Unused rows hold NaN.
constexpr std::int64_t kPages = 7, kPageSize = 16, kHeads = 2, kDim = 8, kRowsOfCache = 48;
struct Paged : test::Call {
  std::vector<float> k_pages = std::vector<float>(kPages * kHeads * kPageSize * kDim, kUnusedValue);
  std::vector<float> v_pages = k_pages;
  std::vector<std::int32_t> table = {4, 0, -1, 99, 6, 2, 1, 99};
  std::vector<std::int32_t> lengths = {20, 35};
  Arguments dense;  // the same call without pages

  explicit Paged(bool rows_first = false) : Call(2, 4, kHeads, 3, kRowsOfCache, kDim) {
    arguments.seqlens_kv = lengths.data();
    dense = arguments;
    const auto view = [&](std::vector<float>& data) {
      return rows_first ? Tensor::bshd(data.data(), DType::f32, kPages, kHeads, kPageSize, kDim)
                        : Tensor::bhsd(data.data(), DType::f32, kPages, kHeads, kPageSize, kDim);
    };
    const Tensor kp = view(k_pages), vp = view(v_pages);
    arguments.k = kp;
    arguments.v = vp;
    arguments.page_table = table.data();
    arguments.page_table_stride = 4;
    arguments.pages_per_sequence = 3;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < kHeads; ++h)
        for (std::int64_t j = 0; j < lengths[static_cast<std::size_t>(b)]; ++j)
          for (std::int64_t c = 0; c < kDim; ++c) {
            const auto from =
                static_cast<std::size_t>(((b * kHeads + h) * kRowsOfCache + j) * kDim + c);
            const std::int64_t page = table[static_cast<std::size_t>(b * 4 + j / kPageSize)];
            const auto to = static_cast<std::size_t>(page * kp.stride[0] + h * kp.stride[1] +
                                                     j % kPageSize * kp.stride[2] + c);
            k_pages[to] = k[from];
            v_pages[to] = v[from];
          }
  }
};

struct PageFault {
  std::string sentence;
  ErrorCode code;
  std::function<void(Arguments&, Options&)> plant;
};

std::vector<PageFault> page_faults() {
  using A = Arguments;
  using O = Options;
  constexpr auto kInvalid = ErrorCode::invalid_argument, kUnsupported = ErrorCode::unsupported;
  static const float scales[kPages * kHeads * kPageSize] = {};
  static std::uint8_t bytes[kPages * kHeads * kPageSize * kDim];
  static const std::int32_t numbers[] = {0, 3, 3};
  const auto in_8_bits = [](A& a, Granularity granularity) {
    a.k.dtype = a.v.dtype = DType::int8;
    a.k.data = a.v.data = bytes;
    a.k_scales = a.v_scales = {scales, granularity, kPageSize, {}, 0};
  };
  return {
      {"pages_per_sequence is 3 without page_table; supported: 0.", kInvalid,
       [](A& a, O&) {
         a.page_table = nullptr;
         a.k.shape[0] = a.v.shape[0] = 2;
       }},
      {"seqlens_kv is null; supported: an array of lengths, with a page_table.", kInvalid,
       [](A& a, O&) { a.seqlens_kv = nullptr; }},
      {"k.shape[2] is 8, the page size; supported: multiples of 16 up to 256.", kInvalid,
       [](A& a, O&) { a.k.shape[2] = a.v.shape[2] = 8; }},
      {"k.shape[2] is 0, the page size; supported: multiples of 16 up to 256.", kInvalid,
       [](A& a, O&) { a.k.shape[2] = a.v.shape[2] = 0; }},
      {"k.shape[2] is 272, the page size; supported: multiples of 16 up to 256.", kInvalid,
       [](A& a, O&) { a.k.shape[2] = a.v.shape[2] = 272; }},
      {"v.shape is (6, 2, 16, 8); supported: (7, 2, 16, 8) (that of k).", kInvalid,
       [](A& a, O&) { a.v.shape[0] = 6; }},
      {"k.shape is (2147483647, 2147483647, 16, 8); supported: at most 2^58 elements in a cache.",
       kInvalid,
       [](A& a, O&) {
         a.k.shape[0] = a.v.shape[0] = a.k.shape[1] = a.v.shape[1] = INT32_MAX;
         a.k.stride[0] = a.v.stride[0] = a.k.stride[1] = a.v.stride[1] = 0;
       }},
      {"pages_per_sequence is -1; supported: 0 to 134217727 with pages of 16 rows.", kInvalid,
       [](A& a, O&) { a.pages_per_sequence = -1; }},
      {"pages_per_sequence is 134217728; supported: 0 to 134217727 with pages of 16 rows.",
       kInvalid, [](A& a, O&) { a.pages_per_sequence = 134217728; }},
      {"page_table_stride is 2; supported: 3, the pages of a sequence, to 2147483647.", kInvalid,
       [](A& a, O&) { a.page_table_stride = 2; }},
      {"cu_seqlens_q is given together with page_table; supported here: seqlens_q, leftpad_q and "
       "seqlens_kv with a paged cache.",
       kUnsupported,
       [](A& a, O&) {
         a.cu_seqlens_q = a.cu_seqlens_kv = numbers;
         a.seqlens_kv = nullptr;
         a.sequences = 2;
         a.q.shape[0] = a.out.shape[0] = a.lse.shape[0] = 1;
       }},
      {"leftpad_kv is given together with page_table", kUnsupported,
       [](A& a, O&) { a.leftpad_kv = numbers; }},
      {"bias is given together with page_table; supported here: causal masks, windows, softcap, "
       "ALiBi and sinks with a paged cache.",
       kUnsupported, [](A& a, O&) { a.bias = ConstTensor::bhsd(scales, DType::f32, 1, 1, 1, 48); }},
      {"mask is given together with page_table", kUnsupported,
       [](A& a, O&) { a.mask = ConstTensor::bhsd(bytes, DType::boolean, 1, 1, 1, 48); }},
      {"causal is top_left with a paged cache; supported here: none, bottom_right.", kUnsupported,
       [](A&, O& o) { o.causal = Causal::top_left; }},
      {"precision is fp8 with a paged cache; supported here: native: the cache is not converted to "
       "another type.",
       kUnsupported, [](A&, O& o) { o.precision = Precision::fp8; }},
      {"precision is auto with a paged cache", kUnsupported,
       [](A&, O& o) {
         o.precision = Precision::automatic;
         o.max_error = 1;
       }},
      {"q dtype is int8 with a paged cache; supported here: f32, f16, bf16.", kUnsupported,
       [](A& a, O&) {
         a.q.dtype = DType::int8;
         a.q_scales.data = scales;
       }},
      {"out dtype is int8 with a paged cache; supported here: f32, f16, bf16.", kUnsupported,
       [](A& a, O&) {
         a.out.dtype = DType::int8;
         a.out_scales = {scales, Granularity::tensor, 64, {}, 0};
       }},
      {"v_layout is transposed with a paged cache; supported here: rows.", kUnsupported,
       [in_8_bits](A& a, O&) {
         in_8_bits(a, Granularity::head);
         a.v_layout = VLayout::transposed;
         a.v.shape = {kPages, kHeads, kDim, kPageSize};
         a.v.stride = {kHeads * kDim * kPageSize, kDim * kPageSize, kPageSize, 1};
       }},
      {"k_scales.granularity is channel with a paged cache; supported here: tensor, head, row, "
       "block of page_size rows.",
       kUnsupported, [in_8_bits](A& a, O&) { in_8_bits(a, Granularity::channel); }},
      {"k_scales.block_rows is 64; supported: the page size, here 16.", kInvalid,
       [in_8_bits](A& a, O&) {
         in_8_bits(a, Granularity::block);
         a.k_scales.block_rows = 64;
       }},
      {"v_scales.block_rows is 8; supported: the page size, here 16.", kInvalid,
       [in_8_bits](A& a, O&) {
         in_8_bits(a, Granularity::block);
         a.v_scales.block_rows = 8;
       }},
      // Found when the call runs.
      {"k_scales.data[0] is 0; supported: positive finite numbers.", kInvalid,
       [in_8_bits](A& a, O&) { in_8_bits(a, Granularity::head); }},
      // Page 4 is the first of the first sequence.
      {"k_scales.data[128] is 0; supported: positive finite numbers.", kInvalid,
       [in_8_bits](A& a, O&) { in_8_bits(a, Granularity::row); }},
      {"k_scales.data[8] is 0; supported: positive finite numbers.", kInvalid,
       [in_8_bits](A& a, O&) { in_8_bits(a, Granularity::block); }},
      {"seqlens_kv[1] is 49; supported: 0 to 48, the rows behind the padding.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {3, 49};
         a.seqlens_kv = kBad;
       }},
      {"seqlens_kv[0] is -1", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {-1, 4};
         a.seqlens_kv = kBad;
       }},
      {"page_table[1][2] is 7; supported: 0 to 6, the pages of the cache.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {4, 0, -1, 99, 6, 2, 7, 99};
         a.page_table = kBad;
       }},
      {"page_table[0][1] is -1; supported: 0 to 6, the pages of the cache.", kInvalid,
       [](A& a, O&) {
         static constexpr std::int32_t kBad[] = {4, -1, -1, 99, 6, 2, 1, 99};
         a.page_table = kBad;
       }},
      {"page_table[0][0] is 4; supported: none: the cache has no pages.", kInvalid,
       [](A& a, O&) { a.k.shape[0] = a.v.shape[0] = 0; }},
      // The table is checked before scales are looked up in it.
      {"page_table[0][0] is 4; supported: none: the cache has no pages.", kInvalid,
       [in_8_bits](A& a, O&) {
         in_8_bits(a, Granularity::row);
         a.k.shape[0] = a.v.shape[0] = 0;
       }},
  };
}

TEST(Paged, EveryFaultIsOneSentenceAndNothingIsWritten) {
  for (const PageFault& fault : page_faults()) {
    Paged call;
    Options options;
    fault.plant(call.arguments, options);
    const Status status = attention(call.arguments, options);
    EXPECT_EQ(status.code(), fault.code) << fault.sentence << "\n" << status.message();
    EXPECT_EQ(status.message().substr(0, fault.sentence.size()), fault.sentence);
    EXPECT_TRUE(call.untouched()) << fault.sentence;
  }
}

TEST(Paged, TheProblemHasTheCapacityAndThePageSize) {
  Paged call;
  const Result<Problem> problem = problem_of(call.arguments);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->seqlen_kv, 48);
  EXPECT_EQ(problem->page_size, 16);
  EXPECT_TRUE(problem->paged);
  EXPECT_FALSE(problem->padded);
  EXPECT_EQ(describe(*problem), "B=2 Hq=4 Hkv=2 Sq=3 Skv=48 D=8 f32 page_size=16 lse");
}

// A plan checks problems that did not come from a call.
TEST(Paged, ProblemsAreChecked) {
  Paged call;
  Problem problem = problem_of(call.arguments).value();
  problem.seqlen_kv = 40;
  EXPECT_EQ(plan(problem).status().message(),
            "seqlen_kv is 40; supported: multiples of page_size, here 16.");
  problem.paged = false;
  EXPECT_EQ(plan(problem).status().message(),
            "page_size is 16 without a paged cache; supported: 0.");
  problem.paged = true;
  problem.page_size = 20;
  EXPECT_EQ(plan(problem).status().message(),
            "page_size is 20, the page size; supported: multiples of 16 up to 256.");
}

TEST(Paged, APlanIsForOnePageSizeAndForPagesOnly) {
  Paged call;
  const Problem problem = problem_of(call.arguments).value();
  const Plan made = plan(problem).value();
  EXPECT_EQ(made.run(call.dense).message(),
            "seqlens is given; supported: absent, for which the plan was made.");
  call.dense.seqlens_kv = nullptr;
  EXPECT_EQ(made.run(call.dense).message(),
            "page_table is absent; supported: given, for which the plan was made.");
  Problem other = problem;
  other.page_size = 48;
  EXPECT_EQ(plan(other).value().run(call.arguments).message(),
            "page_size is 16; supported: 48, for which the plan was made.");
  EXPECT_TRUE(call.untouched());
}

TEST(Paged, OtherDevicesRefuse) {
  Paged call;
  const Problem problem = problem_of(call.arguments).value();
  const Status status = plan(problem, {Device::Kind::emulator, 90}).status();
  EXPECT_EQ(status.code(), ErrorCode::unsupported);
}

// The same keys in the same order give the same bits, wherever they lie.
TEST(Paged, CpuAndOracleEqualADenseCall) {
  for (const bool rows_first : {false, true}) {
    Paged call(rows_first);
    const Options options{.causal = Causal::bottom_right, .window_left = 30};
    std::vector<double> paged(call.out.size()), dense(call.out.size());
    std::vector<double> paged_lse(call.lse.size()), dense_lse(call.lse.size());
    ASSERT_EQ(reference(call.arguments, options, paged.data(), paged_lse.data()).message(), "");
    ASSERT_EQ(reference(call.dense, options, dense.data(), dense_lse.data()).message(), "");
    EXPECT_EQ(paged, dense);
    EXPECT_EQ(paged_lse, dense_lse);
    ASSERT_EQ(attention(call.dense, options).message(), "");
    const std::vector<float> out = call.out, lse = call.lse;
    ASSERT_EQ(attention(call.arguments, options).message(), "");
    EXPECT_EQ(call.out, out);
    EXPECT_EQ(call.lse, lse);
    EXPECT_EQ(std::count(out.begin(), out.end(), -7.0f), 0);
  }
}

// int8 values with a scale give the bits of the f32 values that they stand for. NaN follows the
// scales, and with strides lies between them.
TEST(Paged, ScalesPerTensorHeadRowOrPage) {
  struct Kind {
    Granularity granularity;
    std::int64_t pages, heads, rows;  // that have scales of their own
  };
  for (const Kind& kind : {Kind{Granularity::tensor, 1, 1, 1},
                           {Granularity::head, 1, kHeads, 1},
                           {Granularity::row, kPages, kHeads, kPageSize},
                           {Granularity::block, kPages, kHeads, 1}})
    for (const bool strided : {false, true}) {
      const std::int64_t step = strided ? 2 : 1;
      const std::array stride = {kind.heads * kind.rows * step, kind.rows * step, step};
      std::vector<float> scales(static_cast<std::size_t>(kPages * kHeads * kPageSize * 2),
                                kUnusedValue);
      Paged call;
      std::vector<std::int8_t> codes(call.k_pages.size());
      for (std::int64_t i = 0; i < kPages * kHeads * kPageSize; ++i) {
        const std::int64_t page = i / kPageSize / kHeads, head = i / kPageSize % kHeads;
        const auto at =
            static_cast<std::size_t>(page % kind.pages * stride[0] + head % kind.heads * stride[1] +
                                     i % kPageSize % kind.rows * stride[2]);
        scales[at] = 0.01f * static_cast<float>(1 + at);
        for (std::int64_t c = 0; c < kDim; ++c) {
          const auto element = static_cast<std::size_t>(i * kDim + c);
          codes[element] = static_cast<std::int8_t>((element * 37) % 255 - 127);
          call.k_pages[element] = call.v_pages[element] = codes[element] * scales[at];
        }
      }
      const Options options{.causal = Causal::bottom_right};
      ASSERT_EQ(attention(call.arguments, options).message(), "");
      const std::vector<float> expected = call.out;
      Arguments a = call.arguments;
      a.k.data = a.v.data = codes.data();
      a.k.dtype = a.v.dtype = DType::int8;
      a.k_scales = {scales.data(), kind.granularity, kPageSize, {}, 0};
      if (strided) a.k_scales.stride = stride;
      a.v_scales = a.k_scales;
      ASSERT_EQ(attention(a, options).message(), "") << name(kind.granularity);
      EXPECT_EQ(call.out, expected) << name(kind.granularity) << strided;
      std::vector<double> exact(expected.size());
      ASSERT_EQ(reference(a, options, exact.data()).message(), "");
      for (std::size_t i = 0; i < exact.size(); ++i)
        EXPECT_NEAR(exact[i], static_cast<double>(expected[i]), 1e-4 * (1 + std::abs(exact[i])))
            << name(kind.granularity);
    }
}

TEST(Paged, ASequenceWithoutKeysGetsZeros) {
  Paged call;
  call.lengths[0] = 0;
  call.table[0] = -5;  // not read
  ASSERT_EQ(attention(call.arguments).message(), "");
  for (std::size_t i = 0; i < call.out.size() / 2; ++i) EXPECT_EQ(call.out[i], 0.0f);
  EXPECT_EQ(call.lse[0], -std::numeric_limits<float>::infinity());
}

TEST(Paged, OneSequenceNeedsNoStride) {
  Paged call;
  for (Tensor* t : {&call.arguments.out, &call.arguments.lse}) t->shape[0] = 1;
  call.arguments.q.shape[0] = 1;
  call.arguments.page_table_stride = 0;
  EXPECT_EQ(attention(call.arguments).message(), "");
}

TEST(Paged, TheBackwardPassHasNoPages) {
  Problem problem = problem_of(Paged().arguments).value();
  EXPECT_EQ(plan_backward(problem).status().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace octavo
