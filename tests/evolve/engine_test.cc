// SPDX-License-Identifier: Apache-2.0
// The search on a simulated chip: it improves, it stops being fooled, it continues after kill -9,
// and it can be replayed.
#include "evolve/engine.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "simulated.h"

namespace octavo::evolve {
namespace {

class EvolveEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/evolve_engine_XXXXXX";
    ASSERT_NE(::mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::string directory(const std::string& name) const { return root_ + "/" + name; }

  // Runs or continues the search in a directory.
  static bool run(const std::string& path, const Settings& settings, Simulation& simulation,
                  Parts parts) {
    const bool exists = std::filesystem::exists(ledger_path(path));
    Result<Ledger> ledger =
        exists ? Ledger::open(path, false) : Ledger::create(path, to_json(settings));
    EXPECT_TRUE(ledger.ok()) << ledger.status().message();
    if (!ledger.ok()) return false;
    Result<Engine> engine = Engine::make(settings, *ledger, std::move(parts));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    const Result<bool> complete = engine->run();
    EXPECT_TRUE(complete.ok()) << complete.status().message();
    (void)simulation;
    return complete.ok() && *complete;
  }
  static bool run(const std::string& path, const Settings& settings) {
    Simulation simulation(settings);
    return run(path, settings, simulation, simulation.parts(settings));
  }
  static LedgerContents contents(const std::string& path) {
    return *Ledger::open(path, true)->read();
  }
  static const Record* find(const LedgerContents& all, const std::string& id) {
    for (const Record& record : all.records)
      if (record.candidate.id == id) return &record;
    return nullptr;
  }
  static std::vector<std::string> elites(const LedgerContents& all, const std::string& arm) {
    std::vector<std::string> last;
    for (const GenerationRecord& generation : all.generations)
      if (generation.arm == arm) last = generation.elites;
    return last;
  }
  // Everything in the ledger but times of day.
  static std::string dump(const std::string& path) {
    const Result<Database> database = Database::open(ledger_path(path), Database::Open::read_only);
    std::string text;
    for (const char* table :
         {"run WHERE key!='spent_s'", "candidates", "gates", "samples", "effects", "generations"}) {
      const Result<std::vector<Row>> rows = database->query(std::string("SELECT * FROM ") + table);
      for (const Row& row : *rows) {
        for (const Value& value : row)
          text +=
              (value.kind() == Value::Kind::text ? value.text() : std::to_string(value.real())) +
              "|";
        text += "\n";
      }
    }
    return text;
  }

  std::string root_;
};

TEST_F(EvolveEngine, FindsFasterKernelsThanTheControls) {
  Settings settings = simulated_settings();
  settings.generations = 8;
  ASSERT_TRUE(run(directory("a"), settings));
  const LedgerContents all = contents(directory("a"));
  const auto best = [&](const std::string& arm) {
    return admitted_speedup(*find(all, elites(all, arm).at(0)));
  };
  std::printf("evolve %.3f, random %.3f, best of N %.3f\n", best("evolve"), best("random"),
              best("best_of_n"));
  EXPECT_GT(best("evolve"), 1.05);
  EXPECT_GT(best("evolve"), best("random"));
  EXPECT_GE(best("evolve"), best("best_of_n"));
  // The same budget for all arms.
  std::map<std::string, int> proposed;
  for (const Record& record : all.records) ++proposed[record.arm];
  EXPECT_EQ(proposed["evolve"], 48);
  EXPECT_EQ(proposed["random"], 48);
  EXPECT_EQ(proposed["best_of_n"], 48);
  EXPECT_LE(elites(all, "evolve").size(), 3U);
  // Every elite but the base was measured again, passed the deferred gates, and had its levers
  // reverted.
  for (const std::string& id : elites(all, "evolve")) {
    if (id == kBaseId) continue;
    const Record& elite = *find(all, id);
    EXPECT_EQ(elite.again.size(), static_cast<std::size_t>(settings.again_blocks));
    EXPECT_NE(elite.figures("sanitizer"), nullptr);
    EXPECT_EQ(std::count_if(all.insights.begin(), all.insights.end(),
                            [&](const Insight& i) { return i.candidate == id; }),
              static_cast<std::ptrdiff_t>(elite.candidate.levers.size()));
  }
  EXPECT_TRUE(replay_differences(settings, all).empty());
}

TEST_F(EvolveEngine, TheSameSeedGivesTheSameLedger) {
  const Settings settings = simulated_settings();
  Settings other = settings;
  other.seed = 8;
  ASSERT_TRUE(run(directory("a"), settings));
  ASSERT_TRUE(run(directory("b"), settings));
  ASSERT_TRUE(run(directory("c"), other));
  EXPECT_EQ(dump(directory("a")), dump(directory("b")));
  EXPECT_NE(dump(directory("a")), dump(directory("c")));
}

// kill -9 at 20 moments drawn at random, then resume: the same ledger as without.
TEST_F(EvolveEngine, AKilledRunContinues) {
  Settings settings = simulated_settings();
  settings.generations = 4;
  ASSERT_TRUE(run(directory("whole"), settings));
  Random random(2026);
  int killed = 0;
  for (int moment = 0; moment < 20; ++moment) {
    const std::string path = directory("killed");
    // In a gate, in a measurement, or between two steps.
    const auto steps = static_cast<int>(random.below(35));
    const pid_t child = ::fork();
    if (child == 0) {
      int step = 0;
      at_every_step() = [&step, steps] {
        if (++step > steps) ::kill(::getpid(), SIGKILL);
      };
      Simulation simulation(settings);
      Parts parts = simulation.parts(settings);
      parts.stop = [] {
        at_every_step()();
        return false;
      };
      (void)run(path, settings, simulation, std::move(parts));
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  EXPECT_EQ(killed, 20);
  ASSERT_TRUE(run(directory("killed"), settings));
  EXPECT_EQ(dump(directory("killed")), dump(directory("whole")));
}

TEST_F(EvolveEngine, AKernelThatWasLuckyOnceIsNotAdmitted) {
  class Lucky final : public Generator {
   public:
    std::string_view name() const override { return "lucky"; }
    std::vector<Proposal> propose(const Request&) override {
      return {{kBaseId, "", {{"stages", "stages=3", ""}}, "", ""}};
    }
  };
  // The first measurement flatters.
  class Flattering final : public Measurer {
   public:
    Result<Block> measure(const Task&, const MeasureRequest& request) override {
      const double us = ++calls == 1 ? 9.5 : 10;
      return simulated_block({10, 10}, {us, us}, request.seed, request.rounds);
    }
    double floor_us(const Task&, const BenchCase&) override { return 0; }
    int calls = 0;
  } flattering;
  Settings settings = simulated_settings();
  settings.generations = 1;
  settings.controls = {};
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  parts.gates[5] = std::make_unique<PerformanceGate>(flattering, 20);
  parts.measurer = &flattering;
  parts.generators["evolve"] = std::make_unique<Lucky>();
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  ASSERT_EQ(all.records.size(), 2U);
  EXPECT_EQ(all.records[1].verdict, Verdict::passed);
  EXPECT_FALSE(all.records[1].is_admitted());
  EXPECT_NE(all.records[1].admission.find("As fast as the base"), std::string::npos)
      << all.records[1].admission;
  EXPECT_EQ(elites(all, "evolve"), std::vector<std::string>{kBaseId});
}

TEST_F(EvolveEngine, WithoutAGpuNothingIsMeasuredOrAdmitted) {
  Settings settings = simulated_settings();
  settings.task.device = {Device::Kind::cpu, 0};
  settings.generations = 2;
  Simulation simulation(settings);
  ASSERT_TRUE(run(directory("a"), settings, simulation, simulation.parts(settings)));
  EXPECT_EQ(simulation.chip.measured, 0);
  const LedgerContents all = contents(directory("a"));
  EXPECT_GT(all.records.size(), 10U);
  for (const Record& record : all.records) {
    if (record.candidate.id == kBaseId) continue;
    EXPECT_NE(record.verdict, Verdict::passed) << record.candidate.id;
    EXPECT_FALSE(record.is_admitted());
  }
  EXPECT_EQ(all.records[2].verdict, Verdict::not_done);
  EXPECT_EQ(all.records[2].reason, "Not done: there is no GPU.");
}

// A gate that this machine cannot run blocks, unless the run allows it to be missing.
TEST_F(EvolveEngine, AGateThatIsNotDoneBlocks) {
  class NotDone final : public Gate {
   public:
    std::string_view name() const override { return "correctness"; }
    GateOutcome judge(const Candidate&, const Context&) override {
      return {Verdict::not_done, "Not here.", {}};
    }
  };
  for (const bool may_be_missing : {false, true}) {
    Settings settings = simulated_settings();
    settings.generations = 3;
    settings.controls = {};
    if (may_be_missing) settings.may_be_missing = {"correctness"};
    Simulation simulation(settings);
    Parts parts = simulation.parts(settings);
    parts.gates[3] = std::make_unique<NotDone>();
    const std::string path = directory(may_be_missing ? "may" : "must");
    ASSERT_TRUE(run(path, settings, simulation, std::move(parts)));
    const LedgerContents all = contents(path);
    EXPECT_EQ(elites(all, "evolve").size() > 1, may_be_missing);
    EXPECT_EQ(all.records[1].verdict == Verdict::not_done, !may_be_missing);
  }
}

TEST_F(EvolveEngine, TheSameMachineCodeIsNotMeasuredAgain) {
  Settings settings = simulated_settings();
  settings.generations = 2;
  settings.controls = {};
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  // The second generation proposes the first one's change with a comment in the source.
  parts.generators["evolve"] = *scripted_generator(R"([
      [{"parent": "base", "config": "stages=3"}],
      [{"parent": "base", "config": "stages=3"}]])");
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  ASSERT_EQ(all.records.size(), 3U);
  EXPECT_EQ(all.records[2].duplicate_of, "c2");
  EXPECT_EQ(all.records[2].verdict, all.records[1].verdict);
  // The gate, three blocks before the admission, one reversed lever.
  EXPECT_EQ(simulation.chip.measured, 5);
  EXPECT_EQ(elites(all, "evolve"), (std::vector<std::string>{"c2", kBaseId}));
}

TEST_F(EvolveEngine, EveryGateBlocksTheNext) {
  Settings settings = simulated_settings();
  settings.generations = 1;
  settings.controls = {};
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  std::string script = "[[";
  const std::vector<std::string> gates = {"policy",      "compile",   "emulator",
                                          "correctness", "sanitizer", "counters"};
  for (const std::string& gate : gates)
    script += (script.size() > 2 ? "," : "") +
              (R"({"parent":"base","config":"stages=3","patch":"# )" + gate + R"( must reject"})");
  parts.generators["evolve"] = *scripted_generator(script + "]]");
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  ASSERT_EQ(all.records.size(), 7U);
  for (std::size_t i = 0; i < gates.size(); ++i) {
    const Record& record = all.records[i + 1];
    EXPECT_EQ(record.verdict, Verdict::rejected);
    EXPECT_EQ(record.gate, gates[i]);
    EXPECT_EQ(record.gates.back().gate, gates[i]);  // none ran after it
  }
  EXPECT_EQ(elites(all, "evolve"), std::vector<std::string>{kBaseId});
}

// Whatever the generator sends is recorded, and the run goes on.
TEST_F(EvolveEngine, ABrokenGeneratorDoesNotEndTheRun) {
  Settings settings = simulated_settings();
  settings.generations = 4;
  settings.population = 3;
  settings.controls = {};
  const std::string program = directory("generator.sh");
  std::ofstream(program) << R"(input=$(cat)
case "$input" in
*'"generation":1,'*) echo 'no JSON at all' ;;
*'"generation":2,'*) exit 3 ;;
*'"generation":3,'*) echo '{"candidates":[{"config":"stages=99"},{"config":"element=e4m3"},{"patch":7}]}' ;;
*) echo '{"candidates":[{"parent":"base","config":"stages=3","rationale":"deeper"}]}' ;;
esac
)";
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  parts.generators["evolve"] = command_generator({.command = "sh " + program});
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  ASSERT_EQ(all.records.size(), 7U);
  const auto reason = [&](std::size_t i) { return all.records[i].reason; };
  for (std::size_t i = 1; i < 6; ++i) {
    EXPECT_EQ(all.records[i].gate, "generator");
    EXPECT_EQ(all.records[i].verdict, Verdict::rejected);
  }
  EXPECT_NE(reason(1).find("is not JSON"), std::string::npos) << reason(1);
  EXPECT_NE(reason(2).find("exit code 3"), std::string::npos) << reason(2);
  EXPECT_NE(reason(3).find("config.stages is 99"), std::string::npos) << reason(3);
  EXPECT_NE(reason(4).find("config.element is e4m3"), std::string::npos) << reason(4);
  EXPECT_NE(reason(5).find("patch is number"), std::string::npos) << reason(5);
  EXPECT_EQ(all.records[6].verdict, Verdict::passed) << reason(6);
  EXPECT_EQ(all.records[6].candidate.rationale, "deeper");
}

