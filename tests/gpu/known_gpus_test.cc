// SPDX-License-Identifier: Apache-2.0
// octavo explain --gpu says what a plan on that GPU says: compared with a fake driver that has the
// numbers of the chip.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

class KnownGpus : public testing::Test {
 protected:
  void SetUp() override {
    set("LD_LIBRARY_PATH", OCTAVO_FAKE_CUDA);
    set("OCTAVO_NVRTC", OCTAVO_FAKE_NVRTC);
    set("OCTAVO_CACHE_DIR", directory_ / "cache");
  }
  void TearDown() override {
    for (const std::string& variable : variables_) unsetenv(variable.c_str());
  }
  void set(const std::string& variable, const std::string& value) {
    setenv(variable.c_str(), value.c_str(), 1);
    variables_.push_back(variable);
  }
  static json explained(const std::vector<std::string>& device,
                        const std::vector<std::string>& problem) {
    std::vector<std::string> arguments = {"explain", "--json", "-"};
    arguments.insert(arguments.end(), device.begin(), device.end());
    arguments.insert(arguments.end(), problem.begin(), problem.end());
    const Finished finished = octavo_command(arguments);
    EXPECT_EQ(finished.code, 0) << finished.err;
    return json::parse(finished.out, nullptr, false);
  }

  const Directory directory_;
  std::vector<std::string> variables_;
};

TEST_F(KnownGpus, AreExplainedAsIfTheyWereHere) {
  struct Chip {
    const char *name, *arch, *sms, *l2;
  };
  const std::vector<std::vector<std::string>> problems = {
      {"--preset", "mission"},
      {"--preset", "stress", "--causal"},
      {"--shape", "1,16,4096,128", "--precision", "fp8", "--sm-margin", "4"},
      {"--shape", "2,8,700,64", "--softcap", "30", "--lse"},
      {"--shape", "1,8,1,128", "--kv-length", "65536"},
      {"--preset", "wide", "--precision", "auto", "--max-error", "0.4"}};
  for (const Chip& chip :
       {Chip{"h100", "90", "132", "52428800"}, Chip{"l4", "89", "58", "50331648"},
        Chip{"rtx5090", "120", "170", "100663296"}}) {
    set("FAKE_CUDA_ARCH", chip.arch);
    set("FAKE_CUDA_SMS", chip.sms);
    set("FAKE_CUDA_L2", chip.l2);
    for (const auto& problem : problems) {
      json here = explained({"--device", "cuda"}, problem);
      json absent = explained({"--gpu", chip.name}, problem);
      EXPECT_EQ(absent.at("kernel"), here.at("kernel")) << chip.name << " " << problem[1];
      EXPECT_EQ(absent.at("config"), here.at("config")) << chip.name << " " << problem[1];
      EXPECT_EQ(absent.at("workspace_bytes"), here.at("workspace_bytes")) << chip.name;
      // A plan may add what its kernel cache says.
      const std::string reason = absent.at("reason");
      EXPECT_TRUE(here.at("reason").get<std::string>().starts_with(reason)) << here << reason;
    }
  }
}

}  // namespace
}  // namespace octavo::cli
