// SPDX-License-Identifier: Apache-2.0
// Runs `octavo ladder` as a process: in the emulator, with bad input, and without a GPU.
#include <nlohmann/json.hpp>

#include "cli/process.h"
#include "octavo/emulator.hpp"

namespace octavo::cli {
namespace {

using nlohmann::json;

TEST(LadderCommand, ChecksEveryRungInTheEmulator) {
  if (!has_emulator()) GTEST_SKIP() << "built without the emulator";
  const Finished finished = octavo_command(
      {"ladder", "--device", "emulator", "--shape", "1,1,70,64", "--causal", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err << finished.out;
  const json told = json::parse(finished.out);
  EXPECT_EQ(told.at("kind"), "ladder");
  EXPECT_EQ(told.at("device"), "emulator:90");
  EXPECT_EQ(told.at("causal"), true);
  EXPECT_EQ(told.at("passed"), true);
  const char* const names[] = {"scalar", "tiled", "tensor_cores", "async_copies",
                               "specialised_warps"};
  ASSERT_EQ(told.at("rows").size(), std::size(names));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    const json& row = told.at("rows").at(i);
    EXPECT_EQ(row.at("rung"), i + 1);
    EXPECT_EQ(row.at("kernel"), names[i]);
    EXPECT_TRUE(row.at("not_run").is_null());
    EXPECT_TRUE(row.at("median_us").is_null()) << "the emulator has no times";
    EXPECT_GT(row.at("bound_ratio").get<double>(), 0.0);
    EXPECT_LE(row.at("bound_ratio").get<double>(), 1.0);
  }
  const Finished table = octavo_command({"ladder", "--device", "emulator", "--shape", "1,1,1,128"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("5 specialised_warps"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("\npassed\n"), std::string::npos) << table.out;
}

TEST(LadderCommand, BadInputIsOneSentence) {
  const auto refused = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ladder");
    const Finished finished = octavo_command(arguments);
    EXPECT_EQ(finished.out, "");
    EXPECT_NE(finished.code, 0);
    return finished.err;
  };
  EXPECT_EQ(refused({"--device", "cpu"}),
            "octavo: device is cpu; supported here: cuda, emulator for the ladder.\n");
  EXPECT_EQ(refused({"--device", "emulator", "--shape", "1,1,8,96"}),
            "octavo: head_dim is 96; supported here: 64, 128 on the ladder.\n");
  EXPECT_EQ(refused({"--device", "emulator", "--turns", "0"}),
            "octavo: turns is 0; supported: 1 to 1000.\n");
  EXPECT_EQ(refused({"--device", "emulator", "--shape", "1,1,0,64"}),
            "octavo: length is 0; supported: 1 or more.\n");
}

}  // namespace
}  // namespace octavo::cli
