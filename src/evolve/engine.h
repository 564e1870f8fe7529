// SPDX-License-Identifier: Apache-2.0
// The search: generations of candidates, each through the gates in order; the fastest are measured
// again in fresh processes, admitted to the elites, and their levers reverted one by one.
//
// Every step is written to the ledger before the next begins, and every random choice follows from
// the run's seed: an engine on the ledger of a killed run takes up its next step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "evolve/generator.h"
#include "evolve/ledger.h"
#include "evolve/measure.h"
#include "evolve/selection.h"
#include "evolve/settings.h"
#include "octavo/evolve.hpp"

namespace octavo::evolve {

struct Parts {
  Gates gates;  // all of them in order, the performance gate among them
  Measurer* measurer = nullptr;
  std::map<std::string, std::unique_ptr<Generator>> generators;  // by arm
  std::vector<std::pair<std::string, std::string>> sources;      // name and text; see Guidance
  // Called with the candidates of a generation before they are judged; may compile them at once.
  std::function<void(const std::vector<Candidate>&)> prepare;
  std::function<void(const EvolveProgress&)> progress;
  std::function<bool()> stop;  // asked between steps: out of time, or interrupted
};

class Engine {
 public:
  static Result<Engine> make(Settings settings, Ledger& ledger, Parts parts);
  // True: the search is complete. False: it was stopped, and may go on later.
  Result<bool> run();

 private:
  Engine(Settings settings, ConfigSpace space, Ledger& ledger, Parts parts)
      : settings_(std::move(settings)),
        space_(std::move(space)),
        ledger_(ledger),
        parts_(std::move(parts)) {}
  Status load();

  Status run_generation(const std::string& arm, int generation);
  Status propose(const std::string& arm, int generation);
  std::vector<Record> seeds() const;
  std::vector<Record> proposed(const std::string& arm, int generation);
  Record record_of(const Proposal& proposal) const;
  Result<Candidate> candidate_of(const Proposal& proposal) const;
  Result<Candidate> with_levers(const Record& parent, const std::vector<Lever>& levers) const;

  // Runs the gates that have not run, and sets the verdict.
  void judge(Record& record);
  GateOutcome run_gate(Gate& gate, Record& record, Context& context) const;
  bool is_deferred(std::string_view gate, const Candidate& candidate) const;
  bool is_missing(std::string_view gate, const GateOutcome& outcome) const;
  bool take_over_duplicate(Record& record) const;
  Status consider(Record& record);
  void run_deferred_gates(Record& record);
  void measure_again(Record& record);
  Status revert_levers(const Record& record);
  Insight reverted(const Record& record, std::size_t lever) const;

  Guidance guidance_for(const std::string& arm) const;
  std::vector<Record*> generation_of(const std::string& arm, int generation);
  Record* find(const std::string& id);
  const Record* find(const std::string& id) const { return const_cast<Engine*>(this)->find(id); }
  bool is_stopped();
  void spend();
  void show(const std::string& arm, int generation, const std::string& last);
  void make_directory(const Candidate& candidate) const;
  std::string directory_of(const Candidate& candidate) const;

  Settings settings_;
  ConfigSpace space_;
  Ledger& ledger_;
  Parts parts_;
  std::vector<std::unique_ptr<Record>> records_;
  std::vector<Insight> insights_;
  std::map<std::string, std::vector<Ranked>> elites_;  // by arm
  std::map<std::string, int> generations_;             // complete ones, by arm
  double spent_s_ = 0;
  double clock_s_ = 0;  // when time was last added
  bool stopped_ = false;
};

}  // namespace octavo::evolve
