// SPDX-License-Identifier: Apache-2.0
#include "evolve/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace octavo::evolve {
namespace {

constexpr const char* kTables = R"sql(
CREATE TABLE run(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE candidates(
  number INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE, arm TEXT NOT NULL, generation INTEGER NOT NULL, author TEXT NOT NULL,
  kernel TEXT NOT NULL, config TEXT NOT NULL, patch TEXT NOT NULL, levers TEXT NOT NULL,
  parents TEXT NOT NULL, rationale TEXT NOT NULL, digest TEXT NOT NULL,
  verdict TEXT, gate TEXT NOT NULL, reason TEXT NOT NULL, duplicate_of TEXT NOT NULL,
  source_sha256 TEXT, sass_sha256 TEXT, registers INTEGER, spill_bytes INTEGER, smem_bytes INTEGER,
  speedup REAL, speedup_low REAL, speedup_high REAL,
  again REAL, again_low REAL, again_high REAL, admission TEXT NOT NULL);
CREATE TABLE gates(
  candidate TEXT NOT NULL, at_admission INTEGER NOT NULL, position INTEGER NOT NULL,
  gate TEXT NOT NULL, verdict TEXT NOT NULL, reason TEXT NOT NULL, figures TEXT NOT NULL,
  PRIMARY KEY(candidate, at_admission, position));
CREATE TABLE samples(
  candidate TEXT NOT NULL, phase TEXT NOT NULL, block INTEGER NOT NULL, shape INTEGER NOT NULL,
  base_us TEXT NOT NULL, candidate_us TEXT NOT NULL, clock_mhz REAL NOT NULL,
  PRIMARY KEY(candidate, phase, block, shape));
CREATE TABLE effects(
  candidate TEXT NOT NULL, position INTEGER NOT NULL, tag TEXT NOT NULL, change TEXT NOT NULL,
  speedup REAL, speedup_low REAL, speedup_high REAL, not_measured TEXT NOT NULL,
  PRIMARY KEY(candidate, position));
CREATE TABLE generations(
  number INTEGER PRIMARY KEY, arm TEXT NOT NULL, generation INTEGER NOT NULL,
  elites TEXT NOT NULL, UNIQUE(arm, generation));
)sql";

constexpr std::array<std::string_view, 3> kVerdicts = {"passed", "rejected", "not_done"};

std::string dumped(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool exists(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0;
}

Status make_directory(const std::string& directory) {
  constexpr mode_t kMode = 0777;
  for (std::size_t at = directory.find('/', 1);; at = directory.find('/', at + 1)) {
    const std::string part = directory.substr(0, at);
    if (::mkdir(part.c_str(), kMode) != 0 && errno != EEXIST)
      return {ErrorCode::invalid_argument, fmt::format("the directory {} cannot be made: {}.",
                                                       printable(part), std::strerror(errno))};
    if (at == std::string::npos) return {};
  }
}

Value figure(const Record& record, const char* key) {
  const nlohmann::json* const compile = record.figures("compile");
  if (compile == nullptr || !compile->contains(key)) return {};
  const nlohmann::json& value = (*compile)[key];
  if (value.is_string()) return Value(value.get<std::string>());
  if (value.is_number_integer()) return Value(value.get<std::int64_t>());
  return {};
}

void append(Row& row, const std::vector<Block>& blocks) {
  const Comparison comparison = compare(blocks);
  const bool known = !comparison.shapes.empty();
  for (const double value :
       {comparison.speedup.value, comparison.speedup.low, comparison.speedup.high})
    row.push_back(known ? Value(value) : Value());
}

}  // namespace

std::string_view name(Verdict verdict) { return kVerdicts.at(static_cast<std::size_t>(verdict)); }

Verdict verdict_named(std::string_view text) {
  return text == "passed"     ? Verdict::passed
         : text == "rejected" ? Verdict::rejected
                              : Verdict::not_done;
}

const Record* LedgerContents::find(const std::string& id) const {
  for (const Record& record : records)
    if (record.candidate.id == id) return &record;
  return nullptr;
}

const nlohmann::json* Record::figures(std::string_view gate_name) const {
  for (const GateRecord& each : gates)
    if (each.gate == gate_name) return &each.figures;
  return nullptr;
}

std::string ledger_path(const std::string& directory) { return directory + "/ledger.sqlite"; }

Result<Ledger> Ledger::create(const std::string& directory, const nlohmann::json& settings) {
  const Result<std::string> version = sqlite_version();
  if (!version.ok()) return version.status();
  OCTAVO_RETURN_IF_ERROR(make_directory(directory));
  if (exists(ledger_path(directory)))
    return invalid("the directory", fmt::format("{} with a run", printable(directory)),
                   "one without; `octavo evolve resume` continues a run");
  Result<Database> database = Database::open(ledger_path(directory), Database::Open::create);
  if (!database.ok()) return database.status();
  Ledger ledger(*std::move(database), directory);
  Result<Transaction> transaction = Transaction::begin(ledger.database_);
  if (!transaction.ok()) return transaction.status();
  OCTAVO_RETURN_IF_ERROR(ledger.database_.script(kTables));
  OCTAVO_RETURN_IF_ERROR(ledger.database_.run("INSERT INTO run VALUES('schema',?)",
                                              {Value(fmt::format("{}", kSchema))}));
  OCTAVO_RETURN_IF_ERROR(
      ledger.database_.run("INSERT INTO run VALUES('settings',?)", {Value(dumped(settings))}));
  OCTAVO_RETURN_IF_ERROR(ledger.database_.run("INSERT INTO run VALUES('spent_s','0')"));
  OCTAVO_RETURN_IF_ERROR(transaction->commit());
  OCTAVO_RETURN_IF_ERROR(ledger.open_log());
  ledger.log("created", {{"sqlite", *version}});
  return ledger;
}

Result<Ledger> Ledger::open(const std::string& directory, bool read_only) {
  if (!exists(ledger_path(directory)))
    return invalid("the directory", fmt::format("{} without a run", printable(directory)),
                   "one that `octavo evolve run` has made");
  Result<Database> database = Database::open(
      ledger_path(directory), read_only ? Database::Open::read_only : Database::Open::existing);
  if (!database.ok()) return database.status();
  Ledger ledger(*std::move(database), directory);
  const Result<std::vector<Row>> schema =
      ledger.database_.query("SELECT value FROM run WHERE key='schema'");
  if (!schema.ok()) return schema.status();
  const std::string found = schema->empty() ? "" : (*schema)[0][0].text();
  if (found != fmt::format("{}", kSchema))
    return invalid("the ledger's schema", fmt::format("'{}'", found), fmt::format("{}", kSchema));
  if (!read_only) OCTAVO_RETURN_IF_ERROR(ledger.open_log());
  return ledger;
}

Ledger::Ledger(Ledger&& other) noexcept
    : database_(std::move(other.database_)),
      directory_(std::move(other.directory_)),
      log_(std::exchange(other.log_, -1)) {}

Ledger::~Ledger() {
  if (log_ >= 0) (void)::close(log_);
}

Status Ledger::open_log() {
  constexpr mode_t kMode = 0666;
  const std::string path = directory_ + "/events.jsonl";
  log_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode);
  if (log_ < 0)
    return {ErrorCode::device_error,
            fmt::format("the log {} cannot be opened: {}.", printable(path), std::strerror(errno))};
  // A killed run may have left half a line.
  char last = '\n';
  const off_t size = ::lseek(log_, 0, SEEK_END);
  if (size > 0 && ::pread(log_, &last, 1, size - 1) == 1 && last != '\n')
    (void)!::write(log_, "\n", 1);
  return {};
}