TEST_F(EvolveEngine, ReplayFindsAChangedLedger) {
  const Settings settings = simulated_settings();
  ASSERT_TRUE(run(directory("a"), settings));
  LedgerContents all = contents(directory("a"));
  EXPECT_TRUE(replay_differences(settings, all).empty());
  for (GenerationRecord& generation : all.generations)
    if (generation.arm == "evolve") std::swap(generation.elites.front(), generation.elites.back());
  EXPECT_FALSE(replay_differences(settings, all).empty());
  all = contents(directory("a"));
  for (Record& record : all.records)
    for (Block& block : record.again)
      for (Rounds& rounds : block) rounds.candidate_us = rounds.base_us;
  EXPECT_FALSE(replay_differences(settings, all).empty());
}

TEST_F(EvolveEngine, LeversAreRevertedOneByOne) {
  Settings settings = simulated_settings();
  settings.generations = 1;
  settings.controls = {};
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  // Four warpgroups fit with 64 keys, not with the 128 of the other lever... both are measured.
  parts.generators["evolve"] = *scripted_generator(R"([
      [{"parent": "base", "levers": [{"tag": "warpgroups", "config": "warpgroups=3"},
                                     {"tag": "stages", "config": "stages=3"}]}]])");
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  ASSERT_EQ(all.insights.size(), 2U);
  EXPECT_EQ(all.insights[0].change, "warpgroups: 2 -> 3");
  EXPECT_EQ(all.insights[1].change, "stages: 2 -> 3");
  for (const Insight& insight : all.insights) {
    EXPECT_EQ(insight.not_measured, "");
    EXPECT_NEAR(insight.speedup.value, std::exp(0.04 * 0.9), 0.004);
  }
}

