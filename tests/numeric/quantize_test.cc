// SPDX-License-Identifier: Apache-2.0
// Quantization: groups, scales and quantized values against the direct recomputation; strides;
// non-finite and tiny values; statistics; the least-squares rule.
#include "numeric/quantize.h"

#include <gtest/gtest.h>

#include "numeric/formats.h"
#include "numeric/quantize_cases.h"
#include "numeric/scale.h"

namespace octavo::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Test>
void for_each_case(Test test) {
  for (const DType format : kFormats) {
    for (const Granularity granularity : kAllGranularities) {
      SCOPED_TRACE(case_name(format, granularity));
      QuantizeOptions options;
      options.granularity = granularity;
      options.block_rows = 3;  // 7 rows: two whole blocks and a partial one
      test(format, options);
    }
  }
}

TEST(ScaleCount, FollowsTheTable) {
  const Shape shape = {2, 3, 130, 64};
  EXPECT_EQ(scale_count(shape, Granularity::tensor), 1);
  EXPECT_EQ(scale_count(shape, Granularity::head), 6);
  EXPECT_EQ(scale_count(shape, Granularity::block), 18);
  EXPECT_EQ(scale_count(shape, Granularity::row), 780);
  EXPECT_EQ(scale_count(shape, Granularity::channel), 384);
  EXPECT_EQ(scale_count({2, 3, 0, 64}, Granularity::tensor), 1);
  EXPECT_EQ(scale_count({2, 3, 0, 64}, Granularity::block), 0);
  EXPECT_EQ(scale_count({2, 3, 0, 64}, Granularity::row), 0);
  EXPECT_EQ(scale_count({2, 3, 5, 0}, Granularity::channel), 0);
}

TEST(ScaleCount, EmptyTensorHasNoScales) {
  constexpr std::int64_t kHuge = INT64_MAX;
  EXPECT_EQ(scale_count({1, 1, 8, 8}, Granularity::block, 0), 0);
  EXPECT_EQ(scale_count({1, 1, 8, 8}, Granularity::block, INT64_MIN), 0);
  EXPECT_EQ(scale_count({1, 1, kHuge, 8}, Granularity::block, kHuge), 1);
  EXPECT_EQ(scale_count({1, -1, 8, 8}, Granularity::head), 0);
  EXPECT_EQ(scale_count({kHuge, kHuge, kHuge, 8}, Granularity::row), 0);
}

TEST(ScaleFromRange, ZeroGivesOneAndTinyStaysInvertible) {
  for (const DType format : kFormats) {
    EXPECT_EQ(scale_from_amax(format, 0.0f), 1.0f);
    for (const float amax : {std::numeric_limits<float>::denorm_min(), 1e-38f, 1.0f, 3e38f}) {
      const float step = step_of(format, scale_from_amax(format, amax));
      EXPECT_GE(step, std::numeric_limits<float>::min()) << name(format) << " " << amax;
      EXPECT_TRUE(std::isfinite(1.0f / step)) << name(format) << " " << amax;
    }
  }
  EXPECT_EQ(scale_from_amax(DType::sim8, 2.5f), 2.5f);
  EXPECT_EQ(step_of(DType::sim8, 2.5f), 2.5f / 127.0f);
  EXPECT_EQ(scale_from_amax(DType::e4m3, 448.0f), 1.0f);
  EXPECT_EQ(scale_from_amax(DType::e4m3, 15.0f, 30.0f), 0.5f);
  EXPECT_EQ(scale_from_amax(DType::e4m3, 0.0f, 30.0f), 1.0f);
}

// The largest value of the format whose square, head_dim times, is at most 65000: found by trying
// all.
TEST(QuantizeScale, ScoresOfLargestValuesFitFp16) {
  for (const DType format : {DType::e4m3, DType::e5m2})
    for (std::int64_t head_dim = 1; head_dim <= 300; ++head_dim) {
      float best = 0;
      for (const float code : decode_table(format))
        if (static_cast<double>(head_dim) * code * code <= 65000) best = std::max(best, code);
      EXPECT_EQ(max_quantized_qk(format, head_dim), best) << name(format) << " " << head_dim;
    }
  EXPECT_EQ(max_quantized_qk(DType::int8, 64), 127.0f);
  EXPECT_EQ(max_quantized_qk(DType::sim8, 64), 127.0f);
}

