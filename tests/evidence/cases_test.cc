// The case table covers every pair of axis values, counted from the cases themselves without any
// code of the generator.
#include "evidence/cases/cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "evidence/cases/inputs.h"
#include "gpu/forward/sm80_forward.h"
#include "octavo/evidence.hpp"

namespace octavo::evidence {
namespace {

std::string mask_of(const Case& c) {
  const bool window = c.options.window_left >= 0 || c.options.window_right >= 0;
  return std::string(name(c.options.causal)) + (window ? "+window" : "");
}

std::string format_of(const Case& c) {
  return std::string(name(c.input)) + "/" + std::string(name(c.options.precision));
}

std::string ratio_of(const Case& c) {
  if (c.heads_kv == 1 && c.heads_q > 1) return "mqa";
  return std::to_string(c.heads_q / c.heads_kv);
}

std::string length_of(const Case& c) {
  if (c.seqlen_kv == 0) return "no keys";
  if (c.seqlen_q < c.seqlen_kv) return "fewer queries";
  if (c.seqlen_q > c.seqlen_kv) return "more queries";
  if (c.seqlen_q == 1) return "one";
  if (c.seqlen_q < 16) return "few";
  if (c.seqlen_q >= 300) return "long";
  return c.seqlen_q % 16 == 0 ? "aligned" : "ragged";
}

using Values = std::vector<std::string>;  // one per axis

Values values_of(const Case& c) {
  return {mask_of(c),   format_of(c),
          ratio_of(c),  std::to_string(static_cast<int>(c.layout)),
          length_of(c), std::to_string(c.head_dim)};
}

TEST(Cases, EveryPairOfAxisValuesOccurs) {
  const std::vector<Case> cases = all_cases(42);
  std::vector<std::set<std::string>> seen(6);
  using Value = std::pair<std::size_t, std::string>;  // axis, value
  std::set<std::pair<Value, Value>> pairs;
  for (const Case& c : cases) {
    const Values values = values_of(c);
    for (std::size_t a = 0; a < values.size(); ++a) {
      seen[a].insert(values[a]);
      for (std::size_t b = a + 1; b < values.size(); ++b)
        pairs.insert({{a, values[a]}, {b, values[b]}});
    }
  }
  // The required values of each axis: 6 masks, 3 x 9 + 4 formats, and so on.
  const std::vector<std::size_t> expected = {6, 31, 4, 4, 8, 9};
  std::size_t expected_pairs = 0;
  for (std::size_t a = 0; a < expected.size(); ++a) {
    EXPECT_EQ(seen[a].size(), expected[a]) << "axis " << a;
    for (std::size_t b = a + 1; b < expected.size(); ++b)
      expected_pairs += expected[a] * expected[b];
  }
  EXPECT_EQ(pairs.size(), expected_pairs);
}

TEST(Cases, TheCoveringSetAloneHasThePairsAndIsSmall) {
  const std::vector<AxisValues> rows = covering_rows(kAxisSizes);
  EXPECT_LT(rows.size(), 400U);
  std::set<std::array<int, 4>> pairs;
  for (const AxisValues& row : rows)
    for (int a = 0; a < kAxes; ++a)
      for (int b = a + 1; b < kAxes; ++b) pairs.insert({a, row[a], b, row[b]});
  std::size_t expected = 0;
  for (int a = 0; a < kAxes; ++a)
    for (int b = a + 1; b < kAxes; ++b)
      expected += static_cast<std::size_t>(kAxisSizes[a]) * static_cast<std::size_t>(kAxisSizes[b]);
  EXPECT_EQ(pairs.size(), expected);
}

TEST(Cases, AllHasTwoThousandDistinctCases) {
  std::set<std::string> names;
  for (const Case& c : all_cases(42)) names.insert(c.name());
  EXPECT_GE(names.size(), 2000U);
}

// A device that serves 16-bit inputs natively and e4m3 with a scale per head, with one kernel for
// every type, head_dim and length class.
std::vector<std::string> some_kernels(const Case& c) {
  const bool wide = c.input == DType::f16 || c.input == DType::bf16;
  if (!wide && c.input != DType::e4m3) return {};
  if (c.options.precision != Precision::native) return {};
  if (!wide && (c.qk_scales != Granularity::head || c.v_scales != Granularity::head)) return {};
  return {format_of(c) + "/" + std::string(name(c.out)) + "/" +
          std::to_string((c.head_dim + 63) / 64) + "/" +
          std::to_string(c.batch * c.heads_q * ((c.seqlen_q + 63) / 64) > 150)};
}

TEST(Cases, QuantizedKvComesWith16BitQ) {
  std::map<DType, int> seen;
  for (const Case& c : all_cases(42)) {
    if (!c.kv) continue;
    ++seen[*c.kv];
    EXPECT_TRUE(c.input == DType::f16 || c.input == DType::bf16) << c.name();
    EXPECT_EQ(c.options.precision, Precision::native) << c.name();
    EXPECT_NE(c.name().find(fmt::format(" over {}->", name(*c.kv))), std::string::npos) << c.name();
  }
  for (const DType kv : {DType::e4m3, DType::e5m2, DType::int8}) EXPECT_GE(seen[kv], 5) << name(kv);
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Cases, ServedCasesCoverEveryServedPair) {
  constexpr std::size_t kMostKernels = 40;
  const std::vector<Case> cases = served_cases(42, 2400, some_kernels, kMostKernels);
  std::set<std::string> names, kernels, formats;
  std::set<std::int64_t> head_dims;
  std::set<std::pair<std::string, std::string>> format_and_mask, format_and_layout;
  std::size_t large = 0;
  for (const Case& c : cases) {
    ASSERT_EQ(some_kernels(c).size(), 1U) << c.name();
    names.insert(c.name());
    kernels.insert(some_kernels(c)[0]);
    formats.insert(format_of(c));
    format_and_mask.insert({format_of(c), mask_of(c)});
    format_and_layout.insert({format_of(c), std::to_string(static_cast<int>(c.layout))});
    large += some_kernels(c)[0].ends_with("/1") ? 1 : 0;
    if (c.head_dim % 8 == 0) head_dims.insert(c.head_dim);
  }
  EXPECT_EQ(names.size(), 2400U);
  EXPECT_LE(kernels.size(), kMostKernels);
  EXPECT_EQ(formats, (std::set<std::string>{"f16/native", "bf16/native", "e4m3/native"}));
  EXPECT_EQ(format_and_mask.size(), 3U * 6);
  EXPECT_EQ(format_and_layout.size(), 3U * 4);
  EXPECT_EQ(head_dims.size(), 32U);
  EXPECT_GT(large, 100U) << "grids that fill a GPU";
}

TEST(Cases, DeviceThatServesNothingHasNoCases) {
  const KernelsOf none = [](const Case&) { return std::vector<std::string>(); };
  EXPECT_TRUE(served_cases(42, 100, none, 10).empty());
}

// The problem of a case without its values equals the problem of its values.
TEST(Cases, ProblemWithoutValuesEqualsProblemWithValues) {
  const std::vector<Case> cases = all_cases(3, 700);
  for (std::size_t i = 0; i < cases.size(); i += 7) {
    const auto inputs = make_inputs(cases[i]);
    ASSERT_TRUE(inputs.ok());
    const CaseProblem run_problem = problem_for(cases[i]);
    EXPECT_EQ(run_problem.problem, problem_of(inputs->given, cases[i].options).value())
        << cases[i].name();
    EXPECT_EQ(run_problem.row_alignment, row_alignment(inputs->given)) << cases[i].name();
  }
}

TEST(Cases, TheSameSeedGivesTheSameCases) {
  const auto first = all_cases(7, 400), second = all_cases(7, 400), other = all_cases(8, 400);
  ASSERT_EQ(first.size(), second.size());
  std::size_t equal_to_other = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].name(), second[i].name());
    equal_to_other += first[i].name() == other[i].name() ? 1 : 0;
  }
  EXPECT_EQ(equal_to_other, 0U);
}

