// SPDX-License-Identifier: Apache-2.0
// Padding, softcap, bias, ALiBi, mask tensors and sinks against the fp64 oracle, with every
// instruction set that this machine supports.
#include <gtest/gtest.h>

#include <functional>

#include "case.h"
#include "cpu/kernels.h"
#include "cpu/thread_pool.h"

namespace octavo::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CpuModifiers : public testing::TestWithParam<const Kernels*> {
 protected:
  void SetUp() override { use_kernels(GetParam()); }
  void TearDown() override { use_kernels(nullptr); }
};

INSTANTIATE_TEST_SUITE_P(Targets, CpuModifiers, testing::ValuesIn(available_kernels()),
                         [](const auto& target) { return std::string(target.param->name); });

std::uint64_t random_bits(std::uint64_t stream, std::int64_t n) {
  return random_below(11, stream, static_cast<std::uint64_t>(n), 1 << 20);
}

// A call with the arrays of its modifiers.
struct ModifiedCall : Call {
  using Call::Call;
  std::vector<float> slopes, sinks;
  std::vector<std::int32_t> seqlens_q, seqlens_kv, leftpad_q, leftpad_kv;
  OwnedTensor bias, mask;

  std::int64_t batch() const { return arguments.q.shape[0]; }
  std::int64_t heads() const { return arguments.q.shape[1]; }

  void add_alibi() {
    for (std::int64_t i = 0; i < heads(); ++i)
      slopes.push_back(0.5f / static_cast<float>(1 << (i % 6)));
    arguments.alibi_slopes = slopes.data();
  }
  void add_sinks() {
    for (std::int64_t i = 0; i < heads(); ++i) sinks.push_back(static_cast<float>(i % 4) - 1.5f);
    arguments.sinks = sinks.data();
  }
  // The shape of a bias or mask: -1 stands for the dimension of the scores, and a 1 broadcasts.
  std::array<std::int64_t, 4> score_shape(std::array<std::int64_t, 4> shape) const {
    const std::array scores = {batch(), heads(), arguments.q.shape[2], arguments.k.shape[2]};
    for (std::size_t i = 0; i < 4; ++i)
      if (shape[i] < 0) shape[i] = scores[i];
    return shape;
  }
  void add_bias(DType dtype, std::array<std::int64_t, 4> shape, bool hides) {
    bias = OwnedTensor(dtype, score_shape(shape), OwnedTensor::Order::bhsd, 5);
    bias.fill(21);
    if (hides)
      bias.for_each([&](std::int64_t at, std::int64_t n) {
        if (random_bits(22, n) % 4 == 0) store_element(dtype, bias.view.data, at, -kInfinity);
      });
    arguments.bias = bias.view;
  }
  // Hides one key of `of` keys; of = 1: all.
  void add_mask(std::array<std::int64_t, 4> shape, std::uint64_t of = 3) {
    mask = OwnedTensor(DType::boolean, score_shape(shape), OwnedTensor::Order::bhsd, 3);
    mask.for_each([&](std::int64_t at, std::int64_t n) {
      static_cast<std::uint8_t*>(mask.view.data)[at] = random_bits(23, n) % of == 0 ? 0 : 1;
    });
    arguments.mask = mask.view;
  }
  void set_mask(std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key, bool visible) {
    static_cast<std::uint8_t*>(mask.view.data)[mask.at(b, h, row, key)] = visible ? 1 : 0;
  }
  // Padding on both sides, no token in the last sequence, and NaN in every row of padding.
  void add_padding() {
    for (std::int64_t b = 0; b < batch(); ++b) {
      const bool empty = b > 0 && b + 1 == batch();
      const auto sq = static_cast<std::int32_t>(arguments.q.shape[2]);
      const auto skv = static_cast<std::int32_t>(arguments.k.shape[2]);
      leftpad_q.push_back(static_cast<std::int32_t>(b % 3) * sq / 5);
      leftpad_kv.push_back(static_cast<std::int32_t>((b + 1) % 3) * skv / 4);
      seqlens_q.push_back(empty ? 0 : (sq - leftpad_q.back()) * 3 / 4);
      seqlens_kv.push_back(empty ? 0 : (skv - leftpad_kv.back()) * 2 / 3);
    }
    arguments.seqlens_q = seqlens_q.data(), arguments.seqlens_kv = seqlens_kv.data();
    arguments.leftpad_q = leftpad_q.data(), arguments.leftpad_kv = leftpad_kv.data();
    spoil(q, leftpad_q, seqlens_q), spoil(k, leftpad_kv, seqlens_kv);
    spoil(v, leftpad_kv, seqlens_kv);
  }
  static void spoil(OwnedTensor& t, const std::vector<std::int32_t>& leftpad,
                    const std::vector<std::int32_t>& seqlens) {
    for (std::int64_t b = 0; b < t.view.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.view.shape[1]; ++h)
        for (std::int64_t s = 0; s < t.view.shape[2]; ++s) {
          const auto i = static_cast<std::size_t>(b);
          if (s >= leftpad[i] && s < leftpad[i] + seqlens[i]) continue;
          for (std::int64_t d = 0; d < t.view.shape[3]; ++d)
            store_element(t.view.dtype, t.view.data, t.at(b, h, s, d), kNan);
        }
  }
};

