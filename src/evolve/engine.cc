// SPDX-License-Identifier: Apache-2.0
#include "evolve/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "evolve/random.h"

namespace octavo::evolve {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// "block_n: 64 -> 128", or the tag of a patch.
std::string change_text(const ConfigSpace& space, const std::string& before,
                        const std::string& after, const Lever& lever) {
  if (lever.config.empty()) return lever.tag;
  std::string text;
  for (const Lever& field : space.levers(before, after))
    if (lever.config.find(field.tag + "=") != std::string::npos)
      text += fmt::format("{}{}: {} -> {}", text.empty() ? "" : ", ", field.tag,
                          space.value(before, field.tag), space.value(after, field.tag));
  if (text.empty()) text = lever.tag;
  return lever.patch.empty() ? text : text + ", " + lever.tag;
}

}  // namespace

Result<Engine> Engine::make(Settings settings, Ledger& ledger, Parts parts) {
  Result<ConfigSpace> space = ConfigSpace::around(settings.config);
  if (!space.ok()) return space.status();
  Engine engine(std::move(settings), *std::move(space), ledger, std::move(parts));
  OCTAVO_RETURN_IF_ERROR(engine.load());
  return engine;
}

Status Engine::load() {
  Result<LedgerContents> contents = ledger_.read();
  if (!contents.ok()) return contents.status();
  for (Record& record : contents->records)
    records_.push_back(std::make_unique<Record>(std::move(record)));
  insights_ = std::move(contents->insights);
  spent_s_ = contents->spent_s;
  for (const GenerationRecord& generation : contents->generations) {
    std::vector<Ranked> elites;
    for (const std::string& id : generation.elites) {
      const Record* const record = find(id);
      if (record == nullptr)
        return {ErrorCode::invalid_argument,
                fmt::format("the ledger has no candidate {}, which is an elite.", printable(id))};
      elites.push_back({id, admitted_speedup(*record)});
    }
    elites_[generation.arm] = std::move(elites);
    generations_[generation.arm] = generation.generation + 1;
  }
  return {};
}

Result<bool> Engine::run() {
  clock_s_ = now_s();
  ledger_.log("started", {{"candidates", records_.size()}});
  if (generations_[kSeedArm] == 0) OCTAVO_RETURN_IF_ERROR(run_generation(kSeedArm, 0));
  for (int generation = 1; generation <= settings_.generations; ++generation)
    for (const std::string& arm : arms_of(settings_)) {
      if (stopped_) break;
      if (!elites_.contains(arm)) {
        elites_[arm] = elites_[kSeedArm];
        generations_[arm] = 1;
      }
      if (generations_[arm] > generation) continue;
      OCTAVO_RETURN_IF_ERROR(run_generation(arm, generation));
    }
  spend();
  ledger_.log(stopped_ ? "stopped" : "finished");
  return !stopped_;
}

Status Engine::run_generation(const std::string& arm, int generation) {
  if (is_stopped()) return {};
  if (generation_of(arm, generation).empty()) OCTAVO_RETURN_IF_ERROR(propose(arm, generation));
  const std::vector<Record*> records = generation_of(arm, generation);
  std::vector<Candidate> pending;
  for (const Record* record : records)
    if (!record->verdict && !record->candidate.config.empty()) {
      make_directory(record->candidate);
      pending.push_back(record->candidate);
    }
  if (parts_.prepare && !pending.empty()) parts_.prepare(pending);
  for (Record* record : records) {
    if (record->verdict) continue;
    if (is_stopped()) return {};
    judge(*record);
    OCTAVO_RETURN_IF_ERROR(ledger_.judged(*record));
    show(arm, generation, fmt::format("{}: {}", record->candidate.id, record->reason));
  }
  Status failed;
  const auto considered = [&](const Record& wanted) -> const Record* {
    Record* const record = find(wanted.candidate.id);
    if (stopped_ || !failed.ok() || is_stopped()) return nullptr;
    failed = consider(*record);
    return record;
  };
  const std::vector<Ranked> elites =
      select(elites_.contains(arm) ? elites_[arm] : std::vector<Ranked>{{kBaseId, 1}},
             {records.begin(), records.end()}, settings_.elites, considered);
  OCTAVO_RETURN_IF_ERROR(failed);
  if (stopped_) return {};
  std::vector<std::string> ids;
  for (const Ranked& elite : elites) ids.push_back(elite.id);
  std::error_code ignored;
  std::filesystem::remove_all(ledger_.directory() + "/candidates", ignored);
  OCTAVO_RETURN_IF_ERROR(ledger_.add(GenerationRecord{arm, generation, ids}));
  elites_[arm] = elites;
  generations_[arm] = generation + 1;
  show(arm, generation, fmt::format("generation {} of {}", generation, arm));
  return {};
}

