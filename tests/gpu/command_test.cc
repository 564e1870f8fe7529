// SPDX-License-Identifier: Apache-2.0
// Runs octavo kernels and octavo cache as processes.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

class GpuCommand : public testing::Test {
 protected:
  void SetUp() override { setenv("OCTAVO_CACHE_DIR", (directory_ / "cache").c_str(), 1); }
  void TearDown() override { unsetenv("OCTAVO_CACHE_DIR"); }
  const Directory directory_;
};

TEST_F(GpuCommand, KernelsListsCodeProperties) {
  const Finished finished = octavo_command({"kernels", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json list = json::parse(finished.out);
  EXPECT_EQ(list.at("kind"), "kernels");
  int cubins = 0, fp8 = 0;
  for (const json& kernel : list.at("kernels")) {
    if (!kernel.at("available").get<bool>()) continue;
    EXPECT_GT(kernel.at("image_bytes"), 1000);
    EXPECT_GT(kernel.at("compile_ms"), 0);
    if (kernel.at("kind") != "cubin") continue;
    ++cubins;
    EXPECT_GT(kernel.at("registers"), 0);
    EXPECT_EQ(kernel.at("spill_bytes"), 0);
    EXPECT_EQ(kernel.at("spill_instructions"), 0);
    EXPECT_GT(kernel.at("dynamic_smem_bytes"), 0);
    const json& n = kernel.at("instructions");
    EXPECT_GT(n.at("mma_f16").get<int>() + n.at("mma_fp8").get<int>() + n.at("mma_int8").get<int>(),
              0);
    fp8 += n.at("mma_fp8").get<int>() > 0;
  }
  if (cubins == 0) GTEST_SKIP() << "built without NVRTC: nothing is embedded";
  EXPECT_GT(fp8, 0);
  const Finished text = octavo_command({"kernels"});
  EXPECT_EQ(text.code, 0);
  EXPECT_NE(text.out.find("sm_90a"), std::string::npos) << text.out;
}

TEST_F(GpuCommand, EmptyCache) {
  const Finished listed = octavo_command({"cache", "ls", "--json", "-"});
  ASSERT_EQ(listed.code, 0) << listed.err;
  const json cache = json::parse(listed.out);
  EXPECT_EQ(cache.at("directory"), directory_ / "cache");
  EXPECT_TRUE(cache.at("kernels").empty());
  EXPECT_EQ(octavo_command({"cache", "ls"}).code, 0);
  EXPECT_EQ(octavo_command({"cache", "rm", "--all"}).out, "0 removed\n");
}

TEST_F(GpuCommand, CacheExplainsAConfig) {
  const Finished finished = octavo_command({"cache", "explain", "arch=89,stages=3", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json found = json::parse(finished.out);
  EXPECT_EQ(found.at("kind"), "cache_explain");
  EXPECT_EQ(found.at("found"), "nowhere");
  EXPECT_EQ(found.at("kernel").at("arch"), 89);
  EXPECT_EQ(found.at("sources_sha256").get<std::string>().size(), 64u);
  EXPECT_EQ(octavo_command({"cache", "explain", "arch=89"}).code, 0);
}

TEST_F(GpuCommand, BadInputGetsOneSentence) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"cache", "explain", "blocks=3"}, "block_m"},
      {{"cache", "explain", "arch=75"}, "80, 89, 90"},
      {{"cache", "explain", "arch=80,element=e4m3"}, "89 or later"},
      {{"cache", "rm"}, "--all"},
      {{"cache", "rm", "abc", "--all"}, "--all"},
      {{"cache", "rm", "abc"}, "'abc'"},
      {{"cache", "rm", ""}, "the key"},
      {{"cache"}, "subcommand"},
      {{"kernels", "--json", "/not/there/x.json"}, "/not/there"},
  };
  for (const auto& [arguments, part] : cases) {
    const Finished finished = octavo_command(arguments);
    EXPECT_NE(finished.code, 0) << part;
    EXPECT_EQ(finished.out, "") << part;
    EXPECT_NE(finished.err.find(part), std::string::npos) << finished.err;
  }
}

// Checked before a GPU is opened, so that the error is the same everywhere.
TEST_F(GpuCommand, AnUnknownFamilyOfKernelsIsRefused) {
  setenv("OCTAVO_KERNELS", "sm75", 1);
  const Finished finished =
      octavo_command({"explain", "--device", "cuda", "--shape", "1,8,512,64", "--dtype", "f16"});
  unsetenv("OCTAVO_KERNELS");
  EXPECT_EQ(finished.code, 2);
  EXPECT_EQ(finished.err,
            "octavo: OCTAVO_KERNELS is 'sm75'; supported: sm80, sm90, decode, or nothing.\n");
}

}  // namespace
}  // namespace octavo::cli