constexpr std::array<std::int64_t, 4> kWhole = {-1, -1, -1, -1};

// Every subset of the modifiers, under each mask, with few queries (packed heads) and many.
TEST_P(CpuModifiers, EverySubset) {
  for (int subset = 1; subset < 64; ++subset)
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right})
      for (const auto& [seqlen_q, seqlen_kv] : {std::pair{11, 70}, {75, 90}}) {
        if (subset % 3 != seqlen_q % 3 && subset > 15) continue;  // half of the larger subsets
        SCOPED_TRACE(testing::Message() << "subset " << subset << ' ' << name(causal) << ' '
                                        << seqlen_q << " x " << seqlen_kv);
        Case c{.batch = 3, .heads_q = 4, .heads_kv = 2, .seqlen_q = seqlen_q};
        c.seqlen_kv = seqlen_kv;
        c.options.causal = causal;
        c.options.window_left = subset % 2 == 0 ? 40 : -1;
        c.options.softcap = (subset & 1) != 0 ? 1.5f : 0;
        ModifiedCall call(c);
        if ((subset & 2) != 0) call.add_bias(DType::f32, kWhole, subset % 5 == 0);
        if ((subset & 4) != 0) call.add_mask(kWhole);
        if ((subset & 8) != 0) call.add_alibi();
        if ((subset & 16) != 0) call.add_sinks();
        if ((subset & 32) != 0) call.add_padding();
        call.expect_matches_reference(tolerance(DType::f32));
      }
}

TEST_P(CpuModifiers, ShapesThatBroadcastAndEveryBiasFormat) {
  for (int shape = 0; shape < 16; ++shape)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(testing::Message() << "shape " << shape << ' ' << name(dtype));
      const auto of = [shape](int bit) { return (shape >> bit & 1) != 0 ? 1 : -1; };
      ModifiedCall call({.batch = 2, .heads_q = 4, .seqlen_q = 51, .seqlen_kv = 130});
      call.add_bias(dtype, {of(0), of(1), of(2), of(3)}, shape % 2 == 0);
      call.add_mask({of(3), of(2), of(1), of(0)}, 5);
      call.expect_matches_reference(tolerance(DType::f32));
    }
}

// A stride of 0 broadcasts as a dimension of 1 does.
TEST_P(CpuModifiers, AnyStrides) {
  ModifiedCall call({.seqlen_q = 20, .seqlen_kv = 70});
  call.add_bias(DType::f16, {1, -1, 1, -1}, false);
  call.arguments.bias.shape[2] = 20;
  call.arguments.bias.stride[2] = 0;
  call.add_mask({1, 1, -1, -1});
  call.expect_matches_reference(tolerance(DType::f32));
}

TEST_P(CpuModifiers, SlopesOfEachSequence) {
  ModifiedCall call({.batch = 2, .heads_q = 3, .heads_kv = 3, .seqlen_q = 20, .seqlen_kv = 40});
  call.slopes = {0.1f, 0.2f, 0.3f, kNan, 0.4f, 0.5f, 0.6f};
  call.arguments.alibi_slopes = call.slopes.data();
  call.arguments.alibi_batch_stride = 4;
  call.expect_matches_reference(tolerance(DType::f32));
}

TEST_P(CpuModifiers, SoftcapsOfEverySize) {
  for (const float softcap : {1e-42f, 1e-30f, 0.01f, 1.0f, 50.0f, 1e6f, 1e30f, 3.4e38f}) {
    SCOPED_TRACE(softcap);
    Case c{.seqlen_q = 30, .seqlen_kv = 70, .scale = 3.0f};
    c.options.softcap = softcap;
    ModifiedCall(c).expect_matches_reference(1e-5);
  }
}

