// SPDX-License-Identifier: Apache-2.0
// KV caches on the emulated GPU: appended rows have the bits of a cache in host memory, and
// attention over the cache is that of the CPU.
#include "emulator/kernels/append.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/long.h"
#include "evidence/cases/draw.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"
#include "octavo/kv_cache.hpp"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo {
namespace {

constexpr Device kAppendDevice{Device::Kind::emulator, 90};
constexpr std::int64_t kAppendHeads = 2, kPositions = 200;

KvCacheOptions cache_options(DType dtype, std::int64_t head_dim) {
  KvCacheOptions o;
  o.pages = 12;
  o.page_size = 16;
  o.heads = kAppendHeads;
  o.head_dim = head_dim;
  o.dtype = dtype;
  o.max_batch = 3;
  return o;
}

// New rows (batch, heads, tokens, head_dim), in memory with `gap` more elements after each row.
struct AppendedRows {
  std::vector<std::byte> k, v;
  Tensor k_view, v_view;
  AppendedRows(DType dtype, std::int64_t batch, std::int64_t tokens, std::int64_t head_dim,
               std::uint64_t seed, std::int64_t gap = 0) {
    const std::int64_t rows = batch * kAppendHeads * tokens;
    k.resize(static_cast<std::size_t>(rows * (head_dim + gap)) * size_bytes(dtype));
    v.resize(k.size());
    const auto view = [&](std::vector<std::byte>& bytes) {
      Tensor t = Tensor::bhsd(bytes.data(), dtype, batch, kAppendHeads, tokens, head_dim + gap);
      t.shape[3] = head_dim;
      return t;
    };
    k_view = view(k);
    v_view = view(v);
    EXPECT_EQ(random_normal(k_view, seed, 1).message(), "");
    EXPECT_EQ(random_normal(v_view, seed, 2).message(), "");
  }
};

struct Angles {
  std::vector<float> cos, sin;
  Rotary rotary;
  Angles(std::int64_t pairs, bool interleaved) {
    for (std::int64_t i = 0; i < kPositions * pairs; ++i) {
      cos.push_back(std::cos(static_cast<float>(i)));
      sin.push_back(std::sin(static_cast<float>(i)));
    }
    rotary = {cos.data(), sin.data(), kPositions, pairs, interleaved};
  }
};

// Two caches to which the same is done.
struct TwoCaches {
  KvCache cpu, gpu;
  explicit TwoCaches(const KvCacheOptions& o)
      : cpu(KvCache::create(o).value()), gpu(KvCache::create(o, kAppendDevice).value()) {}

  template <class Do>
  void both(const Do& act) {
    for (KvCache* cache : {&cpu, &gpu}) {
      const Status status = act(*cache);
      ASSERT_EQ(status.message(), "") << name(cache->device());
    }
  }
  void append(const AppendedRows& rows, const Rotary& rotary = {}) {
    both([&](KvCache& c) { return c.append(rows.k_view, rows.v_view, rotary); });
  }
  void select(const std::vector<std::int64_t>& sequences) {
    both([&](KvCache& c) { return c.select(sequences); });
  }
  std::int64_t add_sequence() {
    EXPECT_EQ(cpu.add_sequence().value(), gpu.add_sequence().value());
    return cpu.options().max_batch > 0 ? added++ : 0;
  }
  void expect_same(std::int64_t sequences) const {
    ASSERT_EQ(cpu.free_pages(), gpu.free_pages());
    const std::int64_t head_dim = cpu.options().head_dim;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t length = cpu.length(s).value();
      ASSERT_EQ(gpu.length(s).value(), length);
      const AppendedRows expected(DType::f32, 1, length, head_dim, 0),
          found(DType::f32, 1, length, head_dim, 3);
      ASSERT_EQ(cpu.read(s, expected.k_view, expected.v_view).message(), "");
      ASSERT_EQ(gpu.read(s, found.k_view, found.v_view).message(), "");
      EXPECT_TRUE(found.k == expected.k && found.v == expected.v) << "sequence " << s;
    }
  }
  std::int64_t added = 0;
};

