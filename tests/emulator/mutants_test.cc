// Every wait, barrier and mask term of the kernels is needed, or known not to be.
#include <gtest/gtest.h>

#include "emulator/long.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

void expect_accounted_for(const std::string& kernel) {
  const Result<std::vector<MutantReport>> reports = emulator_mutants(kernel);
  ASSERT_TRUE(reports.ok()) << reports.status().message();
  for (const MutantReport& report : *reports) {
    EXPECT_EQ(report.failure, "") << report.brief;
    EXPECT_GE(report.mutants.size(), 10U) << report.brief;
    for (const Mutant& mutant : report.mutants)
      EXPECT_TRUE(mutant.accounted_for()) << report.brief << ": " << mutant.call << " survives";
    EXPECT_TRUE(report.passed());
  }
}

// Kernels that divide the keys among warps have every barrier there is; sim8 clears its padding
// too.
TEST(EmulatorMutants, OfKernelsWithWarpsAlongTheKeys) {
  expect_accounted_for("block_m=32,warps_m=2,warps_n=4");
  expect_accounted_for("element=sim8,block_m=32,warps_m=2,warps_n=4");
}

TEST(EmulatorMutants, OfEveryKernel) {
  if (!test_long()) GTEST_SKIP() << "make test-long";
  expect_accounted_for("all");
}

TEST(EmulatorMutants, AnUnknownKernelIsNamed) {
  const auto reports = emulator_mutants("sm99_forward");
  ASSERT_FALSE(reports.ok());
  EXPECT_NE(reports.status().message().find("\"sm99_forward\""), std::string::npos);
}

}  // namespace
}  // namespace octavo
