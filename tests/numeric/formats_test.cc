// SPDX-License-Identifier: Apache-2.0
// The number formats against their second implementation: every encoding, every 16-bit value, every
// boundary of fp32; and a proof that the comparison detects a fault of one encoding.
#include "numeric/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "numeric/second_formats.h"

namespace {

using octavo::DType;

struct Pair {
  second::Format definition;
  DType dtype;
  second::Encoder encoder;
  std::function<float(std::uint32_t)> decoder;
};

template <class Encode, class Decode>
Pair make_pair(const second::Format& definition, DType dtype, Encode encode, Decode decode) {
  using Code = decltype(encode(0.0f));
  return {definition, dtype, [encode](float x) -> std::uint32_t { return encode(x); },
          [decode](std::uint32_t code) { return decode(static_cast<Code>(code)); }};
}

const std::vector<Pair>& all_formats() {
  static const std::vector<Pair> kPairs = {
      make_pair(second::kF16, DType::f16, octavo::f16_from_f32, octavo::f32_from_f16),
      make_pair(second::kBf16, DType::bf16, octavo::bf16_from_f32, octavo::f32_from_bf16),
      make_pair(second::kE4m3, DType::e4m3, octavo::e4m3_from_f32, octavo::f32_from_e4m3),
      make_pair(second::kE5m2, DType::e5m2, octavo::e5m2_from_f32, octavo::f32_from_e5m2),
      make_pair(second::kInt8, DType::int8, octavo::int8_from_f32, octavo::f32_from_int8),
      make_pair(second::kSim8, DType::sim8, octavo::sim8_from_f32, octavo::f32_from_sim8),
  };
  return kPairs;
}

class Formats : public ::testing::TestWithParam<int> {
 protected:
  const Pair& pair() const { return all_formats()[static_cast<std::size_t>(GetParam())]; }
  const second::Format& definition() const { return pair().definition; }

  static void expect_agreement(const Pair& p, std::span<const float> inputs) {
    const second::Mismatches found = second::compare(p.definition, p.encoder, inputs);
    EXPECT_EQ(found.count, 0) << p.definition.name << " of " << found.first_input << " ("
                              << std::hexfloat << found.first_input << "): expected " << std::hex
                              << found.first_expected << ", got " << found.first_got;
  }
};

TEST_P(Formats, EveryCodeDecodesToItsValue) {
  for (std::uint32_t code = 0; code < 1u << definition().bits(); ++code) {
    const double expected = second::decode(definition(), code);
    const float got = pair().decoder(code);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << definition().name << " " << code;
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << definition().name << " " << code;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), expected) << definition().name << " " << code;
    if (definition().exponent_bits != 0) {
      ASSERT_EQ(std::signbit(got), std::signbit(expected)) << definition().name << " " << code;
    }
  }
}

TEST_P(Formats, EveryCodeSurvivesTheRoundTrip) {
  for (std::uint32_t code = 0; code < 1u << definition().bits(); ++code) {
    const std::uint32_t again = pair().encoder(pair().decoder(code));
    if (std::isnan(second::decode(definition(), code))) {
      ASSERT_TRUE(std::isnan(second::decode(definition(), again))) << code;
    } else if (std::isinf(second::decode(definition(), code)) && definition().saturates) {
      ASSERT_EQ(again & 0x7F, definition().max_quantized) << code;
    } else if (definition().exponent_bits == 0 && second::decode(definition(), code) == -128.0) {
      ASSERT_EQ(second::decode(definition(), again),
                -127.0);  // the encoding that the encoder never produces
    } else {
      ASSERT_EQ(again, code) << definition().name;
    }
  }
}

TEST_P(Formats, EveryBoundaryOfFp32) {
  const std::vector<float> inputs = second::boundaries(definition());
  expect_agreement(pair(), inputs);
}

TEST_P(Formats, EverySixteenBitValue) {
  std::vector<float> inputs;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    inputs.push_back(static_cast<float>(second::decode(second::kF16, code)));
    inputs.push_back(static_cast<float>(second::decode(second::kBf16, code)));
  }
  expect_agreement(pair(), inputs);
}

TEST_P(Formats, BitPatternsFromAllOverFp32) {
  std::vector<float> inputs;  // an odd stride visits exponents, signs and low bits alike
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 8191)
    inputs.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  expect_agreement(pair(), inputs);
}

