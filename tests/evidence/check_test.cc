// SPDX-License-Identifier: Apache-2.0
// The unmodified library passes; the report lists what was run.
#include "evidence/gates/check.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "config/sm90_shipped.h"
#include "emulator/long.h"
#include "evidence/cases/decode_cases.h"
#include "evidence/cases/inputs.h"
#include "evidence/gates/gpu_suite.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "numeric/formats.h"
#include "octavo/emulator.hpp"

namespace octavo::evidence {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Check, TheLibraryPassesASixthOfTheCoveringSet) {
  std::vector<Case> cases;
  const std::vector<Case> all = covering_cases(42);
  for (std::size_t i = 0; i < all.size(); i += 6) cases.push_back(all[i]);
  std::int64_t last = 0;
  CheckOptions options;
  options.progress = [&last](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(done, last + 1);
    EXPECT_LE(done, total);
    last = done;
  };
  const auto report = check_cases(options, cases, library_runner({}));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << joined(report->failures);
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  EXPECT_EQ(last, report->cases);
  std::size_t with_error = 0;  // a row of this sample may consist of cases without keys
  for (const CheckRow& row : report->rows) {
    EXPECT_LE(row.worst_bound_ratio, 1) << row.worst_case;
    with_error += row.worst_bound_ratio > 0 ? 1 : 0;
    EXPECT_FALSE(row.bound.empty());
  }
  EXPECT_GT(with_error, report->rows.size() / 2);
}

TEST(Check, TheLibraryPassesAQuarterOfTheCoveringSetOfDecode) {
  const std::vector<Case> all = decode_cases(7, covering_rows(kDecodeSizes).size());
  std::vector<Case> cases;
  for (std::size_t i = 0; i < all.size(); i += test_long() ? 1 : 4) cases.push_back(all[i]);
  const auto report = check_cases({}, cases, library_runner({}));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << joined(report->failures);
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
}

// Short cases of the decode suite on the emulated kernel: every format of the cache, and every
// layout with aligned rows. The other axes rotate.
TEST(Check, TheEmulatorPassesPagedCases) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  constexpr Device kHopper{Device::Kind::emulator, 90};
  std::vector<Case> cases;
  int number = 0;
  for (const int layout : {0, 1, 3})
    for (int format = 0; format < kDecodeSizes[kCacheFormat]; ++format, ++number) {
      DecodeValues values{};
      values[kPageSize] = number % 2;
      values[kPageLayout] = layout;
      values[kCacheFormat] = format;
      values[kCacheScales] = number % 4;
      values[kHeadRatio] = 1;
      values[kLengths] =
          static_cast<int>(number % 2 == 0 ? KeyLengths::mixed : KeyLengths::longest);
      values[kQueries] = number % 3;
      values[kCacheModifiers] = number % 6;
      Case c = make_decode_case(values, 100 + static_cast<std::uint64_t>(number));
      c.input = c.out = DType::f16;
      c.batch = 2;
      c.heads_q /= std::exchange(c.heads_kv, 1);
      c.seqlen_kv = 192;
      c.padded = c.options.batch_invariant = false;
      cases.push_back(c);
    }
  CheckOptions options;
  options.device = kHopper;
  const auto report = check_cases(options, cases, library_runner(kHopper));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << joined(report->failures);
  EXPECT_EQ(report->cases, 13) << joined(report->not_run_reasons);
}

TEST(Check, OnePrecisionOnly) {
  CheckOptions options;
  options.precision = Precision::int8;
  const auto report =
      check_cases(options, chosen_cases(options, all_cases(42, 400)), library_runner({}));
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->rows.size(), 3U);
  for (const CheckRow& row : report->rows) EXPECT_EQ(row.precision, "int8");
  EXPECT_TRUE(report->passed()) << joined(report->failures);
}

TEST(Check, RequestedCasesAreSpreadOverTheSuite) {
  const std::vector<Case> suite = all_cases(42, 400);
  CheckOptions options;
  EXPECT_EQ(chosen_cases(options, suite).size(), suite.size());
  options.cases = 10;
  const std::vector<Case> ten = chosen_cases(options, suite);
  ASSERT_EQ(ten.size(), 10U);
  EXPECT_EQ(ten.front().name(), suite.front().name());
  EXPECT_EQ(ten.back().name(), suite.back().name());
  options.cases = 1000;
  EXPECT_EQ(chosen_cases(options, suite).size(), suite.size());
  options.overlap_launch = true;
  for (const Case& c : chosen_cases(options, suite))
    EXPECT_TRUE(c.options.overlap_launch && c.name().find(" overlap ") != std::string::npos);
}