Status Engine::propose(const std::string& arm, int generation) {
  std::vector<Record> fresh = arm == kSeedArm ? seeds() : proposed(arm, generation);
  // An id is the number of its row; the base has row 1.
  std::size_t number = records_.size();
  for (Record& record : fresh) {
    ++number;
    record.arm = arm;
    record.candidate.generation = generation;
    record.digest = content_digest(record.candidate);
    if (record.candidate.id.empty()) record.candidate.id = fmt::format("c{}", number);
  }
  OCTAVO_RETURN_IF_ERROR(ledger_.add(fresh));
  for (Record& record : fresh) records_.push_back(std::make_unique<Record>(std::move(record)));
  return {};
}

// The kernel that the search starts from, and the others that it was given.
std::vector<Record> Engine::seeds() const {
  std::vector<Record> fresh(1);
  fresh[0].candidate.id = kBaseId;
  fresh[0].candidate.kernel = space_.kernel();
  fresh[0].candidate.config = space_.base();
  fresh[0].candidate.author = kSeedArm;
  for (const std::string& seed : settings_.seeds) {
    Record record;
    record.candidate.kernel = space_.kernel();
    record.candidate.author = kSeedArm;
    record.candidate.parents = {kBaseId};
    if (Result<std::string> config = space_.complete(seed); config.ok()) {
      record.candidate.levers = space_.levers(space_.base(), *config);
      record.candidate.config = *std::move(config);
    } else {
      record.reason = config.status().message();
    }
    fresh.push_back(std::move(record));
  }
  return fresh;
}

std::vector<Record> Engine::proposed(const std::string& arm, int generation) {
  const Guidance guidance = guidance_for(arm);
  const Request request{
      .guidance = guidance,
      .generation = generation,
      .count = settings_.population,
      .seed = seed_for(settings_.seed, arm, static_cast<std::uint64_t>(generation)),
      .is_known = [&](const std::string& config) {
        return std::any_of(records_.begin(), records_.end(), [&](const auto& r) {
          return (r->arm == arm || r->arm == kSeedArm) && r->candidate.patch.empty() &&
                 r->candidate.config == config;
        });
      }};
  Generator& generator = *parts_.generators.at(arm);
  std::vector<Record> fresh;
  for (const Proposal& proposal : generator.propose(request)) {
    fresh.push_back(record_of(proposal));
    fresh.back().candidate.author = generator.name();
  }
  return fresh;
}

Record Engine::record_of(const Proposal& proposal) const {
  Record record;
  Result<Candidate> candidate = candidate_of(proposal);
  if (candidate.ok()) {
    record.candidate = *std::move(candidate);
    return record;
  }
  // Rejected when it is judged, with this reason.
  record.candidate.kernel = space_.kernel();
  record.candidate.levers = proposal.levers;
  record.candidate.rationale = proposal.rationale;
  record.reason = candidate.status().message();
  return record;
}