// Infinite scores are at the cap.
TEST_P(CpuModifiers, SoftcapOfInfiniteScores) {
  Case c{.heads_q = 1, .heads_kv = 1, .seqlen_q = 5, .seqlen_kv = 70};
  c.options.softcap = 5;
  ModifiedCall call(c);
  store_element(DType::f32, call.k.view.data, call.k.at(0, 0, 66, 0), kInfinity);
  call.expect_matches_reference(tolerance(DType::f32));
}

// 8-bit inputs with the caller's scales: the oracle dequantizes them without an error.
TEST_P(CpuModifiers, EightBitInputs) {
  for (const DType dtype : {DType::e4m3, DType::int8, DType::sim8}) {
    SCOPED_TRACE(name(dtype));
    Case c{.batch = 2, .heads_q = 4, .seqlen_q = 30, .seqlen_kv = 90};
    c.q = c.k = c.v = dtype;
    c.options.softcap = 3;
    ModifiedCall call(c);
    call.add_bias(DType::bf16, kWhole, true);
    call.add_mask({1, 1, -1, -1}), call.add_alibi(), call.add_sinks();
    call.expect_matches_reference(tolerance(DType::f32));
  }
}

// More than one group of keys, the first and the last of which are hidden from some rows.
TEST_P(CpuModifiers, SeveralGroupsOfKeys) {
  for (const bool sinks : {false, true}) {
    ModifiedCall call({.heads_q = 1, .heads_kv = 1, .seqlen_q = 60, .seqlen_kv = 4300});
    call.add_mask({1, 1, -1, -1}, 4);
    for (std::int64_t row = 0; row < 60; ++row)
      for (std::int64_t key = 0; key < 4300; ++key) {
        const bool hidden = row < 20 ? key < 2100 : row < 40 ? key > 2000 : row < 50;
        if (hidden) call.set_mask(0, 0, row, key, false);
      }
    if (sinks) call.add_sinks();
    call.expect_matches_reference(tolerance(DType::f32));
  }
}

TEST_P(CpuModifiers, RowsThatSeeNothing) {
  for (const bool sinks : {false, true})
    for (const int kind : {0, 1, 2}) {
      ModifiedCall call({.heads_q = 2, .seqlen_q = 30, .seqlen_kv = kind == 2 ? 0 : 100});
      if (kind == 0) call.add_mask(kWhole, 1);
      if (kind == 1) {
        call.add_bias(DType::f16, kWhole, false);
        call.bias.for_each([&](std::int64_t at, std::int64_t) {
          store_element(DType::f16, call.bias.view.data, at, -kInfinity);
        });
      }
      if (sinks) call.add_sinks();
      ASSERT_EQ(call.run().message(), "");
      for (const float x : call.values(call.out)) ASSERT_EQ(x, 0.0f);
      const auto lse = call.values(call.lse);
      for (std::size_t i = 0; i < lse.size(); ++i)
        ASSERT_EQ(lse[i], sinks ? call.sinks[i / 30] : -kInfinity);
    }
}

