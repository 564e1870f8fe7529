// SPDX-License-Identifier: Apache-2.0
// Runs `octavo evolve` as a process without a GPU: a search with a script, its report, replay and
// export, and bad input.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/process.h"

namespace octavo::cli {
namespace {

using nlohmann::json;

class EvolveCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/evolve_command_XXXXXX";
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string path(const std::string& name) const { return root_ + "/" + name; }

  static Finished evolve(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "evolve");
    return octavo_command(arguments);
  }
  // Every candidate is refused before anything is compiled.
  Finished search(const std::string& directory) const {
    std::ofstream(path("script.json")) << R"([
        [{"parent": "base", "patch": "--- a/base/error.h\n+++ b/base/error.h\n@@ -1 +1 @@\n-a\n+b\n"}],
        [{"parent": "nobody", "config": "stages=3"}, {"config": "element=int8"}]])";
    return evolve({"run", path(directory), "--device", "cpu", "--config",
                   "Sm90ForwardConfig{head_dim=64}", "--generator", "scripted", "--script",
                   path("script.json"), "--generations", "2", "--seed", "5", "--json", "-"});
  }
  std::string root_;
};

TEST_F(EvolveCommand, SearchesReportsReplaysAndExports) {
  const Finished finished = search("run");
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json told = json::parse(finished.out);
  EXPECT_EQ(told.at("kind"), "evolve");
  EXPECT_EQ(told.at("kernel"), "sm90_forward");
  EXPECT_EQ(told.at("seed"), 5);
  EXPECT_EQ(told.at("finished"), true);
  EXPECT_EQ(told.at("candidates"), 4);
  EXPECT_EQ(told.at("judged"), 4);
  ASSERT_EQ(told.at("elites").size(), 1U);
  EXPECT_EQ(told.at("elites")[0].at("id"), "base");
  for (const json& row : told.at("rejections")) {
    const int expected = row.at("gate") == "policy" ? 1 : row.at("gate") == "generator" ? 2 : 0;
    EXPECT_EQ(row.at("rejected"), expected) << row;
  }
  EXPECT_TRUE(std::filesystem::exists(path("run/ledger.sqlite")));

  const Finished shown = evolve({"report", path("run"), "--html", path("page.html")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("4 candidates judged"), std::string::npos) << shown.out;
  std::stringstream page;
  page << std::ifstream(path("page.html")).rdbuf();
  EXPECT_NE(page.str().find("outside the device sources"), std::string::npos);
  EXPECT_EQ(page.str().find("http"), std::string::npos) << "a page without references";

  EXPECT_EQ(evolve({"replay", path("run")}).code, 0);
  const Finished resumed = evolve({"resume", path("run")});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  const Finished exported = evolve({"export", path("run")});
  EXPECT_EQ(exported.code, 0);
  EXPECT_EQ(exported.out, "");
  EXPECT_NE(exported.err.find("nothing to export"), std::string::npos) << exported.err;
}

TEST_F(EvolveCommand, BadInputIsOneSentence) {
  const auto refused = [&](std::vector<std::string> arguments) {
    const Finished finished = evolve(std::move(arguments));
    EXPECT_EQ(finished.code, 2) << finished.err;
    EXPECT_EQ(finished.out, "");
    return finished.err;
  };
  const std::string none = path("none");
  EXPECT_EQ(refused({"resume", none}), "octavo: the directory is " + none +
                                           " without a run; supported: one that `octavo evolve "
                                           "run` has made.\n");
  EXPECT_EQ(refused({"run", none, "--device", "cpu", "--generator", "genius"}),
            "octavo: the generator is 'genius'; supported: config, random, best_of_n, exhaustive, "
            "command, scripted.\n");
  EXPECT_EQ(refused({"run", none, "--device", "cpu", "--population", "0"}),
            "octavo: population is 0; supported: 1 to 1000.\n");
  EXPECT_EQ(refused({"run", none, "--device", "emulator"}),
            "octavo: device is emulator; supported here: cuda, cpu for evolve.\n");
  EXPECT_EQ(refused({"run", none, "--device", "cpu", "--may-be-missing", "correctness"}),
            "octavo: a gate that may be missing is 'correctness'; supported: emulator, sanitizer, "
            "counters.\n");
  EXPECT_NE(refused({"run", none, "--device", "cpu", "--config", "stages=99"}).find("stages is 99"),
            std::string::npos);
  EXPECT_NE(refused({"run", none, "--device", "cpu", "--generator", "command"}).find("is empty"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(none)) << "nothing is written on failure";
  ASSERT_EQ(search("run").code, 0);
  EXPECT_NE(search("run").err.find("with a run; supported: one without"), std::string::npos);
}

}  // namespace
}  // namespace octavo::cli