Result<Candidate> Engine::candidate_of(const Proposal& proposal) const {
  if (!proposal.refusal.empty()) return Status(ErrorCode::invalid_argument, proposal.refusal);
  const auto known = [&](const std::string& id) -> const Record* {
    const auto best = elites_.find(kMainArm);
    if (id == "current")
      return find(best == elites_.end() || best->second.empty() ? kBaseId : best->second[0].id);
    return find(id);
  };
  const Record* const parent = known(proposal.parent);
  if (parent == nullptr || parent->candidate.config.empty())
    return invalid("the parent", fmt::format("'{}'", proposal.parent),
                   "current, base, the id of an elite");
  Result<Candidate> candidate = with_levers(*parent, proposal.levers);
  if (!candidate.ok()) return candidate;
  candidate->parents = {parent->candidate.id};
  if (!proposal.other_parent.empty()) candidate->parents.push_back(proposal.other_parent);
  candidate->rationale = proposal.rationale;
  return candidate;
}

Result<Candidate> Engine::with_levers(const Record& parent,
                                      const std::vector<Lever>& levers) const {
  Candidate candidate;
  candidate.kernel = space_.kernel();
  candidate.levers = levers;
  candidate.patch = parent.candidate.patch;
  std::string fields;
  for (const Lever& lever : levers) {
    if (!lever.config.empty()) fields += (fields.empty() ? "" : ",") + lever.config;
    candidate.patch += lever.patch;
    if (!lever.patch.empty() && lever.patch.back() != '\n') candidate.patch += '\n';
  }
  Result<std::string> config = space_.complete(fields, parent.candidate.config);
  if (!config.ok()) return config.status();
  candidate.config = *std::move(config);
  return candidate;
}

Guidance Engine::guidance_for(const std::string& arm) const {
  Guidance guidance;
  guidance.task = &settings_.task;
  guidance.space = &space_;
  guidance.information = settings_.information;
  guidance.sources = parts_.sources;
  for (const Ranked& ranked : elites_.at(arm)) {
    const Record& record = *find(ranked.id);
    const Comparison again = compare(record.again);
    guidance.elites.push_back({record.candidate, again.speedup, again.shapes});
  }
  guidance.current =
      guidance.elites.empty() ? find(kBaseId)->candidate : guidance.elites.front().candidate;
  for (const Insight& insight : insights_)
    if (find(insight.candidate)->arm == arm) guidance.insights.push_back(insight);
  return guidance;
}

std::vector<Record*> Engine::generation_of(const std::string& arm, int generation) {
  std::vector<Record*> found;
  for (const auto& record : records_)
    if (record->arm == arm && record->candidate.generation == generation)
      found.push_back(record.get());
  return found;
}

Record* Engine::find(const std::string& id) {
  for (const auto& record : records_)
    if (record->candidate.id == id) return record.get();
  return nullptr;
}

bool Engine::is_stopped() {
  const double now = now_s();
  // Not at every step: a transaction waits for the disk.
  constexpr double kOftenS = 2;
  if (now - clock_s_ > kOftenS) spend();
  stopped_ = stopped_ || (parts_.stop && parts_.stop());
  return stopped_;
}

void Engine::spend() {
  const double now = now_s();
  spent_s_ += now - clock_s_;
  (void)ledger_.spend(now - clock_s_);
  clock_s_ = now;
}

void Engine::show(const std::string& arm, int generation, const std::string& last) {
  if (!parts_.progress) return;
  EvolveProgress status;
  status.arm = arm;
  status.generation = generation;
  status.generations = settings_.generations;
  for (const auto& record : records_) status.candidates += record->verdict ? 1 : 0;
  status.total = static_cast<std::int64_t>(settings_.generations) * settings_.population *
                     static_cast<std::int64_t>(1 + settings_.controls.size()) +
                 static_cast<std::int64_t>(settings_.seeds.size()) + 1;
  const auto best = elites_.find(kMainArm);
  if (best != elites_.end() && !best->second.empty()) {
    status.best = best->second[0].id;
    status.best_speedup = best->second[0].speedup;
  }
  status.seconds = spent_s_ + now_s() - clock_s_;
  status.last = last;
  parts_.progress(status);
}

// Empty: what a killed run has left there is not the candidate's.
void Engine::make_directory(const Candidate& candidate) const {
  std::error_code ignored;
  std::filesystem::remove_all(directory_of(candidate), ignored);
  std::filesystem::create_directories(directory_of(candidate), ignored);
}

