// The twelve cases of every precision of the sm80 family, in the emulator, under many schedules.
//
// Small shapes run under three schedules each, whose bits must agree; the mission shape, nine
// tenths of the time, under one schedule for each of its three inputs. `make test-long`: all under
// twenty.
#include <gtest/gtest.h>

#include "emulator/long.h"
#include "evidence/check.h"
#include "octavo/emulator.hpp"

namespace octavo::evidence {
namespace {

constexpr int kSchedules = 3, kLongSchedules = 20;
constexpr DType kFormats[] = {DType::f16,  DType::bf16, DType::e4m3,
                              DType::e5m2, DType::int8, DType::sim8};

// Each call of a case takes the next schedule.
Runner scheduled_runner(std::uint64_t first) {
  return [=, runner = library_runner({Device::Kind::emulator, 0})](
             const Arguments& arguments, const Options& options) -> Result<Call> {
    const Result<Call> call = runner(arguments, options);
    if (!call.ok()) return call.status();
    return Call([call = *call, seed = first]() mutable {
      set_emulator_schedule(seed++);
      const Status status = call();
      set_emulator_schedule({});
      return status;
    });
  };
}

void check(const std::vector<Case>& cases, int schedules, std::uint64_t first) {
  ASSERT_FALSE(cases.empty());
  CheckOptions options;
  options.device = {Device::Kind::emulator, 0};
  options.repeat = schedules;
  const Result<CheckReport> report = check_cases(options, cases, scheduled_runner(first));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->cases, static_cast<std::int64_t>(cases.size()));
  EXPECT_EQ(report->not_run, 0);
  for (const std::string& failure : report->failures) ADD_FAILURE() << failure;
}

std::vector<Case> twelve_of(DType format, bool mission) {
  std::vector<Case> cases;
  for (const Case& c : twelve_cases())
    if (c.input == format && c.options.precision == Precision::native &&
        (c.len_q == 512) == mission)
      cases.push_back(c);
  return cases;
}

class EmulatorSuite : public testing::TestWithParam<DType> {};

TEST_P(EmulatorSuite, SmallShapesUnderEverySchedule) {
  check(twelve_of(GetParam(), false), test_long() ? kLongSchedules : kSchedules, 1);
}

void mission(DType format, std::size_t input) {
  const std::vector<Case> cases = twelve_of(format, true);
  ASSERT_EQ(cases.size(), 3U);
  check({cases[input]}, test_long() ? kLongSchedules : 1, 1 + input);
}
TEST_P(EmulatorSuite, MissionShapeFirstInput) { mission(GetParam(), 0); }
TEST_P(EmulatorSuite, MissionShapeSecondInput) { mission(GetParam(), 1); }
TEST_P(EmulatorSuite, MissionShapeThirdInput) { mission(GetParam(), 2); }

INSTANTIATE_TEST_SUITE_P(Formats, EmulatorSuite, testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(name(format.param)); });

}  // namespace
}  // namespace octavo::evidence
