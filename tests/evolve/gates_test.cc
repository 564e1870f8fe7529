// SPDX-License-Identifier: Apache-2.0
// The gates on corpora of patches: cheats, faulty kernels, and changes that are as good as the
// original. Each file says which gate has to stop it. The corpora change one small kernel, which
// every compiler takes in a fraction of a second.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "emulator/long.h"
#include "evolve/candidate_files.h"
#include "evolve/gates/host_kernel.h"
#include "evolve/gates/policy.h"
#include "evolve/gates/standard_gates.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/temporary_directory.h"

namespace octavo::evolve {
namespace {

struct Judged {
  std::string gate;  // the one that did not let it pass; empty: all did
  GateOutcome outcome;
};

Judged judge(const Candidate& candidate, const Task& task, const Gates& gates) {
  const TemporaryDirectory folder;
  Context context{.task = task, .seed = 20261119, .directory = folder.path()};
  Judged judged;
  for (const auto& gate : gates) {
    judged.outcome = gate->judge(candidate, context);
    context.figures[std::string(gate->name())] = judged.outcome.figures;
    if (judged.outcome.verdict != Verdict::passed) {
      judged.gate = gate->name();
      return judged;
    }
  }
  return judged;
}

// All but the sanitizer, which needs a GPU.
Gates gates_here(bool compile) {
  Gates gates;
  gates.push_back(policy_gate());
  if (compile && nvrtc_version().ok()) gates.push_back(compile_gate());
  gates.push_back(emulator_gate());
  gates.push_back(correctness_gate());
  gates.push_back(counters_gate());
  return gates;
}

void expect_all_caught(const std::string& folder, bool compile) {
  const Task task = ladder_task();
  const Gates gates = gates_here(compile);
  std::map<std::string, int> caught;
  int accepted = 0, number = 0;
  for (const CandidateFile& file : candidate_files(folder)) {
    // Without OCTAVO_TEST_LONG every third file that has to be compiled, to save half a minute.
    if (file.caught_by == "emulator" && number++ % 3 != 0 && !test_long()) continue;
    const Judged judged = judge(ladder_candidate(file.patch), task, gates);
    accepted += judged.gate.empty() ? 1 : 0;
    ++caught[judged.gate];
    EXPECT_EQ(judged.gate, file.caught_by) << file.name << ": " << judged.outcome.reason;
    EXPECT_EQ(judged.outcome.verdict, Verdict::rejected) << file.name;
    EXPECT_FALSE(judged.outcome.reason.empty()) << file.name;
    const auto rule = judged.outcome.figures.find("rule");
    if (judged.gate == "policy") {
      EXPECT_TRUE(rule != judged.outcome.figures.end() && *rule != "text") << file.name;
    }
    // A kernel that did not run says nothing.
    if (judged.gate == "emulator" || judged.gate == "correctness") {
      EXPECT_GE(judged.outcome.figures.value("failures", 0), 1)
          << file.name << ": " << judged.outcome.reason;
    }
    if (std::getenv("OCTAVO_TEST_SHOW") != nullptr)
      std::cout << file.name << " | " << judged.gate << " | " << judged.outcome.reason << "\n";
  }
  EXPECT_EQ(accepted, 0);
  for (const auto& [gate, count] : caught) std::cout << gate << ": " << count << "\n";
}

bool can_emulate() { return !host_compiler().empty(); }

TEST(EvolveGates, NoCheatIsAccepted) {
  if (!can_emulate()) GTEST_SKIP() << "no C++ compiler here";
  expect_all_caught("cheats", test_long());  // NVRTC takes a second for each
}

TEST(EvolveGates, NoMutantIsAccepted) {
  if (!can_emulate()) GTEST_SKIP() << "no C++ compiler here";
  expect_all_caught("mutants", false);
}

TEST(EvolveGates, ChangesThatAreRightPass) {
  if (!can_emulate()) GTEST_SKIP() << "no C++ compiler here";
  const Task task = ladder_task();
  bool compile = true;
  for (const CandidateFile& file : candidate_files("good")) {
    if (!compile && !test_long()) break;
    const Gates gates = gates_here(compile || test_long());
    compile = false;
    const Judged judged = judge(ladder_candidate(file.patch), task, gates);
    EXPECT_EQ(judged.gate, "") << file.name << ": " << judged.outcome.reason;
  }
}

// Every rule of the policy stops some cheat, so none has stopped working.
TEST(EvolveGates, EveryRuleStopsACheat) {
  const Task task = ladder_task();
  std::map<std::string, int> stopped;
  Gates policy;
  policy.push_back(policy_gate());
  for (const CandidateFile& file : candidate_files("cheats")) {
    const Judged judged = judge(ladder_candidate(file.patch), task, policy);
    if (!judged.gate.empty()) ++stopped[judged.outcome.figures["rule"]];
  }
  for (const char* const rule :
       {"directives", "spelling", "assembly", "attributes", "host_calls", "clocks", "state",
        "globals", "raw_memory", "shapes", "precision", "constants", "checks"})
    EXPECT_GE(stopped[rule], 1) << rule;
}

// The figures that the ledger keeps.
TEST(EvolveGates, TheCompileGateMeasuresTheMachineCode) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const Task task = ladder_task();
  Gates gates;
  gates.push_back(compile_gate());
  const Judged plain = judge(ladder_candidate(""), task, gates);
  EXPECT_EQ(plain.gate, "") << plain.outcome.reason;
  const nlohmann::json& figures = plain.outcome.figures;
  EXPECT_EQ(figures["sass_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(figures["source_sha256"].get<std::string>().size(), 64u);
  EXPECT_GT(figures["registers"], 30);
  EXPECT_EQ(figures["spill_bytes"], 0);
  EXPECT_GT(figures["smem_bytes"], 50000);
  EXPECT_GT(figures["mma"]["mma_f16"], 30);
  // The digest of the sources covers the patch.
  const CandidateFile other = candidate_files("good").front();
  const Judged changed = judge(ladder_candidate(other.patch), task, gates);
  EXPECT_NE(changed.outcome.figures["source_sha256"], figures["source_sha256"]);
}

TEST(EvolveGates, SourcesThatDoNotCompileAreRejected) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  const std::string patch =
      "--- a/device/ladder/async_copies.cuh\n+++ b/device/ladder/async_copies.cuh\n"
      "@@ -1,1 +1,2 @@\n+not c plus plus\n"
      " // Rung 4, asynchronous copies: the next blocks of K and V are on their way while this one "
      "is\n";
  Gates gates;
  gates.push_back(compile_gate());
  const Judged judged = judge(ladder_candidate(patch), ladder_task(), gates);
  EXPECT_EQ(judged.gate, "compile");
  EXPECT_NE(judged.outcome.reason.find("does not compile"), std::string::npos)
      << judged.outcome.reason;
}

TEST(EvolveGates, WithoutACompilerThePatchIsNotJudged) {
  const std::string before = std::getenv("OCTAVO_CXX") != nullptr ? std::getenv("OCTAVO_CXX") : "";
  setenv("OCTAVO_CXX", "/no/such/compiler", 1);
  Gates gates;
  gates.push_back(emulator_gate());
  const Judged judged =
      judge(ladder_candidate(candidate_files("good").front().patch), ladder_task(), gates);
  before.empty() ? unsetenv("OCTAVO_CXX") : setenv("OCTAVO_CXX", before.c_str(), 1);
  EXPECT_EQ(judged.outcome.verdict, Verdict::not_done);
  EXPECT_EQ(judged.outcome.reason, "There is no C++ compiler on the PATH, nor in OCTAVO_CXX.");
}

TEST(EvolveGates, WithoutAGpuTheSanitizerIsNotDone) {
  Gates gates;
  gates.push_back(sanitizer_gate());
  const Judged judged = judge(ladder_candidate(""), ladder_task(), gates);
  EXPECT_EQ(judged.outcome.verdict, Verdict::not_done);
}

// A patch that replaces one line of a source, which occurs there once.
std::string replacing(const std::string& name, const std::string& line, const std::string& by) {
  return "--- a/src/" + name + "\n+++ b/src/" + name + "\n@@ -1,1 +1,1 @@\n-" + line + "\n+" + by +
         "\n";
}

// The library's own kernels: the mask that all of them share, one key too long, and the same in
// other words.
TEST(EvolveGates, PatchesOfTheLibrarysKernels) {
  if (!can_emulate()) GTEST_SKIP() << "no C++ compiler here";
  if (!test_long()) GTEST_SKIP() << "make test-long";
  const std::string file = "device/core/block_range.cuh";
  const std::string line = "    keys.end = diagonal + p.window_right + 1;";
  for (const char* const kernel : {"sm80_forward", "sm90_forward"}) {
    Task task;
    task.kernel = kernel;
    task.device = {Device::Kind::emulator, 90};
    if (task.kernel == "sm90_forward") task.base_config = "warpgroups=2,block_n=64";
    Candidate candidate;
    candidate.kernel = kernel;
    candidate.config = task.base_config;
    candidate.patch = replacing(file, line, "    keys.end = diagonal + p.window_right + 2;");
    const Gates gates = gates_here(true);
    const Judged wrong = judge(candidate, task, gates);
    EXPECT_EQ(wrong.gate, "emulator") << kernel << ": " << wrong.outcome.reason;
    EXPECT_GE(wrong.outcome.figures.value("failures", 0), 1) << wrong.outcome.reason;
    candidate.patch = replacing(file, line, "    keys.end = p.window_right + 1 + diagonal;");
    const Judged right = judge(candidate, task, gates);
    EXPECT_EQ(right.gate, "") << kernel << ": " << right.outcome.reason;
  }
}

// Configurations: the same formats, and no coarser numerics.
TEST(EvolveGates, ConfigurationsKeepFormatsAndPrecision) {
  const auto rule = [](const char* kernel, const char* base, const char* config) {
    const auto finding = judge_config(kernel, base, config);
    return finding ? finding->reason : "";
  };
  EXPECT_EQ(rule("sm90_forward", "", "block_n=64,stages=4,warpgroups=2"), "");
  EXPECT_NE(rule("sm90_forward", "", "element=e4m3"), "");
  EXPECT_NE(rule("sm90_forward", "", "v_element=bf16"), "");
  EXPECT_NE(rule("sm90_forward", "element=e4m3,v_element=e4m3",
                 "element=e4m3,v_element=e4m3,scores=f16_fast"),
            "");
  EXPECT_NE(rule("sm90_forward", "sum_rounded_p=false", "sum_rounded_p=true"), "");
  EXPECT_NE(rule("sm90_forward", "", "head_dim=128"), "");
  EXPECT_EQ(rule("sm80_forward", "", "block_m=128,warps_m=8"), "");
  EXPECT_NE(rule("sm80_forward", "", "f16_scores=true"), "");
  EXPECT_NE(rule("sm80_forward", "", "exp=f16x2"), "");
  EXPECT_NE(rule("sm80_forward", "", "output.element=f32"), "");
  EXPECT_NE(rule("sm99_forward", "", "").find("sm80_forward, sm90_forward, ladder"),
            std::string::npos);
  EXPECT_NE(rule("sm80_forward", "", "block_q=3"), "");
  EXPECT_EQ(rule("ladder", "rung=tiled", "rung=async_copies,head_dim=64"), "");
  EXPECT_NE(rule("ladder", "rung=tiled", "rung=tiled,head_dim=128"), "");
}

}  // namespace
}  // namespace octavo::evolve