TEST(EmulatorKvCache, AppendsTheBitsOfTheCpu) {
  int number = 0;
  for (const DType to : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::int8})
    for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
      // Rows that fill a kernel's columns or not, aligned and not, rotated in either way.
      const std::int64_t head_dim = number % 2 == 0 ? 48 : 64;
      const std::int64_t gap = number % 3 == 0 ? 1 : 0;
      const Angles angles(number % 5 == 0 ? 9 : head_dim / 2, number % 4 < 2);
      SCOPED_TRACE(std::string(name(from)).append(" to ").append(name(to)));
      TwoCaches two(cache_options(to, head_dim));
      two.add_sequence();
      two.add_sequence();
      two.select({0});
      two.append(AppendedRows(from, 1, 17, head_dim, 5, gap), angles.rotary);
      two.select({1, 0});
      two.append(AppendedRows(from, 2, 3, head_dim, 6, gap), angles.rotary);
      two.append(AppendedRows(from, 2, 1, head_dim, 7));
      two.expect_same(2);
      Arguments a;
      two.gpu.set_arguments(a);
      EXPECT_EQ(std::vector(a.seqlens_kv, a.seqlens_kv + 2), (std::vector<std::int32_t>{4, 21}));
      ++number;
    }
}

// Groups of 32 and 64 channels, rows of one group and of several, values that are not finite, and
// groups of one value.
TEST(EmulatorKvCache, AppendsTheBitsOfTheCpuInInt4) {
  int number = 0;
  for (const std::int64_t group : {32, 64})
    for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
      const std::int64_t head_dim = group == 32 ? 32 * (1 + number % 2) : 64 * (1 + number % 3);
      KvCacheOptions o = cache_options(DType::int4, head_dim);
      o.group = group;
      o.layout = number % 2 == 0 ? PageLayout::bhsd : PageLayout::bshd;
      const Angles angles(head_dim / 2 - 3, number % 2 == 0);
      SCOPED_TRACE(testing::Message() << name(from) << ' ' << head_dim << '/' << group);
      TwoCaches two(o);
      two.add_sequence();
      two.add_sequence();
      two.select({0});
      two.append(AppendedRows(from, 1, 17, head_dim, 5), angles.rotary);
      two.select({1, 0});
      AppendedRows odd(from, 2, 3, head_dim, 6, number % 3);
      for (std::int64_t i = 0; i < group; ++i) {
        const auto value = static_cast<float>(i);
        store_element(from, odd.v_view.data, i, i % 2 == 0 ? 0.0f : -0.0f);
        store_element(from, odd.k_view.data, i, i == 3 ? HUGE_VALF : i == 7 ? -HUGE_VALF : value);
        store_element(from, odd.k_view.data, odd.k_view.stride[2] + i, std::nanf(""));
        store_element(from, odd.v_view.data, odd.v_view.stride[2] + i, i == 5 ? 3e5f : -1.5f);
      }
      two.append(odd);
      two.expect_same(2);
      ++number;
    }
}

TEST(EmulatorKvCache, ForksCopyOnWrite) {
  TwoCaches two(cache_options(DType::int8, 64));
  two.add_sequence();
  two.select({0});
  two.append(AppendedRows(DType::f16, 1, 20, 64, 1));
  for (KvCache* cache : {&two.cpu, &two.gpu}) ASSERT_EQ(cache->fork(0).value(), 1);
  EXPECT_EQ(two.gpu.free_pages(), 10);
  two.select({1});
  two.append(AppendedRows(DType::f16, 1, 2, 64, 2));
  EXPECT_EQ(two.gpu.free_pages(), 9);
  two.select({0, 1});
  two.append(AppendedRows(DType::f16, 2, 1, 64, 3));
  two.expect_same(2);
  // A freed sequence leaves an empty batch, and its pages are used again.
  two.both([](KvCache& c) { return c.free_sequence(0); });
  Arguments a;
  two.gpu.set_arguments(a);
  EXPECT_EQ(a.seqlens_kv[0] + a.seqlens_kv[1], 0);
  two.select({1});
  two.append(AppendedRows(DType::f16, 1, 30, 64, 4));
  AppendedRows found(DType::f32, 1, 53, 64, 0), expected(DType::f32, 1, 53, 64, 0);
  ASSERT_EQ(two.gpu.read(1, found.k_view, found.v_view).message(), "");
  ASSERT_EQ(two.cpu.read(1, expected.k_view, expected.v_view).message(), "");
  EXPECT_EQ(found.k, expected.k);
}

