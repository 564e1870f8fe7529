// SPDX-License-Identifier: Apache-2.0
// The report, the page and the export of a simulated run.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "octavo/evolve.hpp"
#include "simulated.h"

namespace octavo::evolve {
namespace {

class EvolveSummary : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/evolve_summary_XXXXXX";
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void run(const Settings& settings, std::unique_ptr<Generator> generator = nullptr) {
    Simulation simulation(settings);
    Parts parts = simulation.parts(settings);
    if (generator) parts.generators["evolve"] = std::move(generator);
    Result<Ledger> ledger = Ledger::create(root_ + "/run", to_json(settings));
    ASSERT_TRUE(ledger.ok()) << ledger.status().message();
    Result<Engine> engine = Engine::make(settings, *ledger, std::move(parts));
    ASSERT_TRUE(engine.ok() && engine->run().ok());
  }
  std::string root_;
};

TEST_F(EvolveSummary, ReportsAndExports) {
  Settings settings = simulated_settings();
  settings.generations = 4;
  settings.controls = {"best_of_n"};
  run(settings);
  const Result<EvolveReport> report = evolve_replay(root_ + "/run");
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_TRUE(report->finished);
  EXPECT_TRUE(report->differences.empty());
  EXPECT_EQ(report->candidates, 49);
  EXPECT_FALSE(report->effects.empty());
  ASSERT_GE(report->elites.size(), 2U);
  const EvolveElite& best = report->elites[0];
  EXPECT_EQ(best.arm, "evolve");
  EXPECT_GT(best.low, 1.005);
  EXPECT_EQ(best.shape_us.size(), 2U);
  EXPECT_GT(best.peak_fractions[0], 0);
  EXPECT_LT(best.peak_fractions[0], 1);
  EXPECT_NE(best.audit.find("passed policy, compile, correctness, performance, emulator"),
            std::string::npos)
      << best.audit;
  EXPECT_NE(best.audit.find("3 fresh processes"), std::string::npos);

  const nlohmann::json json = nlohmann::json::parse(to_json(*report));
  EXPECT_EQ(json.at("kind"), "evolve");
  EXPECT_EQ(json.at("elites")[0].at("id"), best.id);

  const Result<EvolveExport> exported = evolve_export(root_ + "/run");
  ASSERT_TRUE(exported.ok());
  EXPECT_NE(exported->rows.find("{.config = {.head_dim = 64, .warpgroups = "), std::string::npos)
      << exported->rows;
  EXPECT_NE(exported->rows.find(".estimate = {"), std::string::npos);
  EXPECT_TRUE(exported->patch.empty());
  EXPECT_EQ(exported->notes.size(), 1U);

  const Result<std::string> page = evolve_html(root_ + "/run");
  ASSERT_TRUE(page.ok());
  for (const char* part : {"<svg", "Lineage", "Effect of each lever", "best_of_n", "Each case",
                           "3 fresh processes", "Elites and their audit"})
    EXPECT_NE(page->find(part), std::string::npos) << part;
  EXPECT_EQ(page->find("http"), std::string::npos);
}

// What a generator writes is shown as text.
TEST_F(EvolveSummary, EscapesWhatGeneratorsWrite) {
  Settings settings = simulated_settings();
  settings.generations = 1;
  settings.controls = {};
  run(settings, *scripted_generator(R"([[
      {"parent": "base", "tag": "<script>alert(1)</script>", "patch": "# <b>&amp;</b>\u0007",
       "config": "stages=3"},
      {"parent": "<img src=x>", "config": "stages=4"}]])"));
  const Result<std::string> page = evolve_html(root_ + "/run");
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->find("<script"), std::string::npos);
  EXPECT_EQ(page->find("<img"), std::string::npos);
  EXPECT_NE(page->find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page->find("&lt;img"), std::string::npos);
  EXPECT_EQ(page->find('\a'), std::string::npos);
  const Result<EvolveExport> exported = evolve_export(root_ + "/run");
  ASSERT_TRUE(exported.ok());
  EXPECT_NE(exported->patch.find("# <b>"), std::string::npos);
  EXPECT_TRUE(exported->rows.empty());
}

}  // namespace
}  // namespace octavo::evolve