TEST(Cases, TwelveHasTwelveOfEveryPrecisionAndInput) {
  std::map<std::string, int> count;
  std::set<std::string> names;
  for (const Case& c : twelve_cases()) {
    ++count[format_of(c)];
    names.insert(c.name());
  }
  EXPECT_EQ(names.size(), twelve_cases().size());
  for (const auto& [format, n] : count) EXPECT_EQ(n, 12) << format;
  for (const Precision precision : kAllPrecisions) {
    EXPECT_TRUE(std::any_of(count.begin(), count.end(), [precision](const auto& entry) {
      return entry.first.substr(entry.first.find('/') + 1) == name(precision);
    })) << name(precision);
  }
  for (const DType dtype : kAllDTypes)
    EXPECT_EQ(count.count(std::string(name(dtype)) + "/native"), 1U);
}

TEST(Cases, PresetsAreTheFiveSizes) {
  ASSERT_EQ(presets().size(), 5U);
  const auto is = [](const Preset& p, std::string_view n, std::int64_t b, std::int64_t h,
                     std::int64_t s, std::int64_t d) {
    return p.name == n && p.batch == b && p.heads == h && p.length == s && p.head_dim == d;
  };
  EXPECT_TRUE(is(presets()[0], "mission", 1, 8, 512, 64));
  EXPECT_TRUE(is(presets()[1], "small", 2, 8, 512, 64));
  EXPECT_TRUE(is(presets()[2], "long", 2, 8, 2048, 64));
  EXPECT_TRUE(is(presets()[3], "wide", 2, 8, 512, 128));
  EXPECT_TRUE(is(presets()[4], "stress", 4, 8, 2048, 64));
  EXPECT_EQ(preset_cases(42).size(), 15U);
}

TEST(Cases, UnknownSuiteGetsAnErrorSentence) {
  const auto cases = suite_cases("eleven", 42);
  ASSERT_FALSE(cases.ok());
  EXPECT_EQ(cases.status().message(),
            "suite is \"eleven\"; supported: all, twelve, presets, and configs on a GPU.");
}

}  // namespace
}  // namespace octavo::evidence
