// SPDX-License-Identifier: Apache-2.0
// The emulator reproduces the recorded outputs of an H200, word by word.
#include "emulator/selftest/conformance.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "octavo/emulator.hpp"

namespace octavo::emulator {
namespace {

std::string golden_bytes() {
  std::ifstream file(OCTAVO_SOURCE_DIR "/tests/emulator/conformance.golden", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(EmulatorConformance, EveryRecordedVectorIsReproduced) {
  const Result<ConformanceReport> report = emulator_conformance(golden_bytes());
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->device, "NVIDIA H200");
  std::set<std::string> not_recorded;
  for (const ConformanceRow& row : report->rows) {
    EXPECT_EQ(row.wrong, 0) << row.instruction << ": " << row.difference;
    if (row.recorded)
      EXPECT_GT(row.words, 0) << row.instruction;
    else
      not_recorded.insert(row.instruction);
  }
  EXPECT_TRUE(report->passed());
  // A new set is listed here by name until its outputs are recorded.
  EXPECT_EQ(not_recorded, std::set<std::string>{});
}

TEST(EmulatorConformance, DifferenceIsDetected) {
  std::vector<GoldenSet> sets = golden_from_bytes(golden_bytes());
  ASSERT_FALSE(sets.empty());
  for (GoldenSet& set : sets) set.output.back() ^= 0x00400000;
  const Result<ConformanceReport> report = emulator_conformance(to_bytes(sets, "elsewhere"));
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->passed());
  EXPECT_EQ(report->device, "elsewhere");
  for (const ConformanceRow& row : report->rows)
    EXPECT_EQ(row.wrong > 0, row.recorded) << row.instruction;
}

TEST(EmulatorConformance, InvalidGoldenFileIsRefused) {
  for (const std::string& bytes :
       {std::string(), std::string("hello"), golden_bytes().substr(0, 1000)}) {
    const Result<ConformanceReport> report = emulator_conformance(bytes);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace octavo::emulator
