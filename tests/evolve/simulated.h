// SPDX-License-Identifier: Apache-2.0
// A simulated chip and simulated gates, so that the search is tested on a machine without a GPU in
// milliseconds: times follow from the configuration, with noise, drift and what a process adds.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "evolve/config_space.h"
#include "evolve/engine.h"
#include "evolve/random.h"

namespace octavo::evolve {

inline double normal(Random& random) {
  const double u = 1 - random.unit();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * random.unit());
}

// One block of the two kernels, which take these times without noise. As on a chip that warms up,
// times drift by a tenth within a block, for both kernels alike.
inline Block simulated_block(const std::vector<double>& base_us,
                             const std::vector<double>& candidate_us, std::uint64_t seed,
                             int rounds, double noise = 0.004) {
  Random random(seed);
  Block block;
  for (std::size_t shape = 0; shape < base_us.size(); ++shape) {
    constexpr double kPlacement = 0.0005, kDrift = 0.1;
    const double of_base = std::exp(kPlacement * normal(random));
    const double of_candidate = std::exp(kPlacement * normal(random));
    Rounds times;
    for (int i = 0; i < rounds; ++i) {
      const double drift = 1 + kDrift * i / rounds;
      times.base_us.push_back(base_us[shape] * of_base * drift * std::exp(noise * normal(random)));
      times.candidate_us.push_back(candidate_us[shape] * of_candidate * drift *
                                   std::exp(noise * normal(random)));
    }
    block.push_back(std::move(times));
  }
  return block;
}

// Called at every step of the simulation; a test may end the process there.
inline std::function<void()>& at_every_step() {
  static std::function<void()> step = [] {};
  return step;
}

// The time of a configuration: its distance from the best one, field by field.
class SimulatedChip : public Measurer {
 public:
  explicit SimulatedChip(ConfigSpace space, std::string best)
      : space_(std::move(space)), best_(*space_.complete(best)) {}

  double us(const std::string& config, std::size_t shape) const {
    double log_time = 0;
    for (const ConfigField& field : space_.fields()) {
      const auto place = [&](const std::string& of) {
        const std::string value = space_.value(of, field.name);
        return std::find(field.values.begin(), field.values.end(), value) - field.values.begin();
      };
      const double away = std::abs(static_cast<double>(place(config) - place(best_)));
      log_time += 0.04 * std::min(away, 3.0) * (shape % 2 == 0 ? 1 : 0.8);
    }
    return 10 * static_cast<double>(shape + 1) * std::exp(log_time);
  }

  Result<Block> measure(const Task& task, const MeasureRequest& request) override {
    ++measured;
    at_every_step()();
    std::vector<double> base, candidate;
    for (std::size_t i = 0; i < task.shapes.size(); ++i) {
      const std::string& of_base = request.base->config;
      base.push_back(us(of_base.empty() ? space_.base() : of_base, i));
      candidate.push_back(us(request.candidate->config, i));
    }
    return simulated_block(base, candidate, request.seed, request.rounds);
  }
  double floor_us(const Task&, const BenchCase&) override { return 0.1; }

  int measured = 0;

 private:
  ConfigSpace space_;
  std::string best_;
};

// Passes everything that is not planted for it. In the figures of the compile gate the
// configuration and the patch stand for the hash of the machine code.
class SimulatedGate : public Gate {
 public:
  explicit SimulatedGate(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  GateOutcome judge(const Candidate& candidate, const Context&) override {
    at_every_step()();
    GateOutcome outcome{Verdict::passed, "Passed.", {}};
    if (name_ == "compile")
      outcome.figures = {{"sass_sha256", candidate.config + candidate.patch},
                         {"source_sha256", "0"},
                         {"registers", 168},
                         {"spill_bytes", 0},
                         {"smem_bytes", 1024}};
    if (candidate.patch.find(name_ + " must reject") != std::string::npos)
      outcome = {Verdict::rejected, "Planted.", {}};
    return outcome;
  }

 private:
  std::string name_;
};

// A configuration of the Hopper kernel, far from the simulated best one.
inline constexpr const char* kStart =
    "Sm90ForwardConfig{head_dim=64,warpgroups=2,block_n=64,stages=2}";
inline constexpr const char* kBest = "warpgroups=3,block_n=128,stages=3";

inline Settings simulated_settings() {
  Settings settings;
  settings.config = kStart;
  settings.task.kernel = "sm90_forward";
  settings.task.shapes = {{"short", 1, 8, 512, 64}, {"long", 2, 8, 2048, 64}};
  settings.task.device = {Device::Kind::cuda, 0};
  settings.task.base_config = ConfigSpace::around(kStart)->base();
  settings.controls = {"random", "best_of_n"};
  settings.generations = 6;
  settings.population = 6;
  settings.seed = 7;
  return settings;
}

struct Simulation {
  explicit Simulation(const Settings& settings)
      : chip(*ConfigSpace::around(settings.config), kBest) {}

  Parts parts(const Settings& settings) {
    Parts made;
    for (const char* gate : {"policy", "compile", "emulator", "correctness", "sanitizer"})
      made.gates.push_back(std::make_unique<SimulatedGate>(gate));
    made.gates.push_back(std::make_unique<PerformanceGate>(chip, settings.rounds));
    made.gates.push_back(std::make_unique<SimulatedGate>("counters"));
    made.measurer = &chip;
    made.generators["evolve"] = config_generator();
    made.generators["random"] = random_generator();
    made.generators["best_of_n"] = best_of_n_generator();
    return made;
  }

  SimulatedChip chip;
};

}  // namespace octavo::evolve