// Decoding on the emulated GPU from the cache that it has appended to.
TEST(EmulatorKvCache, DecodesWhatItHasAppended) {
  for (const DType dtype : {DType::f16, DType::e4m3}) {
    TwoCaches two(cache_options(dtype, 64));
    two.add_sequence();
    two.add_sequence();
    two.select({0});
    two.append(AppendedRows(DType::f16, 1, 40, 64, 1));
    two.select({0, 1});
    two.append(AppendedRows(DType::f16, 2, 2, 64, 2));
    std::vector<std::uint16_t> q(2 * 4 * 2 * 64), out(q);
    std::vector<float> expected(q.size());
    const Tensor q_view = Tensor::bhsd(q.data(), DType::f16, 2, 4, 2, 64);
    ASSERT_TRUE(random_normal(q_view, 9, 0).ok());
    Arguments a;
    a.q = q_view;
    a.out = Tensor::bhsd(out.data(), DType::f16, 2, 4, 2, 64);
    two.gpu.set_arguments(a);
    ASSERT_EQ(attention(a, {.causal = Causal::bottom_right}, kAppendDevice).message(), "");
    two.cpu.set_arguments(a);
    a.out = Tensor::bhsd(expected.data(), DType::f32, 2, 4, 2, 64);
    ASSERT_EQ(attention(a, {.causal = Causal::bottom_right}).message(), "");
    std::vector<float> found(out.size());
    ASSERT_TRUE(convert(Tensor::bhsd(out.data(), DType::f16, 2, 4, 2, 64),
                        Tensor::bhsd(found.data(), DType::f32, 2, 4, 2, 64))
                    .ok());
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 4e-3) << i;
  }
}

// Random types, sizes, gaps, rotations and batches, forks in between.
TEST(EmulatorKvCache, RandomAppendsHaveTheBitsOfTheCpu) {
  constexpr std::array kCacheTypes = {DType::f16,  DType::bf16, DType::e4m3,
                                      DType::e5m2, DType::int8, DType::int4};
  constexpr std::array kRowTypes = {DType::f32, DType::f16, DType::bf16};
  const auto begin = static_cast<std::uint64_t>(first_seed());
  const auto count = static_cast<std::uint64_t>(random_problems(6));
  for (std::uint64_t seed = begin; seed < begin + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    evidence::Draw draw(seed);
    const DType to = draw.of(kCacheTypes), from = draw.of(kRowTypes);
    std::int64_t head_dim = 16 * draw.between(1, draw.one_in(6) ? 16 : 6);
    KvCacheOptions options = cache_options(to, head_dim);
    if (to == DType::int4) {
      options.group = draw.one_in(2) ? 32 : 64;
      options.head_dim = head_dim = options.group * draw.between(1, 256 / options.group);
    }
    const std::int64_t gap = draw.one_in(3) ? draw.between(1, 8) : 0;
    const Angles angles(draw.between(1, head_dim / 2), draw.one_in(2));
    TwoCaches two(options);
    for (int sequence = 0; sequence < 3; ++sequence) two.add_sequence();
    for (int step = 0; step < 3; ++step) {
      const std::int64_t first = draw.between(0, 2), others = draw.between(0, 2);
      std::vector<std::int64_t> batch;
      for (std::int64_t i = 0; i <= others; ++i) batch.push_back((first + i) % 3);
      two.select(batch);
      const AppendedRows rows(from, others + 1, draw.between(1, 19), head_dim, seed + 1, gap);
      two.append(rows, draw.one_in(2) ? angles.rotary : Rotary{});
    }
    two.expect_same(3);
  }
}