TEST(ScaleIndex, FollowsTheCallersStrides) {
  const Scales scales{nullptr, Granularity::row, 64, std::array<std::int64_t, 3>{1000, 100, 2}};
  EXPECT_EQ(scale_index(scales, {2, 3, 5, 8}).at(1, 2, 4, 7), 1208);
  const Scales channel{nullptr, Granularity::channel, 64, {}};
  EXPECT_EQ(scale_index(channel, {2, 3, 5, 8}).at(1, 2, 4, 7), 47);
}

TEST(Quantize, ScalesAndValuesMatchTheDefinition) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({2, 3, 7, 5});
    const Quantized q = quantized(x, format, options);
    ASSERT_EQ(q.scales, naive_scales(x, format, options));
    for (std::size_t i = 0; i < x.data.size(); ++i)
      ASSERT_EQ(q.codes[i],
                naive_found_code(format, x.data[i], q.scales[group_of(x.shape, options, i)]))
          << i << " " << x.data[i];
  });
}

// Near midpoints a division by the step would sometimes round differently: multiplying by the
// inverse is part of the contract with other implementations.
TEST(Quantize, MultipliesByTheRoundedInverse) {
  QuantizeOptions given;
  given.scales_given = true;
  for (const DType format : {DType::int8, DType::sim8}) {
    int differs = 0;
    for (const float scale : {0.1f, 0.3f, 0.7f, 1.3f}) {
      Values x({1, 1, 1, 254});
      const float step = naive_step(format, scale);
      for (std::size_t i = 0; i < x.data.size(); ++i)
        x.data[i] = (static_cast<float>(i) - 126.5f) * step;
      const Quantized q = quantized(x, format, given, {scale});
      for (std::size_t i = 0; i < x.data.size(); ++i) {
        ASSERT_EQ(q.codes[i], naive_code(format, x.data[i], scale)) << x.data[i];
        differs += q.codes[i] != second::encode(definition(format), x.data[i] / step);
      }
    }
    EXPECT_GT(differs, 0) << name(format) << ": the inputs no longer tell the two apart";
  }
}

TEST(Quantize, DequantizeMultipliesByTheStep) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({2, 3, 7, 5});
    Quantized q = quantized(x, format, options);
    Values back(x.shape, 1);
    ASSERT_TRUE(dequantize(q.tensor(), q.scales_view(), back.tensor()).ok());
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      const auto code = static_cast<float>(second::decode(definition(format), q.codes[i]));
      const float scale = q.scales[group_of(x.shape, options, i)];
      ASSERT_EQ(back.data[i], code * naive_step(format, scale)) << i;
    }
  });
}

TEST(Quantize, ZeroTensorHasScaleOneAndZeroValues) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({1, 2, 7, 4});
    std::fill(x.data.begin(), x.data.end(), 0.0f);
    const Quantized q = quantized(x, format, options);
    for (const float scale : q.scales) ASSERT_EQ(scale, 1.0f);
    for (const std::uint8_t code : q.codes) ASSERT_EQ(code, format == DType::sim8 ? 128 : 0);
    EXPECT_EQ(q.stats.amax, 0.0);
    EXPECT_EQ(q.stats.sqnr_db, static_cast<double>(kInfinity));
    EXPECT_EQ(q.stats.flushed_fraction, 0.0);
  });
}

TEST(Quantize, ConstantTensorIsTheLargestValue) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({1, 2, 7, 4});
    std::fill(x.data.begin(), x.data.end(), -0.3f);
    const Quantized q = quantized(x, format, options);
    const std::uint8_t expected = encode_8bit(format, -largest(format));
    for (const std::uint8_t code : q.codes) ASSERT_EQ(code, expected);
    EXPECT_EQ(q.stats.clipped_fraction, 0.0);
    EXPECT_NEAR(q.stats.amax, 0.3, 1e-7);
  });
}

TEST(Quantize, NotFiniteValues) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({1, 1, 7, 4});
    x.data[5] = std::nanf("");
    x.data[9] = kInfinity;
    x.data[22] = -kInfinity;
    const Quantized q = quantized(x, format, options);
    ASSERT_EQ(q.scales, naive_scales(x, format, options));
    const bool has_nan = format == DType::e4m3 || format == DType::e5m2;
    EXPECT_EQ(q.codes[5], has_nan ? 0x7F : format == DType::sim8 ? 128 : 0);
    EXPECT_EQ(q.codes[9], encode_8bit(format, largest(format)));
    EXPECT_EQ(q.codes[22], encode_8bit(format, -largest(format)));
    EXPECT_EQ(q.stats.nan_values, 1);
    EXPECT_EQ(q.stats.inf_values, 2);
    EXPECT_EQ(q.stats.values, 28);
    EXPECT_DOUBLE_EQ(q.stats.clipped_fraction, 2.0 / 28);
    EXPECT_TRUE(std::isfinite(q.stats.sqnr_db));
  });
}