std::string Engine::directory_of(const Candidate& candidate) const {
  return fmt::format("{}/candidates/{}", ledger_.directory(), candidate.id);
}

// ---------------------------------------------------------------------------------------------
// Gates

// The sources of a candidate without a patch are the shipped ones: what costs the most waits until
// the candidate is fast enough to be admitted.
bool Engine::is_deferred(std::string_view gate, const Candidate& candidate) const {
  return candidate.patch.empty() &&
         (gate == "emulator" || gate == "sanitizer" || gate == "counters");
}

bool Engine::is_missing(std::string_view gate, const GateOutcome& outcome) const {
  const std::vector<std::string>& gates = settings_.may_be_missing;
  return outcome.verdict == Verdict::not_done &&
         std::find(gates.begin(), gates.end(), gate) != gates.end();
}

GateOutcome Engine::run_gate(Gate& gate, Record& record, Context& context) const {
  GateOutcome outcome;
  try {
    outcome = gate.judge(record.candidate, context);
  } catch (const std::exception& error) {
    outcome = {Verdict::rejected, fmt::format("The gate failed: {}.", printable(error.what())), {}};
  }
  if (outcome.figures.is_object() && outcome.figures.contains("samples")) {
    record.first = blocks_from_json(outcome.figures["samples"]);
    outcome.figures.erase("samples");
  }
  if (!outcome.figures.is_object()) outcome.figures = nlohmann::json::object();
  context.figures[std::string(gate.name())] = outcome.figures;
  return outcome;
}

bool Engine::take_over_duplicate(Record& record) const {
  const auto code = [](const Record& r) -> std::string {
    const nlohmann::json* const figures = r.figures("compile");
    if (figures == nullptr || !figures->contains("sass_sha256")) return "";
    return fmt::format("{} {}", figures->at("sass_sha256").dump(),
                       figures->value("smem_bytes", nlohmann::json()).dump());
  };
  const std::string own = code(record);
  if (own.empty()) return false;
  for (const auto& other : records_) {
    if (other.get() == &record || !other->verdict || !other->duplicate_of.empty()) continue;
    if (code(*other) != own) continue;
    record.duplicate_of = other->candidate.id;
    record.verdict = other->verdict;
    record.gate = other->gate;
    record.reason =
        fmt::format("The same machine code as {}: {}", record.duplicate_of, other->reason);
    record.first = other->first;
    return true;
  }
  return false;
}

void Engine::judge(Record& record) {
  if (record.candidate.id == kBaseId) {
    record.verdict = Verdict::passed;
    record.reason = "The kernel that candidates are compared with.";
    return;
  }
  if (record.candidate.config.empty()) {  // what the generator sent cannot be a candidate
    record.verdict = Verdict::rejected;
    record.gate = "generator";
    return;
  }
  const std::string directory = directory_of(record.candidate);
  Context context{.task = settings_.task,
                  .seed = seed_for(settings_.seed, record.digest),
                  .directory = directory,
                  .time_limit_s = settings_.gate_limit_s};
  record.verdict = Verdict::passed;
  record.reason = "Passed every gate.";
  for (const auto& gate : parts_.gates) {
    if (is_deferred(gate->name(), record.candidate)) continue;
    const GateOutcome outcome = run_gate(*gate, record, context);
    record.gates.push_back(
        {std::string(gate->name()), outcome.verdict, outcome.reason, outcome.figures, false});
    if (outcome.verdict == Verdict::passed) {
      if (gate->name() == "compile" && take_over_duplicate(record)) break;
      continue;
    }
    if (is_missing(gate->name(), outcome)) continue;
    if (record.verdict == Verdict::passed || outcome.verdict == Verdict::rejected) {
      record.verdict = outcome.verdict;
      record.gate = gate->name();
      record.reason = outcome.reason;
    }
    if (outcome.verdict == Verdict::rejected) break;
  }
}