// What a graph may do that is replayed once too often: the sequence that has no room keeps its
// rows.
TEST(EmulatorKvCache, SequenceWithoutRoomStaysAsItIs) {
  const AppendedRows rows(DType::f16, 2, 3, 64, 1);
  std::vector<std::uint16_t> k(2 * kAppendHeads * 16 * 64, 7), v(k);
  std::vector<std::int32_t> table{0, 1}, lengths{14, 13}, capacities{16, 16};
  std::uint32_t arrivals = 0;
  AppendCall call;
  call.cache = {Tensor::bhsd(k.data(), DType::f16, 2, kAppendHeads, 16, 64),
                Tensor::bhsd(v.data(), DType::f16, 2, kAppendHeads, 16, 64)};
  call.batch = {table.data(), 1, lengths.data(), capacities.data(), &arrivals};
  call.k = rows.k_view;
  call.v = rows.v_view;
  const GpuInfo& chip = emulated_gpu(kAppendDevice).value()->info;
  const auto* const kernel = emulator::find_append(choose_append(call, chip), 64);
  ASSERT_NE(kernel, nullptr);
  for (int time = 0; time < 2; ++time) {
    const Status status =
        run_emulated(*kernel, chip, call, {}, [](const emulator::Machine& machine) {
          EXPECT_TRUE(machine.report().clean()) << machine.report().text();
        });
    ASSERT_EQ(status.message(), "");
    EXPECT_EQ(lengths, (std::vector<std::int32_t>{14, 16}));
    EXPECT_EQ(arrivals, 0U);
  }
  const auto row = [](const std::vector<std::uint16_t>& cache, std::int64_t page,
                      std::int64_t token) {
    return cache[static_cast<std::size_t>((page * kAppendHeads * 16 + token) * 64)];
  };
  EXPECT_EQ(row(k, 0, 14), 7);
  EXPECT_EQ(row(v, 1, 12), 7);
  EXPECT_NE(row(k, 1, 13), 7);
  EXPECT_NE(row(v, 1, 15), 7);
}

TEST(EmulatorKvCache, RefusesCachesThatGpusDoNotSupport) {
  const auto refused = [](DType dtype, std::int64_t head_dim) {
    const Result<KvCache> made = KvCache::create(cache_options(dtype, head_dim), kAppendDevice);
    EXPECT_EQ(made.status().code(), ErrorCode::unsupported);
    return made.status().message();
  };
  EXPECT_EQ(refused(DType::f32, 64),
            "dtype is f32 on sm_90; supported here: f16, bf16, int8, int4, and from sm_89 on e4m3, "
            "e5m2 on "
            "a GPU.");
  EXPECT_EQ(refused(DType::f16, 60),
            "head_dim is 60; supported here: multiples of 8 up to 256 for f16 on a GPU.");
  EXPECT_EQ(refused(DType::int8, 72),
            "head_dim is 72; supported here: multiples of 16 up to 256 for int8 on a GPU.");
  KvCache cache = KvCache::create(cache_options(DType::f16, 64), kAppendDevice).value();
  EXPECT_EQ(cache.advance(1).message(),
            "device is emulator:90; supported here: cuda in advance().");
  ASSERT_EQ(cache.select({{cache.add_sequence().value()}}).message(), "");
  const AppendedRows half(DType::f16, 1, 1, 64, 1), full(DType::f32, 1, 1, 64, 1);
  EXPECT_EQ(cache.append(half.k_view, full.v_view).message(),
            "v.dtype is f32; supported: f16, the type of k.");
  EXPECT_EQ(cache.length(0).value(), 0);
}

}  // namespace
}  // namespace octavo
