// SPDX-License-Identifier: Apache-2.0
// The ledger of a run: every candidate with its origin, its gates, its samples and its verdict, in
// one SQLite file, and beside it a log of events that only grows.
//
// Each step of the search is one transaction, so a killed run continues after its last step. Times
// of day and durations are in the log and in the key spent_s alone: with the same seed and the same
// measurements two ledgers are equal, whether or not one was interrupted.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/candidate.h"
#include "evolve/database.h"
#include "evolve/gate.h"
#include "evolve/guidance.h"
#include "evolve/statistics.h"

namespace octavo::evolve {

// The arms of a search: the kernels it starts from, and the search itself. The others are controls.
inline constexpr const char* kSeedArm = "seed";
inline constexpr const char* kMainArm = "evolve";

// One gate's outcome for one candidate.
struct GateRecord {
  std::string gate;
  Verdict verdict = Verdict::not_done;
  std::string reason;
  nlohmann::json figures = nlohmann::json::object();  // without samples
  bool at_admission = false;
};

// A row of the table of candidates, with what belongs to it.
struct Record {
  Candidate candidate;
  std::string arm;                   // kSeedArm, kMainArm, or a control: "random", "best_of_n"
  std::string digest;                // of the content
  std::optional<Verdict> verdict{};  // none: not judged yet
  std::string gate, reason;          // the gate that decided
  std::string duplicate_of;          // has the same machine code as this earlier candidate
  std::vector<GateRecord> gates;
  std::vector<Block> first, again;  // samples of the performance gate, and before the admission
  std::string admission;            // why it was not admitted; "admitted"; empty: not considered
  bool is_admitted() const { return admission == "admitted"; }
  const nlohmann::json* figures(std::string_view gate_name) const;  // null: none
};
std::string_view name(Verdict verdict);
Verdict verdict_named(std::string_view text);

struct GenerationRecord {
  std::string arm;
  int generation = 0;
  std::vector<std::string> elites;  // ids, best first
};

struct LedgerContents {
  nlohmann::json settings;
  std::vector<Record> records;  // in the order of their numbers
  std::vector<Insight> insights;
  std::vector<GenerationRecord> generations;
  double spent_s = 0;
  const Record* find(const std::string& id) const;  // null: none
};

class Ledger {
 public:
  static constexpr int kSchema = 1;
  // A new run in a directory that has none. `settings` is what a resumed run needs.
  static Result<Ledger> create(const std::string& directory, const nlohmann::json& settings);
  // An existing run; read_only does not change anything, not even the log.
  static Result<Ledger> open(const std::string& directory, bool read_only);
  Ledger(Ledger&& other) noexcept;
  Ledger& operator=(Ledger&&) = delete;
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;
  ~Ledger();

  Result<LedgerContents> read() const;

  // One transaction each.
  Status add(const std::vector<Record>& records);  // proposed, not judged
  Status judged(const Record& record);
  Status considered(const Record& record);  // its admission, with samples and the gates of it
  Status add(const Insight& insight, int position);
  Status add(const GenerationRecord& generation);
  Status spend(double seconds);  // adds to the time spent

  // A line of the log: {"event": what, ...}.
  void log(std::string_view what, nlohmann::json more = nlohmann::json::object());
  const std::string& directory() const { return directory_; }

 private:
  Ledger(Database database, std::string directory)
      : database_(std::move(database)), directory_(std::move(directory)) {}
  Status open_log();
  Status write_gates(const Record& record, bool at_admission);
  Status write_samples(const std::string& id, std::string_view phase,
                       const std::vector<Block>& blocks);
  Status read_records(LedgerContents& contents) const;

  Database database_;
  std::string directory_;
  int log_ = -1;
};

std::string ledger_path(const std::string& directory);

}  // namespace octavo::evolve
