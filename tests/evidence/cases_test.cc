// SPDX-License-Identifier: Apache-2.0
// The case table covers every pair of axis values, counted from the cases themselves without any
// code of the generator.
#include "evidence/cases/cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "evidence/cases/decode_cases.h"
#include "evidence/cases/inputs.h"
#include "gpu/forward/sm80_forward.h"
#include "numeric/formats.h"
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

// More than 256 columns, which random cases have beside the values of the axes.
bool is_wide(const Case& c) { return std::max(c.head_dim, c.v_columns()) > 256; }

TEST(Cases, EveryPairOfAxisValuesOccurs) {
  const std::vector<Case> cases = all_cases(42);
  std::vector<std::set<std::string>> seen(6);
  using Value = std::pair<std::size_t, std::string>;  // axis, value
  std::set<std::pair<Value, Value>> pairs;
  for (const Case& c : cases) {
    if (is_wide(c)) continue;
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

TEST(Cases, TheDecodeSuiteHasEveryPairAndDistinctCases) {
  const std::vector<DecodeValues> rows = covering_rows(kDecodeSizes);
  EXPECT_LT(rows.size(), 100U);
  std::set<std::array<int, 4>> pairs;
  for (const DecodeValues& row : rows)
    for (int a = 0; a < kDecodeAxes; ++a)
      for (int b = a + 1; b < kDecodeAxes; ++b) pairs.insert({a, row[a], b, row[b]});
  std::size_t expected = 0;
  for (int a = 0; a < kDecodeAxes; ++a)
    for (int b = a + 1; b < kDecodeAxes; ++b)
      expected += static_cast<std::size_t>(kDecodeSizes[a] * kDecodeSizes[b]);
  EXPECT_EQ(pairs.size(), expected);
  std::set<std::string> names;
  std::set<std::int64_t> page_sizes, queries;
  std::set<Layout> layouts;
  std::set<KeyLengths> lengths;
  std::int64_t shared = 0, longest = 0, aligned = 0;
  for (const Case& c : decode_cases(42)) {
    names.insert(c.name());
    page_sizes.insert(c.page_size);
    queries.insert(c.seqlen_q);
    layouts.insert(c.layout);
    lengths.insert(c.key_lengths);
    shared += c.shared_prefix ? 1 : 0;
    aligned += problem_for(c).row_alignment == 16 ? 1 : 0;
    longest = std::max(longest, c.seqlen_kv);
    EXPECT_TRUE(problem_for(c).problem.paged);
  }
  EXPECT_EQ(names.size(), 1000U);
  EXPECT_EQ(page_sizes.size(), 4U);
  EXPECT_EQ(layouts.size(), 4U);
  EXPECT_EQ(lengths.size(), static_cast<std::size_t>(kKeyLengths));
  for (std::int64_t n = 1; n <= 16; ++n) EXPECT_EQ(queries.count(n), 1U) << n;
  EXPECT_GT(shared, 200);
  EXPECT_GT(aligned, 600);  // what kernels with aligned loads serve
  EXPECT_GT(longest, 10000);
}

// Clamping the table and the lengths of a hostile case gives those of the same case without them.
TEST(Cases, HostilePageTablesAreOutsideTheCache) {
  DecodeValues values{};
  values[kLengths] = static_cast<int>(KeyLengths::longest);
  Case c = make_decode_case(values, 11);
  c.batch = 3;
  c.seqlens = Seqlens::hostile;
  const Inputs hostile = make_inputs(c).value();
  c.seqlens = Seqlens::clamped;
  const Inputs clamped = make_inputs(c).value();
  const Arguments &bad = hostile.given, &good = clamped.given;
  const auto pages = static_cast<std::int32_t>(good.k.shape[0]);
  int outside = 0;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    EXPECT_EQ(std::clamp<std::int64_t>(bad.seqlens_kv[b], 0, c.seqlen_kv), good.seqlens_kv[b]);
    for (std::int64_t i = 0; i * c.page_size < good.seqlens_kv[b]; ++i) {
      const std::int64_t at = b * good.page_table_stride + i;
      outside += bad.page_table[at] != good.page_table[at] ? 1 : 0;
      EXPECT_EQ(std::clamp(bad.page_table[at], 0, pages - 1), good.page_table[at]);
    }
  }
  EXPECT_GE(outside, 2);
  EXPECT_EQ(hostile.cache.k.memory.bytes, clamped.cache.k.memory.bytes);
  EXPECT_EQ(attention(good, c.options).message(), "");
  EXPECT_EQ(attention(bad, c.options).code(), ErrorCode::invalid_argument);
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

std::vector<std::string> modifiers_of(const Case& c) {
  std::vector<std::string> found;
  if (c.options.softcap != 0) found.push_back("softcap");
  if (c.bias) found.push_back("bias");
  if (c.mask) found.push_back("mask");
  if (c.alibi) found.push_back("alibi");
  if (c.sinks) found.push_back("sinks");
  if (c.padded) found.push_back("padded");
  return found;
}

// Each alone, every two together, each with every value of the other axes that allows it, and
// enough cases with none.
TEST(Cases, ModifiersOccurInPairsAndWithEveryAxis) {
  std::map<std::string, int> alone;
  std::map<std::pair<std::string, std::string>, int> together;
  std::map<std::string, std::vector<std::set<std::string>>> with_axes;
  int none = 0;
  for (const Case& c : all_cases(42)) {
    if (is_wide(c)) continue;
    const std::vector<std::string> modifiers = modifiers_of(c);
    none += modifiers.empty() ? 1 : 0;
    if (modifiers.size() == 1) ++alone[modifiers[0]];
    for (std::size_t a = 0; a < modifiers.size(); ++a) {
      EXPECT_NE(c.name().find(" " + modifiers[a]), std::string::npos) << c.name();
      for (std::size_t b = a + 1; b < modifiers.size(); ++b)
        ++together[{modifiers[a], modifiers[b]}];
      const Values values = values_of(c);
      auto& seen = with_axes[modifiers[a]];
      seen.resize(values.size());
      for (std::size_t axis = 0; axis < values.size(); ++axis) seen[axis].insert(values[axis]);
    }
  }
  EXPECT_GT(none, 1000);
  EXPECT_EQ(alone.size(), 6U);
  for (const auto& [modifier, count] : alone) EXPECT_GE(count, 5) << modifier;
  EXPECT_EQ(together.size(), 15U);
  for (const auto& [pair, count] : together)
    EXPECT_GE(count, 20) << pair.first << " and " << pair.second;
  for (const auto& [modifier, seen] : with_axes) {
    // Padded batches are 32- or 16-bit in one of three precisions; bias and mask are not varlen.
    const bool padded = modifier == "padded";
    const bool dense = padded || modifier == "bias" || modifier == "mask";
    const std::vector<std::size_t> expected = {6, padded ? 9U : 31U, 4, dense ? 3U : 4U, 8, 9};
    for (std::size_t axis = 0; axis < expected.size(); ++axis)
      EXPECT_EQ(seen[axis].size(), expected[axis]) << modifier << " axis " << axis;
  }
}

// What the seed decides: shapes that broadcast, -inf in the bias, rows without keys, padding on
// either side.
TEST(Cases, KindsOfModifiersOccur) {
  std::set<std::array<bool, 4>> bias_shapes, mask_shapes;
  std::set<std::pair<bool, bool>> paddings;
  int biases_that_hide = 0, empty_sequences = 0, slopes_of_each = 0;
  for (const Case& c : all_cases(42, 900)) {
    if (c.seqlen_kv == 0 || c.seqlen_q < 2 || c.seqlen_q >= 300) continue;
    if (modifiers_of(c).empty()) continue;
    const auto inputs = make_inputs(c);
    ASSERT_TRUE(inputs.ok()) << c.name();
    const Arguments& a = inputs->given;
    const auto broadcast = [](const ConstTensor& t) {
      return std::array{t.shape[0] == 1, t.shape[1] == 1, t.shape[2] == 1, t.shape[3] == 1};
    };
    if (c.bias) {
      bias_shapes.insert(broadcast(a.bias));
      bool hides = false;
      for (std::int64_t i = 0; i < a.bias.shape[3]; ++i)
        hides |= load_element(*c.bias, a.bias.data, i) == -HUGE_VALF;
      biases_that_hide += hides ? 1 : 0;
    }
    if (c.mask) mask_shapes.insert(broadcast(a.mask));
    if (c.padded) paddings.insert({a.leftpad_q != nullptr, a.seqlens_kv != nullptr});
    if (c.padded)
      for (const Span& span : inputs->spans_kv) empty_sequences += span.length == 0 ? 1 : 0;
    slopes_of_each += a.alibi_batch_stride > 0 ? 1 : 0;
  }
  EXPECT_EQ(bias_shapes.size(), 16U);
  EXPECT_EQ(mask_shapes.size(), 16U);
  EXPECT_EQ(paddings.size(), 3U);
  EXPECT_GT(biases_that_hide, 10);
  EXPECT_GT(empty_sequences, 5);
  EXPECT_GT(slopes_of_each, 20);
}

// A device that refuses modifiers still gets every pair of the other axes.
TEST(Cases, ServedCasesWithoutModifiers) {
  const KernelsOf plain = [](const Case& c) {
    return modifiers_of(c).empty() ? some_kernels(c) : std::vector<std::string>();
  };
  std::set<std::pair<std::string, std::string>> format_and_mask, format_and_layout;
  const std::vector<Case> cases = served_cases(42, 2400, plain, 40);
  EXPECT_EQ(cases.size(), 2400U);
  for (const Case& c : cases) {
    ASSERT_TRUE(modifiers_of(c).empty()) << c.name();
    format_and_mask.insert({format_of(c), mask_of(c)});
    format_and_layout.insert({format_of(c), std::to_string(static_cast<int>(c.layout))});
  }
  EXPECT_EQ(format_and_mask.size(), 3U * 6);
  EXPECT_EQ(format_and_layout.size(), 3U * 4);
  // So do cases that are only filtered: a refused modifier costs no case.
  const std::vector<Case> drawn = size_cases(5);
  const std::size_t with_all = only_served(drawn, some_kernels, 40).size();
  EXPECT_EQ(only_served(drawn, plain, 40).size(), with_all);
}

TEST(Cases, AllHasTwoThousandDistinctCases) {
  std::set<std::string> names;
  for (const Case& c : all_cases(42)) names.insert(c.name());
  EXPECT_GE(names.size(), 2000U);
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
    if (c.head_dim % 8 == 0 && !is_wide(c)) head_dims.insert(c.head_dim);
  }
  EXPECT_EQ(names.size(), 2400U);
  EXPECT_LE(kernels.size(), kMostKernels);
  EXPECT_EQ(formats, (std::set<std::string>{"f16/native", "bf16/native", "e4m3/native"}));
  EXPECT_EQ(format_and_mask.size(), 3U * 6);
  EXPECT_EQ(format_and_layout.size(), 3U * 4);
  EXPECT_EQ(head_dims.size(), 32U);
  EXPECT_GT(large, 100U) << "grids that fill a GPU";
}

// Of Q and K alone, of V alone, and of both; with every modifier, and in the cases of a device.
TEST(Cases, WideHeadsOccur) {
  std::map<std::string, int> found;
  for (const Case& c : all_cases(42)) {
    if (!is_wide(c)) continue;
    ++found[c.v_columns() <= 256 ? "Q" : c.head_dim <= 256 ? "V" : "both"];
    for (const std::string& modifier : modifiers_of(c)) ++found[modifier];
  }
  for (const char* const what :
       {"Q", "V", "both", "softcap", "bias", "mask", "alibi", "sinks", "padded"})
    EXPECT_GE(found[what], 3) << what;
  constexpr std::size_t kCases = 600, kMostKernels = 60;
  const std::vector<Case> served = served_cases(42, kCases, some_kernels, kMostKernels);
  EXPECT_GE(std::count_if(served.begin(), served.end(), is_wide), 10);
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
            "suite is \"eleven\"; supported: all, twelve, presets, decode, block_mask, and configs "
            "on a GPU.");
}

}  // namespace
}  // namespace octavo::evidence