TEST(Check, NothingRunIsNotPassed) {
  const auto report = check_cases({}, {}, library_runner({}));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->passed());
}

TEST(Check, FailedRunIsAFailureWithItsErrorSentence) {
  const auto report = check_cases({}, {Case{}}, plain_runner([](const Arguments&, const Options&) {
                                    return Status(ErrorCode::device_error, "the device fell over.");
                                  }));
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->failures.size(), 1U);
  EXPECT_NE(report->failures[0].find(Case{}.name()), std::string::npos);
  EXPECT_NE(report->failures[0].find("the device fell over."), std::string::npos);
}

TEST(Check, ManyThreadsAtOnce) {
  CheckOptions options;
  options.suite = "twelve";
  options.precision = Precision::fp16;
  options.streams = 4;
  const auto report = check(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << joined(report->failures);
  EXPECT_EQ(report->streams, 4);
}

// Each waits, in its first call, for a call of every other.
TEST(Check, EveryRunnerHasAThread) {
  constexpr int kRunners = 3;
  std::atomic<int> inside = 0;
  const auto waits = [&inside](const Arguments& arguments, const Options& options) {
    ++inside;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < kRunners && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    if (inside < kRunners) return Status(ErrorCode::device_error, "alone");
    return attention(arguments, options);
  };
  const std::vector<Case> cases = twelve_cases();
  const auto report =
      check_cases({}, {cases.begin(), cases.begin() + 12},
                  std::vector<Runner>(kRunners, plain_runner(waits)), CheckOracle{});
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->passed()) << joined(report->failures);
  EXPECT_EQ(report->cases, 12);
}

// Each configuration runs with its own cases: type, head_dim, and exact sums with an LSE.
TEST(Check, ConfigurationsAndTheirCases) {
  std::set<std::string> configs;
  std::int64_t refused = 0;
  const std::vector<Case> cases = config_cases(42);
  EXPECT_GT(cases.size(), 5000U);
  for (const Case& c : cases) {
    const Result<Sm90ForwardConfig> config = parse_sm90_forward(c.config);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(static_cast<DType>(config->element), c.input);
    EXPECT_EQ(static_cast<DType>(config->output.element), c.out);
    EXPECT_LE(c.head_dim, config->head_dim);
    EXPECT_EQ(c.head_dim % 8, 0);
    EXPECT_FALSE(config->sum_rounded_p && c.lse);
    EXPECT_NE(c.name().find(c.config), std::string::npos);
    refused += feasible(*config, 90, 227 * 1024).ok() ? 0 : 1;
    configs.insert(c.config);
  }
  EXPECT_GT(static_cast<std::int64_t>(cases.size()) - refused, 5000);
  for (const sm90::TableRow& row : sm90::kTable) {
    Sm90ForwardConfig config = sm90::config_of(row, Element::bf16);
    EXPECT_TRUE(configs.contains(to_text(config))) << to_text(config);
    config.sum_rounded_p = false;
    EXPECT_TRUE(configs.contains(to_text(config))) << to_text(config);
  }
}

// Every case of the suite has a configuration that the emulator has too, 8-bit as well as 16-bit.
TEST(Check, TheEmulatorsCasesAndTheirConfigurations) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  std::set<std::string> emulated;
  for (const EmulatedKernel& kernel : emulated_kernels())
    if (kernel.kernel == "sm90_forward") emulated.insert(kernel.config);
  const auto cases = cases_of_emulator(42);
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  std::map<Element, int> of_element;
  for (const Case& c : *cases) {
    EXPECT_TRUE(emulated.contains(c.config)) << c.config;
    const Result<Sm90ForwardConfig> config = parse_sm90_forward(c.config);
    ASSERT_TRUE(config.ok()) << config.status().message();
    ++of_element[config->element];
  }
  EXPECT_GE(cases->size(), 200U);
  for (const Element element : {Element::f16, Element::bf16, Element::e4m3, Element::int8})
    EXPECT_GE(of_element[element], 5) << static_cast<int>(element);
}