// The lowest finite bias hides a key beside greater ones only, as on GPUs. Where it is the largest
// score of a row, it is also the LSE.
TEST_P(CpuModifiers, TheLowestFiniteBiasHidesOnlyIfOthersAreGreater) {
  for (const auto& [dtype, keys] :
       {std::pair{DType::f32, 150}, {DType::bf16, 150}, {DType::f32, 1}}) {
    const float lowest = dtype == DType::f32 ? std::numeric_limits<float>::lowest() : -0x1.fep127f;
    ModifiedCall call({.heads_q = 1, .heads_kv = 1, .seqlen_q = 30, .seqlen_kv = 150});
    call.add_bias(dtype, {1, 1, 30, keys}, false);
    call.bias.for_each([&](std::int64_t at, std::int64_t n) {
      const std::int64_t row = n / keys, key = n % keys;
      const float other = row % 4 == 1 ? 0.5f : -kInfinity;
      const bool is_lowest = row % 4 == 0 || key % 3 == row % 3 || keys == 1;
      const float x = row % 4 == 3 ? -lowest : (is_lowest ? lowest : other);
      store_element(dtype, call.bias.view.data, at, x);
    });
    ASSERT_EQ(call.run().message(), "");
    std::vector<double> out(30 * 16), lse(30);
    ASSERT_TRUE(reference(call.arguments, call.options, out.data(), lse.data()).ok());
    const auto found = call.values(call.out), found_lse = call.values(call.lse);
    for (std::size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(found[i], out[i], 1e-5) << "row " << i / 16;
    for (std::size_t row = 0; row < lse.size(); ++row)
      ASSERT_NEAR(found_lse[row] / lse[row], 1, 1e-2) << "row " << row;
  }
}

// A NaN in K or in the bias reaches only the rows that see the key.
TEST_P(CpuModifiers, HiddenKeysMayHoldNan) {
  for (const bool by_bias : {false, true})
    for (const float bad : {kNan, kInfinity}) {
      Case c{.heads_q = 1, .heads_kv = 1, .seqlen_q = 60, .seqlen_kv = 100};
      c.options.softcap = 4;
      ModifiedCall call(c);
      call.add_alibi();
      call.add_bias(DType::f32, kWhole, false);
      call.add_mask(kWhole, 1 << 20);
      store_element(DType::f32, call.k.view.data, call.k.at(0, 0, 70, 3), bad);
      for (std::int64_t row = 0; row < 60; ++row) {
        if (row == 7) continue;
        if (by_bias)
          store_element(DType::f32, call.bias.view.data, call.bias.at(0, 0, row, 70), -kInfinity);
        else
          call.set_mask(0, 0, row, 70, false);
      }
      if (!by_bias) store_element(DType::f32, call.bias.view.data, call.bias.at(0, 0, 9, 70), bad);
      call.expect_matches_reference(tolerance(DType::f32));
      const auto out = call.values(call.out);
      EXPECT_EQ(std::isnan(out[7 * 16]), std::isnan(bad));
      EXPECT_FALSE(std::isnan(out[9 * 16]));
    }
}

TEST_P(CpuModifiers, NanInABiasReachesTheRowsThatSeeIt) {
  ModifiedCall call({.heads_q = 1, .heads_kv = 1, .seqlen_q = 30, .seqlen_kv = 1});
  call.add_bias(DType::f32, kWhole, false);
  store_element(DType::f32, call.bias.view.data, call.bias.at(0, 0, 4, 0), kNan);
  call.expect_matches_reference(tolerance(DType::f32));
  EXPECT_TRUE(std::isnan(call.values(call.out)[4 * 16]));
}

// A padded sequence has the bits of the same sequence alone; padding gets 0 and -infinity.
TEST_P(CpuModifiers, PaddedEqualsSliced) {
  for (const Causal causal : {Causal::none, Causal::bottom_right, Causal::top_left}) {
    Case c{.batch = 3, .heads_q = 4, .heads_kv = 2, .seqlen_q = 90, .seqlen_kv = 110};
    c.options.causal = causal;
    c.options.softcap = 2;
    ModifiedCall whole(c);
    whole.add_alibi(), whole.add_sinks();
    whole.add_padding();
    ASSERT_EQ(whole.run().message(), "");
    for (std::int64_t b = 0; b < 3; ++b) {
      ModifiedCall part(c);
      part.add_alibi(), part.add_sinks();
      const auto i = static_cast<std::size_t>(b);
      const auto slice = [b](auto& t, std::int64_t begin, std::int64_t rows) {
        t.data = const_cast<float*>(static_cast<const float*>(t.data)) + b * t.stride[0] +
                 begin * t.stride[2];
        t.shape[0] = 1;
        t.shape[2] = rows;
      };
      slice(part.arguments.q, whole.leftpad_q[i], whole.seqlens_q[i]);
      slice(part.arguments.out, whole.leftpad_q[i], whole.seqlens_q[i]);
      slice(part.arguments.lse, whole.leftpad_q[i], whole.seqlens_q[i]);
      slice(part.arguments.k, whole.leftpad_kv[i], whole.seqlens_kv[i]);
      slice(part.arguments.v, whole.leftpad_kv[i], whole.seqlens_kv[i]);
      ASSERT_EQ(part.run().message(), "");
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t row = 0; row < 90; ++row) {
          const bool used =
              row >= whole.leftpad_q[i] && row < whole.leftpad_q[i] + whole.seqlens_q[i];
          const auto value = [&](const OwnedTensor& t, std::int64_t d) {
            return static_cast<const float*>(t.view.data)[t.at(b, h, row, d)];
          };
          for (std::int64_t d = 0; d < 16; ++d)
            ASSERT_EQ(value(whole.out, d), used ? value(part.out, d) : 0.0f) << b << ' ' << row;
          ASSERT_EQ(value(whole.lse, 0), used ? value(part.lse, 0) : -kInfinity) << b << ' ' << row;
        }
    }
  }
}