// ---------------------------------------------------------------------------------------------
// Admission

Status Engine::consider(Record& record) {
  if (record.admission.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(directory_of(record.candidate), ignored);
    run_deferred_gates(record);
    if (record.admission.empty()) measure_again(record);
    OCTAVO_RETURN_IF_ERROR(ledger_.considered(record));
  }
  return record.is_admitted() ? revert_levers(record) : Status();
}

void Engine::run_deferred_gates(Record& record) {
  const std::string directory = directory_of(record.candidate);
  Context context{.task = settings_.task,
                  .seed = seed_for(settings_.seed, record.digest, 1),
                  .directory = directory,
                  .time_limit_s = settings_.gate_limit_s};
  for (const GateRecord& gate : record.gates) context.figures[gate.gate] = gate.figures;
  for (const auto& gate : parts_.gates) {
    if (!is_deferred(gate->name(), record.candidate)) continue;
    const GateOutcome outcome = run_gate(*gate, record, context);
    record.gates.push_back(
        {std::string(gate->name()), outcome.verdict, outcome.reason, outcome.figures, true});
    if (outcome.verdict == Verdict::passed || is_missing(gate->name(), outcome)) continue;
    record.admission = fmt::format("{}: {}", gate->name(), outcome.reason);
    break;
  }
}

void Engine::measure_again(Record& record) {
  if (settings_.task.device.kind != Device::Kind::cuda) {
    record.admission = "Not admitted: there is no GPU.";
    return;
  }
  const Candidate base = base_of(settings_.task);
  for (int block = 0; block < settings_.again_blocks; ++block) {
    const std::uint64_t seed =
        seed_for(settings_.seed, record.digest + " again", static_cast<std::uint64_t>(block));
    Result<Block> measured = parts_.measurer->measure(
        settings_.task, {&base, &record.candidate, seed, settings_.rounds,
                         directory_of(record.candidate), settings_.gate_limit_s});
    if (!measured.ok()) {
      record.admission = measured.status().message();
      return;
    }
    record.again.push_back(*std::move(measured));
  }
  record.admission = impossible_time(settings_.task, record.again, *parts_.measurer);
  if (record.admission.empty()) record.admission = objection(compare(record.again), settings_.task);
  if (record.admission.empty()) record.admission = "admitted";
}

Status Engine::revert_levers(const Record& record) {
  const auto known = std::count_if(insights_.begin(), insights_.end(), [&](const Insight& i) {
    return i.candidate == record.candidate.id;
  });
  for (auto i = static_cast<std::size_t>(known); i < record.candidate.levers.size(); ++i) {
    if (is_stopped()) return {};
    Insight insight = reverted(record, i);
    OCTAVO_RETURN_IF_ERROR(ledger_.add(insight, static_cast<int>(i)));
    insights_.push_back(std::move(insight));
  }
  return {};
}

// The kernel against itself without one lever.
Insight Engine::reverted(const Record& record, std::size_t lever) const {
  const Candidate& whole = record.candidate;
  Insight insight;
  insight.candidate = whole.id;
  insight.tag = whole.levers[lever].tag;
  const Record* const parent = find(whole.parents.at(0));
  insight.change = change_text(space_, parent->candidate.config, whole.config, whole.levers[lever]);
  std::vector<Lever> others = whole.levers;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(lever));
  Result<Candidate> without = with_levers(*parent, others);
  if (!without.ok()) {
    insight.not_measured = "Cannot be reverted alone: " + without.status().message();
    return insight;
  }
  without->id = whole.id + "-without-" + fmt::format("{}", lever + 1);
  const std::uint64_t seed =
      seed_for(settings_.seed, record.digest + " without", static_cast<std::uint64_t>(lever));
  const Result<Block> block =
      parts_.measurer->measure(settings_.task, {&*without, &whole, seed, settings_.rounds});
  if (!block.ok()) {
    insight.not_measured = block.status().message();
    return insight;
  }
  insight.speedup = compare({*block}).speedup;
  return insight;
}

}  // namespace octavo::evolve