TEST(Quantize, DenormalsAndTheLargestFloats) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({1, 1, 7, 4});
    for (float& value : x.data) value *= 1e-40f;
    for (const float scale : quantized(x, format, options).scales)
      ASSERT_GE(step_of(format, scale), std::numeric_limits<float>::min());
    for (float& value : x.data) value = std::copysign(std::numeric_limits<float>::max(), value);
    const Quantized q = quantized(x, format, options);
    for (std::size_t i = 0; i < x.data.size(); ++i)
      ASSERT_EQ(q.codes[i], encode_8bit(format, std::copysign(largest(format), x.data[i])));
  });
}

TEST(Quantize, InputTypesAndLayoutsGiveTheSameValues) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Values x({2, 3, 7, 5});
    std::vector<std::uint16_t> bits(x.data.size());
    const Tensor swapped = Tensor::bshd(bits.data(), dtype, 2, 3, 7, 5);
    ASSERT_TRUE(convert(x.tensor(), swapped).ok());
    ASSERT_TRUE(convert(swapped, x.tensor()).ok());  // x now holds 16-bit values, as f32
    const Quantized expected = quantized(x, DType::e4m3, {});
    Quantized got = expected;
    std::fill(got.codes.begin(), got.codes.end(), 0);
    ASSERT_TRUE(quantize(swapped, {}, got.tensor(), got.scales.data()).ok());
    EXPECT_EQ(got.codes, expected.codes);
    EXPECT_EQ(got.scales, expected.scales);
  }
}

// Rows of 5 in steps of 8, heads and batches with gaps: the bytes between them must not change.
TEST(Quantize, BytesBetweenTheRowsAreNotTouched) {
  Values x({2, 2, 3, 5});
  const Quantized expected = quantized(x, DType::int8, {});
  std::vector<std::uint8_t> memory(200, 0xC3);
  const Tensor codes{memory.data() + 1, DType::int8, x.shape, {90, 30, 8, 1}};
  std::vector<float> scales(4);
  ASSERT_TRUE(quantize(x.tensor(), {}, codes, scales.data()).ok());
  std::vector<std::uint8_t> wanted(200, 0xC3);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::size_t d = i % 5, s = i / 5 % 3, h = i / 15 % 2, b = i / 30;
    wanted[1 + b * 90 + h * 30 + s * 8 + d] = expected.codes[i];
  }
  EXPECT_EQ(memory, wanted);
}

// The quantized values equal those by rows, each at its key's position in a column; zeros fill up
// the last sixteen.
TEST(Quantize, TransposedValuesEqualThoseByRows) {
  constexpr std::array kOrder = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for_each_case([&](DType format, const QuantizeOptions& options) {
    Values x({2, 3, 37, 5});
    const Quantized rows = quantized(x, format, options);
    QuantizeOptions transposed = options;
    transposed.layout = VLayout::transposed;
    ASSERT_EQ(transposed_columns(37), 48);
    std::vector<std::uint8_t> memory(2 * 3 * 5 * 50, 0xC3);  // two bytes between columns
    const Tensor codes{memory.data(), format, {2, 3, 5, 48}, {750, 250, 50, 1}};
    std::vector<float> scales(rows.scales.size());
    RangeStats stats;
    const Status status = quantize(x.tensor(), transposed, codes, scales.data(), nullptr, &stats);
    ASSERT_EQ(status.message(), "");
    EXPECT_EQ(scales, rows.scales);
    EXPECT_EQ(stats.sqnr_db, rows.stats.sqnr_db);
    std::vector<std::uint8_t> wanted(memory.size(), 0xC3);
    for (std::size_t column = 0; column < 30; ++column)
      for (std::size_t place = 0; place < 48; ++place) {
        const std::size_t key = place / 16 * 16 + static_cast<std::size_t>(kOrder[place % 16]);
        const std::uint8_t code = key < 37 ? rows.codes[column / 5 * 37 * 5 + key * 5 + column % 5]
                                           : encode_8bit(format, 0.0f);
        wanted[column * 50 + place] = code ^ (format == DType::int8 ? 0x80 : 0);
      }
    EXPECT_EQ(memory, wanted);
  });
}