void Ledger::log(std::string_view what, nlohmann::json more) {
  if (log_ < 0) return;
  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  more["event"] = what;
  more["time"] = now.count();
  const std::string line = dumped(more) + "\n";
  // One write: lines of two processes do not mix. The ledger is the record; a full disk must not
  // end a run for the sake of its log.
  (void)!::write(log_, line.data(), line.size());
}

Status Ledger::add(const std::vector<Record>& records) {
  Result<Transaction> transaction = Transaction::begin(database_);
  if (!transaction.ok()) return transaction.status();
  for (const Record& r : records) {
    const Candidate& c = r.candidate;
    OCTAVO_RETURN_IF_ERROR(database_.run(
        "INSERT INTO candidates(id,arm,generation,author,kernel,config,patch,levers,parents,"
        "rationale,digest,gate,reason,duplicate_of,admission) "
        "VALUES(?,?,?,?,?,?,?,?,?,?,?,'',?,'','')",
        {c.id, r.arm, c.generation, c.author, c.kernel, c.config, c.patch,
         dumped(to_json(c.levers)), dumped(c.parents), c.rationale, r.digest, r.reason}));
  }
  OCTAVO_RETURN_IF_ERROR(transaction->commit());
  for (const Record& r : records)
    log("proposed",
        {{"candidate", r.candidate.id}, {"arm", r.arm}, {"author", r.candidate.author}});
  return {};
}

