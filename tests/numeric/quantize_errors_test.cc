// SPDX-License-Identifier: Apache-2.0
// Bad input to quantize, dequantize and convert: an error sentence, and nothing written.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "numeric/quantize_cases.h"

namespace octavo::testing {
namespace {

// A valid call, to be made invalid in one place.
struct Call {
  std::vector<float> values = std::vector<float>(2 * 3 * 4 * 8, 1.0f);
  std::vector<std::uint8_t> quantized = std::vector<std::uint8_t>(2 * 3 * 4 * 8, 0xAA);
  std::vector<float> scales = std::vector<float>(6, 0.5f);
  std::vector<float> mean = std::vector<float>(2 * 3 * 8, 7.0f);
  RangeStats stats{.values = 99};
  QuantizeOptions options;
  Tensor x = Tensor::bhsd(values.data(), DType::f32, 2, 3, 4, 8);
  Tensor out = Tensor::bhsd(quantized.data(), DType::e4m3, 2, 3, 4, 8);
  float* scales_out = scales.data();
  float* mean_out = mean.data();

  Status run() { return quantize(x, options, out, scales_out, mean_out, &stats); }
};

void expect_refused(const std::string& sentence, const std::function<void(Call&)>& spoil) {
  SCOPED_TRACE(sentence);
  Call call;
  spoil(call);
  const std::vector<float> scales_before = call.scales;
  const Status status = call.run();
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(status.message(), sentence);
  EXPECT_EQ(call.quantized, std::vector<std::uint8_t>(call.quantized.size(), 0xAA));
  EXPECT_EQ(std::memcmp(call.scales.data(), scales_before.data(), call.scales.size() * 4), 0);
  EXPECT_EQ(call.mean, std::vector<float>(call.mean.size(), 7.0f));
  EXPECT_EQ(call.stats.values, 99);
}

TEST(QuantizeErrors, TheUnchangedCallSucceeds) {
  Call call;
  const Status status = call.run();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(call.stats.values, 192);
}

TEST(QuantizeErrors, WrongTensorsAreRefusedByName) {
  expect_refused("x.dtype is e4m3; supported: f32, f16, bf16.",
                 [](Call& c) { c.x.dtype = DType::e4m3; });
  expect_refused("quantized.dtype is f16; supported: e4m3, e5m2, int8, sim8.",
                 [](Call& c) { c.out.dtype = DType::f16; });
  expect_refused(
      "quantized.shape is (2, 3, 5, 8); supported: the shape of x, here (2, 3, 4, 8).",
      [](Call& c) { c.out = Tensor::bhsd(c.quantized.data(), DType::e4m3, 2, 3, 5, 8); });
  expect_refused(
      "quantized.shape is (2, 3, 4, 8); supported: (2, 3, 8, 16), those of x transposed.",
      [](Call& c) { c.options.layout = VLayout::transposed; });
  expect_refused("max_quantized is 449; supported: 0 (the format's) to 448, the largest of e4m3.",
                 [](Call& c) { c.options.max_quantized = 449; });
  expect_refused("max_quantized is -1; supported: 0 (the format's) to 448, the largest of e4m3.",
                 [](Call& c) { c.options.max_quantized = -1; });
  expect_refused("max_quantized is 100; supported: 0 for sim8, whose scale is the amax.",
                 [](Call& c) {
                   c.options.max_quantized = 100;
                   c.out.dtype = DType::sim8;
                 });
  expect_refused("layout is code 9; supported: rows, transposed.",
                 [](Call& c) { c.options.layout = static_cast<VLayout>(9); });
  expect_refused("x.data is null; supported: a pointer to the elements.",
                 [](Call& c) { c.x.data = nullptr; });
  expect_refused("quantized.data is null; supported: a pointer to the elements.",
                 [](Call& c) { c.out.data = nullptr; });
  expect_refused("scales.data is null; supported: a pointer to the elements.",
                 [](Call& c) { c.scales_out = nullptr; });
  expect_refused("mean.data is null; supported: a pointer to the elements.", [](Call& c) {
    c.options.smooth = true;
    c.mean_out = nullptr;
  });
  expect_refused(
      "quantized.stride[2] is 4; supported: more than 7, so that no two elements share memory.",
      [](Call& c) {
        c.out.stride = {48, 16, 4, 1};
      });
}

TEST(QuantizeErrors, MemoryThatIsAlreadyInUse) {
  expect_refused("quantized is in memory that x also covers; supported: memory apart from x.",
                 [](Call& c) {
                   c.x.data = c.quantized.data();
                   c.x.shape[0] = c.out.shape[0] = 1;
                   c.x.shape[1] = c.out.shape[1] = 1;
                 });
  expect_refused("scales is in memory that x also covers; supported: memory apart from x.",
                 [](Call& c) { c.scales_out = c.values.data() + 3; });
  expect_refused("mean is in memory that scales also covers; supported: memory apart from scales.",
                 [](Call& c) {
                   c.options.smooth = true;
                   c.scales_out = c.mean.data();
                 });
}

TEST(QuantizeErrors, Options) {
  expect_refused("block_rows is 0; supported: 1 or more.", [](Call& c) {
    c.options.granularity = Granularity::block;
    c.options.block_rows = 0;
  });
  expect_refused("granularity is code 9; supported: tensor, head, block, row, channel.",
                 [](Call& c) { c.options.granularity = static_cast<Granularity>(9); });
  expect_refused("rule is code 5; supported: amax, least_squares.",
                 [](Call& c) { c.options.rule = static_cast<ScaleRule>(5); });
}

TEST(QuantizeErrors, CallersScales) {
  const auto with_scale = [](float scale) {
    return [scale](Call& c) {
      c.options.scales_given = true;
      c.scales[4] = scale;
    };
  };
  const std::string supported = "; supported: finite values from 1.1754944e-38 up.";
  expect_refused("scales[4] is nan" + supported, with_scale(std::nanf("")));
  expect_refused("scales[4] is inf" + supported,
                 with_scale(std::numeric_limits<float>::infinity()));
  expect_refused("scales[4] is -1" + supported, with_scale(-1.0f));
  expect_refused("scales[4] is 0" + supported, with_scale(0.0f));
  expect_refused("scales[4] is 1e-40" + supported, with_scale(1e-40f));
}

TEST(QuantizeErrors, EmptyTensorsNeedNoPointers) {
  const Tensor x = Tensor::bhsd(nullptr, DType::f32, 0, 3, 4, 8);
  const Tensor quantized = Tensor::bhsd(nullptr, DType::int8, 0, 3, 4, 8);
  EXPECT_TRUE(quantize(x, {}, quantized, nullptr).ok());
  EXPECT_TRUE(dequantize(quantized, {}, x).ok());
  EXPECT_TRUE(convert(x, x).ok());
}

struct Back {
  std::vector<std::uint8_t> quantized = std::vector<std::uint8_t>(48, 1);
  std::vector<float> scales = std::vector<float>(6, 0.5f);
  std::vector<float> values = std::vector<float>(48, -7.0f);
  Tensor in = Tensor::bhsd(quantized.data(), DType::int8, 2, 3, 4, 2);
  Scales by{scales.data(), Granularity::head, 64, {}};
  Tensor out = Tensor::bhsd(values.data(), DType::f32, 2, 3, 4, 2);
};

TEST(DequantizeErrors, NothingIsWritten) {
  const auto refused = [](const std::string& sentence, const std::function<void(Back&)>& spoil) {
    Back call;
    spoil(call);
    EXPECT_EQ(dequantize(call.in, call.by, call.out).message(), sentence);
    EXPECT_EQ(call.values, std::vector<float>(48, -7.0f)) << sentence;
  };
  refused("quantized.dtype is bf16; supported: e4m3, e5m2, int8, sim8.",
          [](Back& c) { c.in = Tensor::bhsd(c.quantized.data(), DType::bf16, 1, 1, 1, 2); });
  refused("out.dtype is sim8; supported: f32, f16, bf16.",
          [](Back& c) { c.out.dtype = DType::sim8; });
  refused("out.shape is (2, 3, 4, 1); supported: the shape of quantized, here (2, 3, 4, 2).",
          [](Back& c) { c.out.shape[3] = 1; });
  refused("scales.data is null; supported: a pointer to the elements.",
          [](Back& c) { c.by.data = nullptr; });
  refused("scales[5] is nan; supported: finite values from 1e-45 up.",
          [](Back& c) { c.scales[5] = std::nanf(""); });
  refused("scales.stride[0] is -3; supported: 0 or more.", [](Back& c) {
    c.by.stride = std::array<std::int64_t, 3>{-3, 1, 1};
  });
  refused("block_rows is -1; supported: 1 or more.", [](Back& c) {
    c.by.granularity = Granularity::block;
    c.by.block_rows = -1;
  });
  refused("out is in memory that scales also covers; supported: memory apart from scales.",
          [](Back& c) {
            c.out.data = c.scales.data();
            c.in.shape = c.out.shape = {1, 1, 1, 2};
          });
}

TEST(Dequantize, StridedAndBroadcastScales) {
  Back call;
  call.by.stride = std::array<std::int64_t, 3>{0, 2, 1};  // one set for both batches, with gaps
  call.scales = {1.0f, -1.0f, 2.0f, -1.0f, 4.0f, -1.0f};
  call.by.data = call.scales.data();
  ASSERT_TRUE(dequantize(call.in, call.by, call.out).ok());
  for (std::size_t i = 0; i < 48; ++i)
    ASSERT_EQ(call.values[i], static_cast<float>(1 << (i / 8 % 3))) << i;
}

TEST(Dequantize, RoundsToTheOutputsType) {
  Back call;
  std::fill(call.scales.begin(), call.scales.end(), 0.1f);
  std::vector<std::uint16_t> half(48);
  const Tensor out = Tensor::bshd(half.data(), DType::f16, 2, 3, 4, 2);
  ASSERT_TRUE(dequantize(call.in, call.by, out).ok());
  EXPECT_EQ(half, std::vector<std::uint16_t>(48, 0x2E66));
}

TEST(Convert, EveryPairOfTypes) {
  Values x({2, 2, 3, 5});
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::uint32_t> in(60), out(60, 0xA5A5A5A5);
      const Tensor source = Tensor::bshd(in.data(), from, 2, 2, 3, 5);
      const Tensor target{out.data(), to, x.shape, {30, 15, 5, 1}};
      ASSERT_TRUE(convert(x.tensor(), source).ok());
      ASSERT_TRUE(convert(source, target).ok());
      Values got(x.shape, 1);
      ASSERT_TRUE(convert(target, got.tensor()).ok());
      for (std::size_t i = 0; i < 60; ++i) {
        float expected = x.data[i];
        for (const DType step : {from, to}) {
          const second::Format& format = step == DType::f16 ? second::kF16 : second::kBf16;
          if (step != DType::f32)
            expected = static_cast<float>(second::decode(format, second::encode(format, expected)));
        }
        ASSERT_EQ(got.data[i], expected) << name(from) << " to " << name(to);
      }
    }
  }
}

TEST(ConvertErrors, NothingIsWritten) {
  std::vector<float> values(8, 1.0f);
  const Tensor x = Tensor::bhsd(values.data(), DType::f32, 1, 1, 2, 4);
  const Tensor quantized = Tensor::bhsd(values.data(), DType::e4m3, 1, 1, 2, 4);
  EXPECT_EQ(convert(quantized, x).message(), "in.dtype is e4m3; supported: f32, f16, bf16.");
  EXPECT_EQ(convert(x, quantized).message(), "out.dtype is e4m3; supported: f32, f16, bf16.");
  EXPECT_EQ(convert(x, x).message(),
            "out is in memory that in also covers; supported: memory apart from in.");
  EXPECT_EQ(convert(Tensor::bhsd(values.data(), DType::f32, 1, 1, 1, 4), x).message(),
            "out.shape is (1, 1, 2, 4); supported: the shape of in, here (1, 1, 1, 4).");
  EXPECT_EQ(values, std::vector<float>(8, 1.0f));
}

}  // namespace
}  // namespace octavo::testing
