// SPDX-License-Identifier: Apache-2.0
#include "evolve/config_space.h"

#include <gtest/gtest.h>

#include <set>

#include "evolve/generator.h"
#include "evolve/random.h"
#include "simulated.h"

namespace octavo::evolve {
namespace {

TEST(EvolveConfigSpace, CompletesAndRefuses) {
  const Result<ConfigSpace> space = ConfigSpace::around(kStart);
  ASSERT_TRUE(space.ok()) << space.status().message();
  EXPECT_EQ(space->kernel(), "sm90_forward");
  const Result<std::string> config = space->complete("stages=3,block_n=128");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(space->value(*config, "stages"), "3");
  EXPECT_EQ(space->value(*config, "warpgroups"), "2");
  const std::vector<Lever> levers = space->levers(space->base(), *config);
  ASSERT_EQ(levers.size(), 2U);
  EXPECT_EQ(levers[0].config, "block_n=128");
  EXPECT_EQ(levers[1].config, "stages=3");
  EXPECT_EQ(*space->complete("stages=2,block_n=64", *config), space->base());
  for (const char* refused : {"stages=99", "element=bf16", "head_dim=128", "no_such_field=1",
                              "block_n=256,stages=6", "output.amax=true", "scores=f16", "="})
    EXPECT_FALSE(space->complete(refused).ok()) << refused;
  EXPECT_NE(space->complete("element=bf16").status().message().find("changes what is computed"),
            std::string::npos);
  EXPECT_FALSE(ConfigSpace::around("Sm90ForwardConfig{stages=77}").ok());
  EXPECT_FALSE(ConfigSpace::around("DecodeConfig{}").ok());
}

TEST(EvolveConfigSpace, OfTheOlderKernel) {
  const Result<ConfigSpace> space = ConfigSpace::around("arch=90,head_dim=64");
  ASSERT_TRUE(space.ok()) << space.status().message();
  EXPECT_EQ(space->kernel(), "sm80_forward");
  EXPECT_TRUE(space->complete("stages=3").ok());
  EXPECT_FALSE(space->complete("arch=80").ok());
  EXPECT_FALSE(space->complete("exp=polynomial").ok());
}

TEST(EvolveConfigSpace, ListsAllOnce) {
  const std::vector<std::string> all = ConfigSpace::around(kStart)->all(300);
  EXPECT_EQ(all.size(), 300U);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
}

class Proposes : public ::testing::TestWithParam<const char*> {};

std::unique_ptr<Generator> generator_named(std::string_view name) {
  return name == "config"      ? config_generator()
         : name == "random"    ? random_generator()
         : name == "best_of_n" ? best_of_n_generator()
                               : exhaustive_generator();
}

// Every proposal is feasible, new and reproducible.
TEST_P(Proposes, FeasibleNewConfigurations) {
  const Settings settings = simulated_settings();
  const ConfigSpace space = *ConfigSpace::around(kStart);
  Guidance guidance;
  guidance.task = &settings.task;
  guidance.space = &space;
  guidance.current.id = kBaseId;
  guidance.current.config = space.base();
  const std::string other = *space.complete("warpgroups=3,block_n=128");
  for (const auto& [id, config] : {std::pair{"base", space.base()}, {"c2", other}}) {
    Elite elite;
    elite.candidate.id = id;
    elite.candidate.config = config;
    guidance.elites.push_back(elite);
  }
  const std::string known = *space.complete("stages=3");
  const Request request{.guidance = guidance,
                        .generation = 1,
                        .count = 20,
                        .seed = 5,
                        .is_known = [&](const std::string& c) {
                          return c == known || c == other || c == space.base();
                        }};
  const std::vector<Proposal> proposals = generator_named(GetParam())->propose(request);
  EXPECT_EQ(proposals.size(), 20U);
  std::set<std::string> seen = {known, other, space.base()};
  for (const Proposal& proposal : proposals) {
    std::string fields;
    for (const Lever& lever : proposal.levers) fields += (fields.empty() ? "" : ",") + lever.config;
    const Result<std::string> config =
        space.complete(fields, proposal.parent == "c2" ? other : space.base());
    ASSERT_TRUE(config.ok()) << fields << ": " << config.status().message();
    EXPECT_TRUE(seen.insert(*config).second) << *config;
  }
  const std::vector<Proposal> again = generator_named(GetParam())->propose(request);
  ASSERT_EQ(again.size(), proposals.size());
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_EQ(again[i].levers, proposals[i].levers);
}
INSTANTIATE_TEST_SUITE_P(EvolveGenerators, Proposes,
                         ::testing::Values("config", "random", "best_of_n", "exhaustive"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace octavo::evolve
