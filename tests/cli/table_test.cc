// SPDX-License-Identifier: Apache-2.0
// Tables, the progress bar, shared flags and reports as text.
#include "table.h"

#include <gtest/gtest.h>

#include <sstream>

#include "colour.h"
#include "exit.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "tensors/scales_file.h"

namespace octavo::cli {
namespace {

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) {
    std::size_t columns = 0;
    for (const char c : line) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
    widest = std::max(widest, columns);
  }
  return widest;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Table, AlignsColumns) {
  Table table({{"name", Table::Align::left}, {"n"}});
  table.add_row({"a", "1"});
  table.add_row({"longer", "1234"});
  table.add_row({"\xc2\xb5s", "12"});  // two bytes, one column
  EXPECT_EQ(table.text(),
            "name       n\n"
            "------  ----\n"
            "a          1\n"
            "longer  1234\n"
            "\xc2\xb5s        12\n");
}

TEST(Table, FitsTheScreen) {
  Table table({{"kernel", Table::Align::left},
               {"a title of several words"},
               {"config", Table::Align::left},
               {"path", Table::Align::left}});
  std::string config;
  for (int i = 0; i < 30; ++i) config += "field" + std::to_string(i) + "=1,";
  const std::string path = "/a/path/that/must/stay/whole/to/be/of/any/use";
  table.add_row({"sm90", "7", config + "last=2", path});
  const std::string text = table.text();
  EXPECT_LE(widest_line(text), kTextWidth);
  EXPECT_TRUE(contains(text, path));
  // The parts of the cell, in order and complete.
  std::string joined;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    for (std::size_t at = 0; (at = line.find("field", at)) != std::string::npos; ++at)
      joined += line.substr(at, line.find(',', at) + 1 - at);
  EXPECT_EQ(joined, config);
  EXPECT_TRUE(contains(text, "last=2"));
  EXPECT_TRUE(contains(text, "words\n"));  // of the title, above the numbers
}

TEST(Colour, MarksHeadingsAndVerdicts) {
  const std::string plain =
      "check on cpu\n\nname  of\nmode  bound\n----  -----\nfp8      1\n\npassed: 3 cases, NOT "
      "HELD, "
      "bypassed\nFAILED\n";
  const std::string shown = in_colour(plain);
  EXPECT_TRUE(contains(shown, "\x1b[1mname  of\x1b[0m\n\x1b[1mmode  bound\x1b[0m\n"));
  EXPECT_TRUE(
      contains(shown, "\x1b[32mpassed\x1b[0m: 3 cases, \x1b[1;31mNOT HELD\x1b[0m, bypassed"));
  EXPECT_TRUE(contains(shown, "\x1b[1;31mFAILED\x1b[0m\n"));
  std::string without = shown;
  for (std::size_t at = 0; (at = without.find('\x1b')) != std::string::npos;)
    without.erase(at, without.find('m', at) + 1 - at);
  EXPECT_EQ(without, plain);
}

TEST(Table, WrapsLongFields) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word" + std::to_string(i) + " ";
  const std::string text = field_lines({{"why", words}, {"longer name", "x"}});
  EXPECT_LE(widest_line(text), kTextWidth);
  EXPECT_TRUE(contains(text, "\n             word"));
  EXPECT_TRUE(contains(text, "word59"));
  const std::string path(300, 'p');
  EXPECT_EQ(wrapped(path, 4), path);
}

TEST(Table, Numbers) {
  EXPECT_EQ(short_number(0), "0.000");
  EXPECT_EQ(short_number(12.345), "12.35");
  EXPECT_EQ(short_number(123456.7), "123457");
  EXPECT_EQ(error_number(0.000123), "1.23e-04");
  EXPECT_EQ(byte_count(100), "100 B");
  EXPECT_EQ(byte_count(3 << 19), "1.5 MiB");
  EXPECT_EQ(duration(999.0), "999.0 us");
  EXPECT_EQ(duration(4560.0), "4.56 ms");
}

struct FakeTerminal {
  std::chrono::milliseconds now{0};
  std::string drawn;

  ProgressBar bar(bool terminal) {
    return ProgressBar(
        "work", terminal, [this] { return now; },
        [this](const std::string& text) { drawn += text; });
  }
};

TEST(Progress, StaysSilentForTwoSeconds) {
  FakeTerminal fake;
  {
    ProgressBar bar = fake.bar(true);
    fake.now += std::chrono::milliseconds(1999);
    bar.update(1, 2);
  }
  EXPECT_EQ(fake.drawn, "");
  {
    ProgressBar bar = fake.bar(true);
    fake.now += std::chrono::milliseconds(2000);
    bar.update(1, 2);
    EXPECT_TRUE(contains(fake.drawn, "work [###############...............] 1/2"));
    const std::size_t once = fake.drawn.size();
    bar.update(2, 2);
    EXPECT_EQ(fake.drawn.size(), once) << "drawn again without a pause";
    fake.now += std::chrono::milliseconds(100);
    bar.update(3, 2);
    EXPECT_TRUE(contains(fake.drawn, "] 2/2"));
  }
  EXPECT_TRUE(fake.drawn.ends_with("\r\x1b[K")) << "the line is left behind";
}

