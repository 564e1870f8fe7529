// SPDX-License-Identifier: Apache-2.0
// Names of formats, granularities and rules: both ways, with aliases, and the error sentence.
#include <gtest/gtest.h>

#include "octavo/octavo.hpp"

namespace octavo {
namespace {

TEST(Names, EveryNameParsesBack) {
  for (const DType dtype : kAllDTypes) EXPECT_EQ(parse_dtype(name(dtype)).value(), dtype);
  for (const Granularity granularity : kAllGranularities)
    EXPECT_EQ(parse_granularity(name(granularity)).value(), granularity);
  for (const ScaleRule rule : {ScaleRule::amax, ScaleRule::least_squares})
    EXPECT_EQ(parse_scale_rule(name(rule)).value(), rule);
}

TEST(Names, AliasesOfTypesAreParsed) {
  EXPECT_EQ(parse_dtype("float32").value(), DType::f32);
  EXPECT_EQ(parse_dtype("fp16").value(), DType::f16);
  EXPECT_EQ(parse_dtype("half").value(), DType::f16);
  EXPECT_EQ(parse_dtype("bfloat16").value(), DType::bf16);
  EXPECT_EQ(parse_dtype("float8_e4m3fn").value(), DType::e4m3);
}

TEST(Names, ErrorsAreOneSentence) {
  EXPECT_EQ(parse_dtype("foo").status().message(),
            "dtype is 'foo'; supported: f32, f16, bf16, e4m3, e5m2, int8, sim8.");
  EXPECT_EQ(parse_granularity("").status().message(),
            "granularity is ''; supported: tensor, head, block, row, channel.");
  EXPECT_EQ(parse_scale_rule("max").status().message(),
            "scale rule is 'max'; supported: amax, least_squares.");
  EXPECT_EQ(parse_dtype("foo").status().code(), ErrorCode::invalid_argument);
}

TEST(Names, ValueOutsideTheEnumeration) {
  EXPECT_EQ(name(static_cast<DType>(200)), "unknown");
  EXPECT_EQ(name(static_cast<Granularity>(200)), "unknown");
}

}  // namespace
}  // namespace octavo
