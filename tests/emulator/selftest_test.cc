// SPDX-License-Identifier: Apache-2.0
// Every kind of hazard is detected, and nothing else is reported.
#include "emulator/selftest/selftest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "octavo/emulator.hpp"

namespace octavo::emulator {
namespace {

TEST(EmulatorSelftest, EveryFaultyKernelIsCaughtAndEveryTwinIsClean) {
  const std::vector<SelftestResult> results = emulator_selftest(8);
  ASSERT_EQ(results.size(), selftest_cases().size());
  for (const SelftestResult& result : results) {
    EXPECT_TRUE(result.caught) << result.what << "\n" << result.report;
    EXPECT_TRUE(result.clean) << result.what << "\n" << result.report;
  }
}

TEST(EmulatorSelftest, CoversEveryKindOfHazard) {
  std::set<Hazard> covered;
  for (const SelftestCase& test : selftest_cases()) covered.insert(test.hazard);
  for (int i = 0; i <= static_cast<int>(Hazard::unknown_instruction); ++i)
    EXPECT_TRUE(covered.contains(static_cast<Hazard>(i))) << name(static_cast<Hazard>(i));
}

// A schedule may reveal another symptom of the same fault, but never none.
TEST(EmulatorSelftest, FaultyKernelsAreFoundUnderEverySchedule) {
  for (const SelftestCase& test : selftest_cases())
    for (std::uint64_t seed = 0; seed < 8; ++seed)
      EXPECT_FALSE(run_selftest(test, false, seed).clean()) << test.what << ", schedule " << seed;
}

TEST(EmulatorSelftest, FindingNamesKernelLineThreadAndAddress) {
  const auto& cases = selftest_cases();
  const auto test = std::find_if(cases.begin(), cases.end(), [](const SelftestCase& c) {
    return std::string(c.what) == "another warp reads: no barrier";
  });
  ASSERT_NE(test, cases.end());
  const Report report = run_selftest(*test, false, {});
  ASSERT_FALSE(report.clean());
  const std::string text = report.text();
  for (const char* part : {"read-write race: reads what thread ", "no barrier stands between",
                           "kernel   another warp reads", "where    ld.shared.b32 at emulator/",
                           "against  st.shared.b32 at emulator/", "who      thread ", "warp ",
                           "lane ", "CTA 0", "address  shared 0x"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(EmulatorSelftest, DeadlockReportNamesWaitingThreads) {
  const auto& cases = selftest_cases();
  const auto test = std::find_if(cases.begin(), cases.end(), [](const SelftestCase& c) {
    return std::string(c.what) == "mbarrier: more bytes expected than come";
  });
  ASSERT_NE(test, cases.end());
  const std::string text = run_selftest(*test, false, {}).text();
  EXPECT_NE(text.find("threads 0-63 wait for the phase of parity 0 of mbarrier 0x400"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("16 bytes"), std::string::npos) << text;
}

}  // namespace
}  // namespace octavo::emulator