Status Ledger::write_gates(const Record& record, bool at_admission) {
  int position = 0;
  for (const GateRecord& gate : record.gates) {
    if (gate.at_admission != at_admission) continue;
    OCTAVO_RETURN_IF_ERROR(
        database_.run("INSERT OR REPLACE INTO gates VALUES(?,?,?,?,?,?,?)",
                      {record.candidate.id, at_admission ? 1 : 0, position++, gate.gate,
                       name(gate.verdict), gate.reason, dumped(gate.figures)}));
  }
  return {};
}

Status Ledger::write_samples(const std::string& id, std::string_view phase,
                             const std::vector<Block>& blocks) {
  for (std::size_t block = 0; block < blocks.size(); ++block)
    for (std::size_t shape = 0; shape < blocks[block].size(); ++shape) {
      const Rounds& rounds = blocks[block][shape];
      OCTAVO_RETURN_IF_ERROR(database_.run(
          "INSERT OR REPLACE INTO samples VALUES(?,?,?,?,?,?,?)",
          {id, phase, static_cast<std::int64_t>(block), static_cast<std::int64_t>(shape),
           dumped(rounds.base_us), dumped(rounds.candidate_us), rounds.clock_mhz}));
    }
  return {};
}

Status Ledger::judged(const Record& r) {
  Result<Transaction> transaction = Transaction::begin(database_);
  if (!transaction.ok()) return transaction.status();
  Row row = {name(r.verdict.value_or(Verdict::not_done)), r.gate, r.reason, r.duplicate_of};
  for (const char* key : {"source_sha256", "sass_sha256", "registers", "spill_bytes", "smem_bytes"})
    row.push_back(figure(r, key));
  append(row, r.first);
  row.push_back(r.candidate.id);
  OCTAVO_RETURN_IF_ERROR(database_.run(
      "UPDATE candidates SET verdict=?,gate=?,reason=?,duplicate_of=?,source_sha256=?,"
      "sass_sha256=?,registers=?,spill_bytes=?,smem_bytes=?,speedup=?,speedup_low=?,"
      "speedup_high=? WHERE id=?",
      row));
  OCTAVO_RETURN_IF_ERROR(write_gates(r, false));
  OCTAVO_RETURN_IF_ERROR(write_samples(r.candidate.id, "first", r.first));
  OCTAVO_RETURN_IF_ERROR(transaction->commit());
  log("judged", {{"candidate", r.candidate.id},
                 {"verdict", row[0].text()},
                 {"gate", r.gate},
                 {"reason", r.reason}});
  return {};
}

Status Ledger::considered(const Record& r) {
  Result<Transaction> transaction = Transaction::begin(database_);
  if (!transaction.ok()) return transaction.status();
  Row row = {r.admission};
  append(row, r.again);
  row.push_back(r.candidate.id);
  OCTAVO_RETURN_IF_ERROR(database_.run(
      "UPDATE candidates SET admission=?,again=?,again_low=?,again_high=? WHERE id=?", row));
  OCTAVO_RETURN_IF_ERROR(write_gates(r, true));
  OCTAVO_RETURN_IF_ERROR(write_samples(r.candidate.id, "again", r.again));
  OCTAVO_RETURN_IF_ERROR(transaction->commit());
  log("considered", {{"candidate", r.candidate.id}, {"admission", r.admission}});
  return {};
}

Status Ledger::add(const Insight& i, int position) {
  const bool measured = i.not_measured.empty();
  const auto number = [&](double value) { return measured ? Value(value) : Value(); };
  OCTAVO_RETURN_IF_ERROR(
      database_.run("INSERT OR REPLACE INTO effects VALUES(?,?,?,?,?,?,?,?)",
                    {i.candidate, position, i.tag, i.change, number(i.speedup.value),
                     number(i.speedup.low), number(i.speedup.high), i.not_measured}));
  log("effect", {{"candidate", i.candidate}, {"change", i.change}});
  return {};
}

Status Ledger::add(const GenerationRecord& g) {
  OCTAVO_RETURN_IF_ERROR(
      database_.run("INSERT INTO generations(arm,generation,elites) VALUES(?,?,?)",
                    {g.arm, g.generation, dumped(g.elites)}));
  log("generation", {{"arm", g.arm}, {"generation", g.generation}, {"elites", g.elites}});
  return {};
}

Status Ledger::spend(double seconds) {
  return database_.run("UPDATE run SET value=CAST(value AS REAL)+? WHERE key='spent_s'",
                       {Value(seconds)});
}

}  // namespace octavo::evolve