// Each array of the padding may be absent.
TEST_P(CpuModifiers, EveryArrayOfThePadding) {
  for (int given = 1; given < 16; ++given) {
    SCOPED_TRACE(given);
    ModifiedCall call({.batch = 2, .seqlen_q = 20, .seqlen_kv = 30, .out = DType::f16});
    std::vector<std::int32_t> leftpad_q = {3, 20}, seqlens_q = {5, 0};
    std::vector<std::int32_t> leftpad_kv = {0, 7}, seqlens_kv = {30, 2};
    if ((given & 1) != 0) call.arguments.leftpad_q = leftpad_q.data();
    if ((given & 2) != 0) call.arguments.seqlens_q = seqlens_q.data();
    if ((given & 4) != 0) call.arguments.leftpad_kv = leftpad_kv.data();
    if ((given & 8) != 0) call.arguments.seqlens_kv = seqlens_kv.data();
    call.expect_matches_reference(tolerance(DType::f16));
  }
}

TEST_P(CpuModifiers, LengthsOutsideTheTensorAreRefusedAndNothingIsWritten) {
  for (const std::array<std::int32_t, 2>& bad : {std::array{-1, 2}, std::array{2, 21}}) {
    ModifiedCall call({.batch = 2, .seqlen_q = 20, .seqlen_kv = 20});
    call.arguments.seqlens_kv = bad.data();
    const Status status = call.run();
    EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
    EXPECT_NE(status.message().find("seqlens_kv["), std::string::npos) << status.message();
    for (const float x : call.values(call.out)) ASSERT_TRUE(std::isnan(x));
  }
}

// With smoothing the scores of a row are shifted, and its sink is not.
TEST_P(CpuModifiers, SinksWithSmoothedKeys) {
  Case c{.heads_q = 4, .heads_kv = 2, .seqlen_q = 20, .seqlen_kv = 90};
  c.options.precision = Precision::int8;
  c.options.quantization.smooth_k = true;
  ModifiedCall without(c), with(c);
  for (ModifiedCall* call : {&without, &with})
    call->k.for_each([&](std::int64_t at, std::int64_t) {
      static_cast<float*>(call->k.view.data)[at] += 0.5f;  // a mean far from zero
    });
  with.add_sinks();
  ASSERT_EQ(without.run().message(), "");
  ASSERT_EQ(with.run().message(), "");
  const auto out = without.values(without.out), lse = without.values(without.lse);
  const auto found = with.values(with.out), found_lse = with.values(with.lse);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const double of_keys = std::exp(double{lse[i]});
    const double total = of_keys + std::exp(double{with.sinks[i / 20]});
    ASSERT_NEAR(found_lse[i], std::log(total), 1e-5);
    for (std::size_t d = 0; d < 16; ++d)
      ASSERT_NEAR(found[i * 16 + d], out[i * 16 + d] * of_keys / total, 1e-5);
  }
}

// A row alone, or in another panel, has the same bits.
TEST_P(CpuModifiers, BitsDoNotDependOnOtherRowsOrThreads) {
  Case c{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 131, .seqlen_kv = 150};
  c.options.softcap = 3;
  c.options.window_left = 100;  // with the bottom-right diagonal
  const auto make = [&] {
    auto call = std::make_unique<ModifiedCall>(c);
    call->add_alibi(), call->add_sinks();
    call->add_bias(DType::f16, kWhole, true), call->add_mask(kWhole);
    return call;
  };
  const auto whole = make();
  ASSERT_EQ(whole->run().message(), "");
  const auto expected = whole->values(whole->out);
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    for (const std::int64_t first : {0, 1, 50, 100}) {
      const auto part = make();
      Arguments& a = part->arguments;
      a.q.data = static_cast<const float*>(a.q.data) + first * 16;
      a.out.data = static_cast<float*>(a.out.data) + first * 16;
      a.bias.data = static_cast<const std::uint16_t*>(a.bias.data) + first * a.bias.stride[2];
      a.mask.data = static_cast<const std::uint8_t*>(a.mask.data) + first * a.mask.stride[2];
      a.q.shape[2] = a.out.shape[2] = a.bias.shape[2] = a.mask.shape[2] = 131 - first;
      a.lse = {};
      ASSERT_EQ(part->run(threads).message(), "");
      const auto found = part->values(part->out);
      for (std::size_t i = 0; i < found.size(); ++i)
        if (static_cast<std::int64_t>(i) / 16 % 131 >= first) {
          ASSERT_EQ(found[i], expected[i]) << "row " << i / 16 << " of the last from " << first;
        }
    }
  }
  set_thread_count(0);
}

}  // namespace
}  // namespace octavo::cpu