// One input's encoding changed by one: the comparison must report that one and no other.
TEST_P(Formats, PlantedOneUlpFaultIsCaught) {
  const std::vector<float> inputs = second::boundaries(definition());
  for (std::size_t at = 0; at < inputs.size() - 6; at += inputs.size() / 7 + 1) {
    const std::uint32_t victim = std::bit_cast<std::uint32_t>(inputs[at]);
    const std::int64_t copies = std::count_if(inputs.begin(), inputs.end(), [victim](float x) {
      return std::bit_cast<std::uint32_t>(x) == victim;
    });
    const second::Encoder faulty = [&](float x) {
      const std::uint32_t code = pair().encoder(x);
      return std::bit_cast<std::uint32_t>(x) == victim ? code ^ 1 : code;
    };
    const second::Mismatches found = second::compare(definition(), faulty, inputs);
    ASSERT_EQ(found.count, copies) << definition().name << " " << inputs[at];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(found.first_input), victim);
    ASSERT_EQ(found.first_got, found.first_expected ^ 1);
  }
}

// An encoder that reads its input one float too high rounds wrongly at midpoints only.
TEST_P(Formats, InputOffByOneFloatIsCaught) {
  const std::vector<float> inputs = second::boundaries(definition());
  const second::Encoder faulty = [&](float x) {
    return pair().encoder(std::nextafter(x, std::numeric_limits<float>::infinity()));
  };
  EXPECT_GT(second::compare(definition(), faulty, inputs).count,
            static_cast<std::int64_t>(definition().max_quantized / 2));
}

TEST_P(Formats, DispatchByDtypeGivesTheSame) {
  if (definition().bits() != 8) {
    for (const float x : {0.1f, -3.7f, 70000.0f, 1e-6f}) {
      std::uint16_t stored[3] = {7, 7, 7};
      octavo::store_element(pair().dtype, stored, 1, x);
      EXPECT_EQ(stored[1], pair().encoder(x));
      EXPECT_EQ(stored[0], 7);
      EXPECT_EQ(stored[2], 7);
      EXPECT_EQ(octavo::load_element(pair().dtype, stored, 1), pair().decoder(stored[1]));
    }
    return;
  }
  for (const float x : second::boundaries(definition()))
    ASSERT_EQ(octavo::encode_8bit(pair().dtype, x), pair().encoder(x)) << x;
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const std::uint32_t expected = std::bit_cast<std::uint32_t>(pair().decoder(code));
    const float decoded = octavo::decode_8bit(pair().dtype, byte);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded), expected);
    const float loaded = octavo::load_element(pair().dtype, &byte, 0);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(loaded), expected);
  }
  EXPECT_EQ(octavo::largest(pair().dtype), definition().values[definition().max_quantized]);
}

template <DType kFormat>
void expect_rounding_is_the_round_trip(const second::Format& definition) {
  for (const float x : second::boundaries(definition)) {
    if (!std::isfinite(x)) continue;
    const double expected = second::decode(definition, second::encode(definition, x));
    ASSERT_EQ(octavo::round_8bit<kFormat>(x), expected) << definition.name << " " << x;
  }
}

TEST(Round8bit, IsTheRoundTrip) {
  expect_rounding_is_the_round_trip<DType::e4m3>(second::kE4m3);
  expect_rounding_is_the_round_trip<DType::e5m2>(second::kE5m2);
  expect_rounding_is_the_round_trip<DType::int8>(second::kInt8);
  expect_rounding_is_the_round_trip<DType::sim8>(second::kSim8);
}

INSTANTIATE_TEST_SUITE_P(All, Formats, ::testing::Range(0, 6), [](const auto& test) {
  return all_formats()[static_cast<std::size_t>(test.param)].definition.name;
});

TEST(FormatLimits, MatchTheSpecification) {
  EXPECT_EQ(octavo::largest(DType::e4m3), 448.0f);
  EXPECT_EQ(octavo::largest(DType::e5m2), 57344.0f);
  EXPECT_EQ(octavo::largest(DType::int8), 127.0f);
  EXPECT_EQ(octavo::largest(DType::sim8), 127.0f);
  EXPECT_EQ(octavo::sim8_from_f32(0.0f), 128);
  EXPECT_EQ(octavo::sim8_from_f32(std::nanf("")), 128);
  EXPECT_EQ(octavo::int8_from_f32(std::nanf("")), 0);
  EXPECT_EQ(octavo::e4m3_from_f32(-std::numeric_limits<float>::infinity()), 0xFE);
  EXPECT_EQ(octavo::e4m3_from_f32(-std::nanf("")), 0xFF);
  EXPECT_EQ(octavo::e5m2_from_f32(std::numeric_limits<float>::infinity()), 0x7B);
  EXPECT_EQ(octavo::f16_from_f32(65520.0f), 0x7C00);
  EXPECT_EQ(octavo::f16_from_f32(65519.996f), 0x7BFF);
}

}  // namespace