// fp64 is compared with the device's result, not the emulator's.
TEST(Check, ComparesWithTheEmulator) {
  Case c;
  c.seqlen_q = c.seqlen_kv = 80;
  const Runner library = library_runner({});
  const auto off_by = [&](float difference) {
    return plain_runner([difference, library](const Arguments& a, const Options& options) {
      const Result<Call> call = library(a, options);
      if (!call.ok()) return call.status();
      const Status status = (*call)();
      auto* const out = static_cast<std::uint16_t*>(a.out.data);
      out[7] = f16_from_f32(f32_from_f16(out[7]) + difference);
      return status;
    });
  };
  const auto near = check_against_emulator({}, {c}, library, off_by(1e-3f));
  ASSERT_TRUE(near.ok()) << near.status().message();
  EXPECT_TRUE(near->passed()) << joined(near->failures);
  EXPECT_EQ(near->emulated, 1);
  EXPECT_NEAR(near->emulated_difference, 1e-3, 2e-4);
  const auto far = check_against_emulator({}, {c}, library, off_by(4e-3f));
  ASSERT_TRUE(far.ok()) << far.status().message();
  ASSERT_EQ(far->failures.size(), 1U);
  EXPECT_NE(far->failures[0].find("from the same kernel in the emulator"), std::string::npos)
      << far->failures[0];
  // Cases that the emulator does not serve are not compared.
  const Runner refuses = [](const Arguments&, const Options&) -> Result<Call> {
    return Status(ErrorCode::unsupported, "not this one.");
  };
  const auto without = check_against_emulator({}, {c}, library, refuses);
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_TRUE(without->passed());
  EXPECT_EQ(without->emulated, 0);
}

TEST(Check, BadOptionsGetAnErrorSentence) {
  CheckOptions options;
  options.suite = "none";
  EXPECT_EQ(check(options).status().code(), ErrorCode::invalid_argument);
  options.suite = "twelve";
  options.repeat = 1;
  EXPECT_EQ(check(options).status().message(), "repeat is 1; supported: 2 to 1000000.");
  options.repeat = 2;
  options.cases = -1;
  EXPECT_EQ(check(options).status().message(), "cases is -1; supported: 0 or more.");
  options.cases = 0;
  options.streams = -1;
  EXPECT_EQ(check(options).status().message(), "streams is -1; supported: 0 to 64.");
  options.streams = 0;
  options.suite = "configs";
  EXPECT_EQ(check(options).status().message(),
            "suite is \"configs\" on cpu; supported: all, twelve, presets, decode, block_mask.");
  options.suite = "emulated";
  EXPECT_EQ(check(options).status().message(),
            "suite is \"emulated\" on cpu; supported: all, twelve, presets, decode, block_mask.");
  options.device = {Device::Kind::cuda, 99};
  options.streams = 2;
  EXPECT_EQ(check(options).status().message(),
            "streams is 2 with suite \"emulated\"; supported: 0.");
  options.streams = 0;
  options.suite = "twelve";
  const auto report = check(options);
  ASSERT_FALSE(report.ok());
  EXPECT_FALSE(report.status().message().empty());
}

// The judge relies on this: NaN in every unused place, and none elsewhere.
TEST(Inputs, HaveNanOutsideTheSequences) {
  Case c;
  c.batch = 2;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv = 5;
  c.head_dim = 8;
  c.input = DType::f32;
  for (const Layout layout :
       {Layout::bhsd, Layout::bshd, Layout::gaps, Layout::varlen, Layout::gaps}) {
    c.padded = c.layout == Layout::varlen;  // the last one
    c.layout = layout;
    const auto inputs = make_inputs(c);
    ASSERT_TRUE(inputs.ok());
    std::int64_t rows = 0;
    for (const Span& span : inputs->spans_kv) rows += span.length;
    const TensorMemory& k = inputs->k.wide;
    const auto* values = static_cast<const float*>(k.view.data);
    std::int64_t moderate = 0;
    const std::size_t elements = (k.bytes.size() - 2 * kGuardBytes) / sizeof(float);
    for (std::size_t i = 0; i < elements; ++i) moderate += std::abs(values[i]) < 100 ? 1 : 0;
    EXPECT_EQ(moderate, rows * c.heads_kv * c.head_dim) << c.name();
  }
}

}  // namespace
}  // namespace octavo::evidence
