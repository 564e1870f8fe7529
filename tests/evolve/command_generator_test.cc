// SPDX-License-Identifier: Apache-2.0
// Programs that propose candidates, and programs that do not.
#include <gtest/gtest.h>

#include "evolve/generator.h"
#include "simulated.h"

namespace octavo::evolve {
namespace {

std::vector<Proposal> run(const std::string& command, double limit_s = 20,
                          std::size_t most_bytes = std::size_t{1} << 20) {
  const Settings settings = simulated_settings();
  const ConfigSpace space = *ConfigSpace::around(kStart);
  Guidance guidance;
  guidance.task = &settings.task;
  guidance.space = &space;
  guidance.current.id = kBaseId;
  guidance.current.config = space.base();
  // More than a pipe holds.
  guidance.sources = {{"device/a.cuh", std::string(300000, 'x')}};
  const Request request{.guidance = guidance, .generation = 1, .count = 2, .is_known = {}};
  return command_generator({command, limit_s, most_bytes})->propose(request);
}

std::string refusal(const std::vector<Proposal>& proposals) {
  return proposals.size() == 1 ? proposals[0].refusal : "not one proposal";
}

TEST(EvolveCommand, ProposesCandidates) {
  const std::vector<Proposal> proposals =
      run(R"(cat >/dev/null; echo '{"candidates":[{"config":"stages=3","tag":"depth"},
      {"parent":"base","patch":"--- a","rationale":"why"},{"config":"stages=4"}]}')");
  ASSERT_EQ(proposals.size(), 2U);  // as many as were asked for
  EXPECT_EQ(proposals[0].parent, "current");
  EXPECT_EQ(proposals[0].levers, (std::vector<Lever>{{"depth", "stages=3", ""}}));
  EXPECT_EQ(proposals[1].levers, (std::vector<Lever>{{"patch", "", "--- a"}}));
  EXPECT_EQ(proposals[1].rationale, "why");
}

TEST(EvolveCommand, ReadsTheWholeDocument) {
  const std::vector<Proposal> proposals = run(
      R"(n=$(cat | tr -cd x | wc -c); [ $n -ge 300000 ] && echo '{"candidates":[{"config":"stages=3"}]}')");
  ASSERT_EQ(proposals.size(), 1U);
  EXPECT_EQ(proposals[0].refusal, "");
}

// A program need not read its input, and may write before it has read.
TEST(EvolveCommand, NeedNotRead) {
  EXPECT_EQ(refusal(run(R"(echo '{"candidates":[{"config":"stages=3"}]}')")), "");
}

TEST(EvolveCommand, WhatGoesWrongIsAReason) {
  EXPECT_EQ(refusal(run("sleep 100", 0.3)), "The generator did not end within 0.3 s.");
  EXPECT_EQ(refusal(run("exec >&-; sleep 100", 0.3)), "The generator did not end within 0.3 s.");
  EXPECT_EQ(refusal(run("exit 7")), "The generator ended with exit code 7.");
  EXPECT_EQ(refusal(run("kill -11 $$")), "The generator was ended by signal 11.");
  EXPECT_EQ(refusal(run("yes", 20, 100000)), "The generator wrote more than 100000 bytes.");
  EXPECT_NE(refusal(run("echo hello")).find("is not JSON; it begins 'hello"), std::string::npos);
  EXPECT_NE(refusal(run("no_such_program 2>/dev/null")).find("exit code 127"), std::string::npos);
  EXPECT_NE(refusal(run("echo '[]'")).find("no member candidates"), std::string::npos);
  EXPECT_NE(refusal(run(R"(echo '{"candidates":3}')")).find("supported: an array"),
            std::string::npos);
  EXPECT_NE(refusal(run(R"(printf '%100000s' | tr ' ' '[')")).find("is not JSON"),
            std::string::npos);
  EXPECT_TRUE(run(R"(echo '{"candidates":[]}')").empty());
}

// What it started ends with it.
TEST(EvolveCommand, LeavesNoProcessBehind) {
  const std::string file = ::testing::TempDir() + "/evolve_left_behind";
  (void)std::remove(file.c_str());
  (void)run("(sleep 1; touch " + file + ") & echo '{\"candidates\":[]}'; exec >&-", 20);
  ::sleep(2);
  EXPECT_NE(::access(file.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace octavo::evolve