// The largest magnitude of each group becomes the requested largest value, and none is larger.
TEST(Quantize, ValuesDoNotExceedTheRequestedLargest) {
  for (const DType format : {DType::e4m3, DType::e5m2, DType::int8}) {
    SCOPED_TRACE(name(format));
    Values x({1, 2, 9, 16});
    QuantizeOptions options;
    options.granularity = Granularity::row;
    options.max_quantized = 30;
    const Quantized q = quantized(x, format, options);
    const QuantizeOptions whole{.granularity = Granularity::row};
    const Quantized full = quantized(x, format, whole);
    for (std::size_t row = 0; row < 18; ++row) {
      float largest_here = 0;
      for (std::size_t c = 0; c < 16; ++c)
        largest_here = std::max(largest_here, std::abs(decode_8bit(format, q.codes[row * 16 + c])));
      EXPECT_NEAR(largest_here, 30.0f, 2.1f) << "the nearest code";
      EXPECT_NEAR(q.scales[row] * 30, full.scales[row] * largest(format), 1e-4f);
    }
  }
}

TEST(Quantize, VarlenSequencesBeginAtAMultipleOfSixteenKeys) {
  EXPECT_EQ(transposed_columns(0), 0);
  EXPECT_EQ(transposed_columns(16), 16);
  EXPECT_EQ(transposed_columns(17), 32);
  // Sequences of 20, 0 and 13 tokens: two groups of sixteen, none, and one that begins later.
  EXPECT_EQ(transposed_columns(33, 3), (33 / 16 + 3) * 16);
  EXPECT_EQ(transposed_begin(0, 0), 0);
  EXPECT_EQ(transposed_begin(20, 1), 32);
  EXPECT_EQ(transposed_begin(20, 2), 48);
}

TEST(Quantize, CallersScalesAreUsedAndNotWritten) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({2, 3, 7, 5});
    QuantizeOptions given = options;
    given.scales_given = true;
    std::vector<float> scales = naive_scales(x, format, options);
    for (std::size_t i = 0; i < scales.size(); ++i)
      scales[i] *= 0.25f + 0.125f * static_cast<float>(i % 5);
    const Quantized q = quantized(x, format, given, scales);
    ASSERT_EQ(q.scales, scales);
    for (std::size_t i = 0; i < x.data.size(); ++i)
      ASSERT_EQ(q.codes[i], naive_code(format, x.data[i], scales[group_of(x.shape, options, i)]));
    EXPECT_GT(q.stats.clipped_fraction, 0.0);
  });
}

TEST(Quantize, StatisticsAreCorrect) {
  Values x({1, 1, 1, 8});
  x.data = {0.0f, 1.0f, -2.0f, 130.0f, -200.0f, 0.3f, -0.4f, 127.4f};
  QuantizeOptions given;
  given.scales_given = true;
  const Quantized q = quantized(x, DType::int8, given, {1.0f});
  EXPECT_DOUBLE_EQ(q.stats.clipped_fraction, 3.0 / 8);
  EXPECT_DOUBLE_EQ(q.stats.flushed_fraction, 2.0 / 8);
  EXPECT_EQ(q.stats.amax, 200.0);
  double signal = 0, noise = 9 + 73.0 * 73;
  for (const float value : {0.3f, 0.4f}) noise += static_cast<double>(value) * value;
  noise += (127.4f - 127.0) * (127.4f - 127.0);
  for (const float value : x.data) signal += static_cast<double>(value) * value;
  EXPECT_NEAR(q.stats.sqnr_db, 10 * std::log10(signal / noise), 1e-9);
}

// Values spread over four binades, and some around 2, as V may be: rounding to nearest loses 4.9e-4
// and 8.2e-4 of their sum in E4M3, 1.8e-3 and 2.9e-3 in E5M2.
TEST(Quantize, MeanIsKept) {
  for (const DType format : kFormats)
    for (const bool around_two : {false, true}) {
      Values x({1, 1, 512, 512});
      for (float& value : x.data)
        value = around_two ? 2.0f + value : std::exp2(std::fmod(std::fabs(value), 1.0f) * 4.0f);
      QuantizeOptions by_channel;
      by_channel.granularity = Granularity::channel;
      Quantized q = quantized(x, format, by_channel);
      Values back(x.shape, 1);
      ASSERT_TRUE(dequantize(q.tensor(), q.scales_view(), back.tensor()).ok());
      double sum = 0, sum_back = 0;
      for (std::size_t i = 0; i < x.data.size(); ++i) {
        sum += x.data[i];
        sum_back += back.data[i];
      }
      const double bound = format == DType::e5m2 ? 1.2e-3 : 2.5e-4;
      EXPECT_NEAR(sum_back / sum, 1.0, bound) << name(format) << " " << around_two;
    }
}

