// SPDX-License-Identifier: Apache-2.0
// What a generator is told: Free, Insight and Full differ in I2 and I3, in the document and in the
// prompt.
#include "evolve/guidance.h"

#include <gtest/gtest.h>

#include "simulated.h"

namespace octavo::evolve {
namespace {

Guidance guidance(const Settings& settings, const ConfigSpace& space, Information information) {
  Guidance g;
  g.task = &settings.task;
  g.space = &space;
  g.information = information;
  g.current.id = "c9";
  g.current.config = space.base();
  Elite elite;
  elite.candidate.id = "c9";
  elite.candidate.config = space.base();
  elite.speedup = {1.25, 1.2, 1.3};
  g.elites = {elite};
  g.insights = {{"c9", "stages", "stages: 2 -> 3", {1.04, 1.03, 1.05}, ""},
                {"c9", "patch", "left out", {}, "Cannot be reverted alone."}};
  g.sources = {{"device/sm90/forward.cuh", "text"}};
  return g;
}

TEST(EvolveGuidance, FreeInsightFull) {
  const Settings settings = simulated_settings();
  const ConfigSpace space = *ConfigSpace::around(kStart);
  for (const Information information :
       {Information::free, Information::insight, Information::full}) {
    SCOPED_TRACE(name(information));
    const nlohmann::json json = document(guidance(settings, space, information), 3, 5);
    EXPECT_EQ(json["protocol"], "octavo-evolve/1");
    EXPECT_EQ(json["count"], 5);
    EXPECT_EQ(json["task"]["current"]["id"], "c9");
    EXPECT_EQ(json["task"]["shapes"].size(), 2U);
    EXPECT_EQ(json["sources"]["device/sm90/forward.cuh"], "text");
    EXPECT_FALSE(json["levers"].empty());
    EXPECT_EQ(json.contains("elites"), information == Information::full);
    EXPECT_EQ(json.contains("insights"), information != Information::free);
    const auto prompt = json["prompt"].get<std::string>();
    EXPECT_EQ(prompt.find("1.250") != std::string::npos, information == Information::full);
    EXPECT_EQ(prompt.find("stages: 2 -> 3") != std::string::npos, information != Information::free);
    // Only measured effects are insights.
    EXPECT_EQ(json.dump().find("left out"), std::string::npos);
    EXPECT_EQ(*information_named(name(information)), information);
  }
  EXPECT_EQ(information_named("all").status().message(),
            "information is 'all'; supported: free, insight, full.");
}

TEST(EvolveGuidance, SourcesOfAKernel) {
  const auto sources = changeable_sources("sm90_forward", kStart);
  EXPECT_GT(sources.size(), 10U);
  for (const auto& [name, text] : sources) {
    EXPECT_TRUE(name.starts_with("device/")) << name;
    EXPECT_FALSE(name.starts_with("device/ptx/")) << name;
    EXPECT_FALSE(text.empty());
  }
}

TEST(EvolveGuidance, SettingsSurviveTheLedger) {
  Settings settings = simulated_settings();
  settings.seeds = {"stages=3"};
  settings.command = "python3 \"x\"";
  settings.may_be_missing = {"counters"};
  settings.seed = ~std::uint64_t{0};
  const nlohmann::json json = to_json(settings);
  const Result<Settings> read = settings_from_json(nlohmann::json::parse(json.dump()));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(*read), json);
  nlohmann::json broken = json;
  broken["task"]["shapes"][0].erase("heads");
  EXPECT_FALSE(settings_from_json(broken).ok());
}

}  // namespace
}  // namespace octavo::evolve