TEST(Progress, StaysSilentOffTerminals) {
  FakeTerminal fake;
  {
    ProgressBar bar = fake.bar(false);
    fake.now += std::chrono::milliseconds(60000);
    bar.update(1, 2);
  }
  EXPECT_EQ(fake.drawn, "");
}

TEST(Flags, ParsesIntegers) {
  EXPECT_EQ(*parse_integers("--x", "1,-2,3", 3, "three"), (std::vector<std::int64_t>{1, -2, 3}));
  for (const char* text : {"", "1", "1,2", "1,2,3,4", "1,2,", ",1,2", "1,2,x", "1, 2,3", "1,2,3 ",
                           "99999999999999999999,1,1", "1.5,2,3"}) {
    const auto values = parse_integers("--x", text, 3, "three integers");
    ASSERT_FALSE(values.ok()) << text;
    EXPECT_TRUE(contains(values.status().message(), "--x is '"));
  }
}

TEST(Flags, BecomeOptions) {
  AttentionFlags flags;
  EXPECT_EQ(flags.options(), Options{});
  flags.causal = "";
  EXPECT_EQ(flags.options().causal, Causal::top_left);
  flags.causal = "bottom_right";
  flags.window = "128,-1";
  flags.precision = "int8_mixed";
  flags.granularity_qk = "block";
  flags.granularity_v = "tensor";
  flags.block_rows = 32;
  flags.rule = "least_squares";
  flags.smooth_k = flags.hadamard = flags.batch_invariant = flags.overlap_launch = true;
  flags.sm_margin = 8;
  Options expected;
  expected.sm_margin = 8;
  expected.causal = Causal::bottom_right;
  expected.window_left = 128;
  expected.precision = Precision::int8_mixed;
  expected.quantization = {
      Granularity::block, Granularity::tensor, 32, ScaleRule::least_squares, true, true};
  expected.batch_invariant = expected.overlap_launch = true;
  EXPECT_EQ(flags.options(), expected);
}

TEST(Flags, ScaleShapesAgreeWithTheLibrary) {
  const Shape4 shape = {2, 3, 130, 8};
  for (const Granularity granularity : kAllGranularities) {
    std::int64_t product = 1;
    for (const std::int64_t n : scale_shape(shape, granularity, 64)) product *= n;
    EXPECT_EQ(product, scale_count(shape, granularity, 64)) << name(granularity);
  }
}

TEST(Report, Check) {
  CheckReport report;
  report.device = "cpu";
  report.suite = "all";
  report.cases = 30;
  report.distinct = 30;
  CheckRow row{"fp8_mixed",
               "bf16",
               30,
               25,
               0.5,
               0.25,
               0.125,
               1.5,
               std::string(90, 'b') + " rule",
               std::string(40, 'c') + " case"};
  report.rows = {row};
  EXPECT_TRUE(contains(render(report), "\npassed: 30 cases"));
  for (int i = 0; i < 25; ++i) report.failures.push_back("case " + std::to_string(i));
  const std::string text = render(report);
  EXPECT_TRUE(contains(text, "fp8_mixed  bf16       30      25     5.00e-01"));
  EXPECT_TRUE(contains(text, "150.0%"));
  EXPECT_TRUE(contains(text, "case 19\n  and 5 more"));
  EXPECT_TRUE(contains(text, "\nFAILED: 30 cases"));
  EXPECT_LE(widest_line(text), kTextWidth);
}

TEST(Report, BenchLeavesOutWhatWasNotMeasured) {
  BenchReport report;
  report.device = "cpu";
  report.dtype = "f16";
  BenchRow row;
  row.shape = {"mission", 1, 8, 512, 64};
  row.kernel.kernel = "cpu_forward";
  row.median_us = 1000;
  row.low_us = 990;
  row.high_us = 1010;
  row.gflops = 536.9;
  report.rows = {row};
  EXPECT_TRUE(contains(render(report), "1000    2.0%    536.9            -           -          -"))
      << render(report);
  report.rows[0].fma_peak_fraction = 0.625;
  report.rows[0].three_loop_ratio = 12.34;
  report.rows[0].max_error = 1e-3;
  const std::string text = render(report);
  EXPECT_TRUE(contains(text, "62.5%       12.3x   1.00e-03")) << text;
  EXPECT_LE(widest_line(text), kTextWidth);
}

TEST(Report, ExplainSaysNotMeasured) {
  Explanation explanation;
  EXPECT_TRUE(contains(render(explanation, "p"), "time       not measured"));
  explanation.measured_us = 12.0;
  EXPECT_TRUE(contains(render(explanation, "p"), "time       12.0 us"));
}

TEST(Exit, CodesFollowTheKindOfError) {
  const auto code = [](ErrorCode error) {
    try {
      require(Status(error, "x"));
    } catch (const Exit& exit) {
      return exit.code();
    }
    return 0;
  };
  EXPECT_EQ(code(ErrorCode::invalid_argument), 2);
  EXPECT_EQ(code(ErrorCode::unsupported), 2);
  EXPECT_EQ(code(ErrorCode::io_error), 2);
  EXPECT_EQ(code(ErrorCode::device_error), 1);
  EXPECT_EQ(code(ErrorCode::out_of_memory), 1);
  EXPECT_THROW(require_written(Status(ErrorCode::io_error, "x")), Exit);
}

}  // namespace
}  // namespace octavo::cli
