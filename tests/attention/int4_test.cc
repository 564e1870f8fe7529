// SPDX-License-Identifier: Apache-2.0
// int4 K and V in a paged cache: the oracle and the CPU read what was quantized, and every fault is
// one sentence.
#include "numeric/int4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "octavo/evidence.hpp"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr std::int64_t kCachePages = 3, kPageRows = 16, kCacheHeads = 2, kWidth = 64, kKeys = 20;

TEST(Int4, TheNumbersOfAGroup) {
  std::vector<float> x(32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = -1.5f + 0.5f * static_cast<float>(i % 16);
  const Int4Group group(x.data(), 32);
  EXPECT_EQ(f32_from_f16(group.scale), 0.5f);
  EXPECT_EQ(f32_from_f16(group.zero), -1.5f);
  EXPECT_EQ(group.encode(-1.5f), 0U);
  EXPECT_EQ(group.encode(6.0f), 15U);
  EXPECT_EQ(group.encode(0.25f), 4U);  // 3.5 steps: ties to even
  EXPECT_EQ(group.encode(0.75f), 4U);
  EXPECT_EQ(group.encode(100), 15U);
  EXPECT_EQ(group.encode(-HUGE_VALF), 0U);
  EXPECT_EQ(group.encode(std::nanf("")), 0U);
  // Equal values need no step, and values that are not finite do not count.
  std::fill(x.begin(), x.end(), 0.7f);
  x[3] = HUGE_VALF;
  x[4] = std::nanf("");
  const Int4Group equal(x.data(), 32);
  EXPECT_EQ(equal.scale, 0);
  EXPECT_EQ(equal.zero, f16_from_f32(0.7f));
  EXPECT_EQ(equal.encode(0.7f), 0U);
}

TEST(Int4, TheBytesOfARow) {
  std::vector<float> x(32), back(32);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 16);
  std::vector<std::uint16_t> data(2 * 16);
  const Int4Groups groups{data.data(), 1, 16, 32, 32};
  std::vector<std::uint8_t> bytes(16);
  store_int4_row(x.data(), groups, 0, 0, 5, bytes.data());
  EXPECT_EQ(f32_from_f16(data[5]), 1.0f);
  EXPECT_EQ(data[16 + 5], 0);
  // The low halves of four bytes hold channels 0, 4, 1 and 5, the high ones 2, 6, 3 and 7.
  EXPECT_EQ(std::vector(bytes.begin(), bytes.begin() + 4),
            (std::vector<std::uint8_t>{0x20, 0x64, 0x31, 0x75}));
  load_int4_row(bytes.data(), groups, 0, 0, 5, back.data());
  EXPECT_EQ(back, x);
}

// One sequence of 20 keys in pages 2 and 0 of three; 4 query heads over 2, 2 queries.
struct Int4Call {
  std::vector<float> q, k, v, out;  // k and v dense, as the cache holds them
  std::vector<std::uint8_t> k_bytes, v_bytes;
  std::vector<std::uint16_t> k_groups, v_groups;
  std::vector<std::int32_t> table = {2, 0}, lengths = {kKeys};
  Arguments arguments, dense;

  explicit Int4Call(std::int64_t channels)
      : q(4 * 2 * kWidth), k(kCacheHeads * kKeys * kWidth), v(k), out(q.size()) {
    const auto view = [](std::vector<float>& x, std::int64_t heads) {
      const auto rows = static_cast<std::int64_t>(x.size()) / heads / kWidth;
      return Tensor::bhsd(x.data(), DType::f32, 1, heads, rows, kWidth);
    };
    arguments.q = view(q, 4);
    arguments.out = view(out, 4);
    EXPECT_TRUE(random_normal(view(q, 4), 3, 0).ok());
    dense = arguments;
    dense.k = view(k, kCacheHeads);
    dense.v = view(v, kCacheHeads);
    EXPECT_TRUE(random_normal(view(k, kCacheHeads), 3, 1).ok());
    EXPECT_TRUE(random_normal(view(v, kCacheHeads), 3, 2).ok());
    arguments.k = fill(k, channels, k_bytes, k_groups, arguments.k_groups);
    arguments.v = fill(v, channels, v_bytes, v_groups, arguments.v_groups);
    arguments.page_table = table.data();
    arguments.page_table_stride = arguments.pages_per_sequence = 2;
    arguments.seqlens_kv = lengths.data();
  }