// A value that is exactly representable is kept to the bit, and so is the largest.
TEST(Quantize, RepresentableValuesAreKept) {
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    Values x({1, 1, 1, 256});
    for (std::size_t i = 0; i < x.data.size(); ++i) {
      const float value = decode_table(format)[i];
      x.data[i] = std::isfinite(value) ? 0.25f * value : 0.0f;
    }
    Quantized q = quantized(x, format, {});
    EXPECT_EQ(q.scales[0], 0.25f);
    EXPECT_EQ(q.stats.clipped_fraction, 0.0);
    Values back(x.shape, 1);
    ASSERT_TRUE(dequantize(q.tensor(), q.scales_view(), back.tensor()).ok());
    EXPECT_EQ(back.data, x.data) << name(format);
  }
}

TEST(Quantize, SqnrOfNormalData) {
  Values x({1, 4, 256, 64});
  QuantizeOptions by_row;
  by_row.granularity = Granularity::row;
  EXPECT_NEAR(quantized(x, DType::e4m3, by_row).stats.sqnr_db, 31.5, 1.0);
  EXPECT_NEAR(quantized(x, DType::e5m2, by_row).stats.sqnr_db, 25.5, 1.0);
  EXPECT_GT(quantized(x, DType::int8, by_row).stats.sqnr_db, 42.0);
  const double int8 = quantized(x, DType::int8, by_row).stats.sqnr_db;
  EXPECT_NEAR(quantized(x, DType::sim8, by_row).stats.sqnr_db, int8, 0.1);
  EXPECT_GT(int8, quantized(x, DType::int8, {}).stats.sqnr_db + 2);
}

TEST(Quantize, LeastSquaresIsNeverWorseInAnyGroup) {
  for_each_case([](DType format, const QuantizeOptions& options) {
    Values x({1, 2, 7, 9});
    x.data[4] *= 6.0f;
    x.data[100] = std::nanf("");
    QuantizeOptions searched = options;
    searched.rule = ScaleRule::least_squares;
    const Quantized plain = quantized(x, format, options);
    const Quantized best = quantized(x, format, searched);
    for (std::size_t group = 0; group < plain.scales.size(); ++group) {
      ASSERT_LE(best.scales[group], plain.scales[group]);
      ASSERT_LE(squared_error(x, best, group), squared_error(x, plain, group) * (1 + 1e-6));
    }
  });
}

TEST(Quantize, LeastSquaresIsTheBestOfItsGrid) {
  for (const DType format : kFormats) {
    Values x({1, 1, 16, 16});
    QuantizeOptions options;
    const float amax = static_cast<float>(quantized(x, format, options).stats.amax);
    options.rule = ScaleRule::least_squares;
    const Quantized best = quantized(x, format, options);
    const double least = squared_error(x, best, 0);
    bool on_grid = false;
    Quantized other = best;
    for (int k = 0; k < 64; ++k) {
      const float scale = naive_scale(format, amax * (static_cast<float>(96 - k) / 96.0f));
      on_grid = on_grid || scale == best.scales[0];
      other.scales = {scale};
      for (std::size_t i = 0; i < x.data.size(); ++i)
        other.codes[i] = naive_found_code(format, x.data[i], scale);
      EXPECT_GE(squared_error(x, other, 0), least * (1 - 1e-6));
    }
    EXPECT_TRUE(on_grid) << name(format);
  }
}

// On long rows a little clipping pays: this fails if the search never leaves amax.
TEST(Quantize, LeastSquaresGainsOnLongRows) {
  Values x({1, 1, 4, 4096});
  QuantizeOptions options;
  options.granularity = Granularity::row;
  const double plain = quantized(x, DType::int8, options).stats.sqnr_db;
  options.rule = ScaleRule::least_squares;
  EXPECT_GT(quantized(x, DType::int8, options).stats.sqnr_db, plain + 0.1);
}

TEST(Quantize, EmptyTensors) {
  for (const Shape shape : {Shape{0, 2, 4, 8}, {1, 0, 4, 8}, {1, 2, 0, 8}, {1, 2, 4, 0}}) {
    for_each_case([&](DType format, const QuantizeOptions& options) {
      Values x(shape);
      QuantizeOptions all = options;
      all.smooth = true;
      all.hadamard = true;
      for (const ScaleRule rule : {ScaleRule::amax, ScaleRule::least_squares}) {
        all.rule = rule;
        const Quantized q = quantized(x, format, all);
        for (const float scale : q.scales) EXPECT_EQ(scale, 1.0f);
        for (const float mean : q.mean) EXPECT_EQ(mean, 0.0f);
        EXPECT_EQ(q.stats.values, 0);
      }
    });
  }
}

}  // namespace
}  // namespace octavo::testing
