// SPDX-License-Identifier: Apache-2.0
// The script of the documentation, examples/evolve_ladder.json: the gates that need no compiler for
// the CPU judge its candidates as the page says.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "evolve/gates/standard_gates.h"
#include "evolve/generator.h"
#include "gpu/jit/nvrtc.h"

namespace octavo::evolve {
namespace {

TEST(EvolveExample, PoliciesAndCompilation) {
  std::stringstream script;
  script << std::ifstream(OCTAVO_SOURCE_DIR "/examples/evolve_ladder.json").rdbuf();
  const Result<std::unique_ptr<Generator>> generator = scripted_generator(script.str());
  ASSERT_TRUE(generator.ok()) << generator.status().message();
  Task task;
  task.kernel = "ladder";
  task.shapes = {{"mission", 1, 8, 512, 64}};
  task.base_config = "rung=tensor_cores,head_dim=64";
  const Guidance guidance;
  const Request request{.guidance = guidance, .generation = 1, .count = 100, .is_known = {}};
  const std::vector<Proposal> proposals = (*generator)->propose(request);
  EXPECT_EQ(proposals.size(), 11U);
  std::map<std::string, std::string> rejected_by;
  for (const Proposal& proposal : proposals) {
    ASSERT_EQ(proposal.levers.size(), 1U);
    Candidate candidate;
    candidate.kernel = task.kernel;
    candidate.config = task.base_config;
    candidate.patch = proposal.levers[0].patch;
    const std::string& tag = proposal.levers[0].tag;
    const Context context{.task = task, .directory = ::testing::TempDir()};
    if (policy_gate()->judge(candidate, context).verdict == Verdict::rejected)
      rejected_by[tag] = "policy";
    else if ((tag == "rolled loops" || tag == "ldmatrix of V") && nvrtc_version().ok() &&
             compile_gate()->judge(candidate, context).verdict == Verdict::rejected)
      rejected_by[tag] = "compile";
  }
  std::map<std::string, std::string> expected = {{"one shape only", "policy"},
                                                 {"a file elsewhere", "policy"},
                                                 {"context that is not there", "policy"}};
  if (nvrtc_version().ok()) expected["rolled loops"] = "compile";
  EXPECT_EQ(rejected_by, expected);
}

}  // namespace
}  // namespace octavo::evolve