TEST_F(EvolveEngine, ImpossibleTimesAreRejected) {
  class Instant final : public Measurer {
   public:
    Result<Block> measure(const Task&, const MeasureRequest& request) override {
      return simulated_block({10, 10}, {9, 0.01}, request.seed, request.rounds);
    }
    double floor_us(const Task&, const BenchCase&) override { return 1; }
  } instant;
  Settings settings = simulated_settings();
  settings.generations = 1;
  settings.controls = {};
  Simulation simulation(settings);
  Parts parts = simulation.parts(settings);
  parts.gates[5] = std::make_unique<PerformanceGate>(instant, 20);
  ASSERT_TRUE(run(directory("a"), settings, simulation, std::move(parts)));
  const LedgerContents all = contents(directory("a"));
  for (const Record& record : all.records) {
    if (record.candidate.id == kBaseId) continue;
    EXPECT_EQ(record.verdict, Verdict::rejected);
    EXPECT_TRUE(record.reason.starts_with("Impossible")) << record.reason;
  }
  EXPECT_TRUE(replay_differences(settings, all).empty());
}

TEST(EvolvePerformanceGate, WithoutAGpuNothingIsRejected) {
  struct : Measurer {
    Status status;
    Result<Block> measure(const Task&, const MeasureRequest&) override { return status; }
    double floor_us(const Task&, const BenchCase&) override { return 0; }
  } broken;
  Task task;
  task.device.kind = Device::Kind::cuda;
  const Context context{task, 1, {}, 60, 0, {}};
  const Candidate base;
  PerformanceGate gate(broken, 20);
  broken.status = Status(ErrorCode::unsupported, "cuInit failed.");
  EXPECT_EQ(gate.judge(base, context).verdict, Verdict::not_done);
  broken.status = Status(ErrorCode::device_error, "It did not end in time.");
  EXPECT_EQ(gate.judge(base, context).verdict, Verdict::rejected);
}

}  // namespace
}  // namespace octavo::evolve