  ConstTensor fill(std::vector<float>& dense_rows, std::int64_t channels,
                   std::vector<std::uint8_t>& bytes, std::vector<std::uint16_t>& data,
                   GroupScales& scales) const {
    bytes.assign(kCachePages * kCacheHeads * kPageRows * kWidth / 2, 0xff);
    Int4Groups groups{nullptr, kCacheHeads, kPageRows, kWidth, channels};
    data.assign(static_cast<std::size_t>(kCachePages * groups.of_page()), 0x7e00);
    groups.data = data.data();
    for (std::int64_t h = 0; h < kCacheHeads; ++h)
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const std::int64_t page = table[static_cast<std::size_t>(j / kPageRows)];
        const std::int64_t row = j % kPageRows;
        std::uint8_t* const to =
            bytes.data() + ((page * kCacheHeads + h) * kPageRows + row) * kWidth / 2;
        float* const x = dense_rows.data() + (h * kKeys + j) * kWidth;
        store_int4_row(x, groups, page, h, row, to);
        load_int4_row(to, groups, page, h, row, x);
      }
    scales = {data.data(), channels};
    return Tensor::bhsd(bytes.data(), DType::int4, kCachePages, kCacheHeads, kPageRows, kWidth / 2);
  }
};

TEST(Int4, AttentionEqualsThatOverDequantizedValues) {
  for (const std::int64_t channels : {32, 64}) {
    Int4Call call(channels);
    const Options options{.causal = Causal::bottom_right};
    std::vector<double> found(call.q.size()), wanted(call.q.size());
    ASSERT_EQ(reference(call.arguments, options, found.data()).message(), "");
    ASSERT_EQ(reference(call.dense, options, wanted.data()).message(), "");
    EXPECT_EQ(found, wanted);
    ASSERT_EQ(attention(call.dense, options).message(), "");
    const std::vector<float> expected = call.out;
    ASSERT_EQ(attention(call.arguments, options).message(), "");
    EXPECT_EQ(call.out, expected);
    EXPECT_NE(describe(problem_of(call.arguments, options).value()).find(" kv_group="),
              std::string::npos);
  }
}

TEST(Int4, EveryFaultIsOneSentence) {
  const auto is = [](const std::function<void(Arguments&)>& plant, const std::string& sentence) {
    Int4Call call(32);
    plant(call.arguments);
    EXPECT_EQ(attention(call.arguments).message(), sentence);
  };
  is([](Arguments& a) { a.k.shape[3] = a.v.shape[3] = 64; },
     "k.shape[3] is 64; supported: half the head dimension of q, here 64.");
  is([](Arguments& a) { a.k_groups.data = nullptr; },
     "k_groups.data is null; supported: scales and zeros, for inputs of int4.");
  is([](Arguments& a) { a.v_groups.data = nullptr; },
     "v_groups.data is null; supported: scales and zeros, for inputs of int4.");
  is([](Arguments& a) { a.k_groups.channels = 48; },
     "k_groups.channels is 48; supported: 32 or 64, a divisor of the head dimension, here 64.");
  is([](Arguments& a) { a.v_groups.channels = 64; },
     "v_groups.channels is 64; supported: those of k_groups, here 32.");
  is([](Arguments& a) { a.v.dtype = DType::int8; },
     "v dtype is int8; supported: that of k, here int4.");
  is([](Arguments& a) { a.q.dtype = DType::int4; },
     "q dtype is code 8; supported: f32, f16, bf16, e4m3, e5m2, int8, sim8.");
  // V of one group and a half.
  is(
      [](Arguments& a) {
        a.k_groups.channels = a.v_groups.channels = 64;
        a.v.shape[3] = 48;
        a.out.shape[3] = 96;
      },
      "v_groups.channels is 64; supported: 32 or 64, a divisor of the head dimension, here 96.");
  is(
      [](Arguments& a) {
        a.page_table = nullptr;
        a.pages_per_sequence = 0;
        a.seqlens_kv = nullptr;
        a.k.shape[0] = a.v.shape[0] = 1;
      },
      "k dtype is int4 without page_table; supported here: int4 in a paged cache.");
  alignas(16) static const std::uint16_t numbers[16] = {};
  Int4Call call(32);
  call.arguments.k_groups.data = numbers + 1;
  const std::string sentence = attention(call.arguments).message();
  EXPECT_EQ(sentence.find("k_groups.data is at address 0x"), 0U) << sentence;
  EXPECT_NE(sentence.find("supported: multiples of 16 bytes."), std::string::npos) << sentence;
}

}  // namespace
}  // namespace octavo
