// SPDX-License-Identifier: Apache-2.0
// Reads a ledger. A file that someone has edited gives an error, not a crash.
#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "base/error.h"
#include "evolve/ledger.h"
#include "files/bounded_json.h"

namespace octavo::evolve {
namespace {

constexpr int kLedgerNesting = 12;

Status broken(std::string_view what) {
  return {ErrorCode::invalid_argument, fmt::format("the ledger has {} that cannot be read.", what)};
}

Result<std::vector<std::string>> text_list(const Value& value, std::string_view what) {
  const nlohmann::json json = parse_bounded(value.text(), kLedgerNesting);
  if (!json.is_array()) return broken(what);
  std::vector<std::string> list;
  for (const nlohmann::json& one : json) {
    if (!one.is_string()) return broken(what);
    list.push_back(one.get<std::string>());
  }
  return list;
}

Result<std::vector<double>> number_list(const Value& value) {
  const nlohmann::json json = parse_bounded(value.text(), kLedgerNesting);
  if (!json.is_array()) return broken("samples");
  std::vector<double> list;
  for (const nlohmann::json& one : json) {
    if (!one.is_number()) return broken("samples");
    list.push_back(one.get<double>());
  }
  return list;
}

Result<Record> record_of(const Row& row) {
  Record r;
  r.candidate.id = row[0].text();
  r.arm = row[1].text();
  r.candidate.generation = static_cast<int>(row[2].integer());
  r.candidate.author = row[3].text();
  r.candidate.kernel = row[4].text();
  r.candidate.config = row[5].text();
  r.candidate.patch = row[6].text();
  const nlohmann::json levers = parse_bounded(row[7].text(), kLedgerNesting);
  if (levers.is_discarded()) return broken("levers");
  Result<std::vector<Lever>> read = levers_from_json(levers);
  if (!read.ok()) return read.status();
  r.candidate.levers = *std::move(read);
  Result<std::vector<std::string>> parents = text_list(row[8], "parents");
  if (!parents.ok()) return parents.status();
  r.candidate.parents = *std::move(parents);
  r.candidate.rationale = row[9].text();
  r.digest = row[10].text();
  if (!row[11].is_null()) r.verdict = verdict_named(row[11].text());
  r.gate = row[12].text();
  r.reason = row[13].text();
  r.duplicate_of = row[14].text();
  r.admission = row[15].text();
  return r;
}

Status add_gates(const Database& database, std::map<std::string, Record*>& by_id) {
  const Result<std::vector<Row>> rows = database.query(
      "SELECT candidate,at_admission,gate,verdict,reason,figures FROM gates "
      "ORDER BY candidate,at_admission,position");
  if (!rows.ok()) return rows.status();
  for (const Row& row : *rows) {
    const auto found = by_id.find(row[0].text());
    if (found == by_id.end()) return broken("a gate");
    GateRecord gate;
    gate.at_admission = row[1].integer() != 0;
    gate.gate = row[2].text();
    gate.verdict = verdict_named(row[3].text());
    gate.reason = row[4].text();
    gate.figures = parse_bounded(row[5].text(), kLedgerNesting);
    if (gate.figures.is_discarded()) return broken("figures");
    found->second->gates.push_back(std::move(gate));
  }
  return {};
}

Status add_samples(const Database& database, std::map<std::string, Record*>& by_id) {
  const Result<std::vector<Row>> rows = database.query(
      "SELECT candidate,phase,block,shape,base_us,candidate_us,clock_mhz FROM samples "
      "ORDER BY candidate,phase,block,shape");
  if (!rows.ok()) return rows.status();
  for (const Row& row : *rows) {
    const auto found = by_id.find(row[0].text());
    Result<std::vector<double>> base = number_list(row[4]), candidate = number_list(row[5]);
    if (found == by_id.end() || !base.ok() || !candidate.ok()) return broken("samples");
    std::vector<Block>& blocks =
        row[1].text() == "again" ? found->second->again : found->second->first;
    if (row[3].integer() == 0) blocks.emplace_back();
    if (blocks.empty() || static_cast<std::int64_t>(blocks.size()) != row[2].integer() + 1)
      return broken("samples");
    blocks.back().push_back({*std::move(base), *std::move(candidate), row[6].real()});
  }
  return {};
}

}  // namespace

Status Ledger::read_records(LedgerContents& contents) const {
  const Result<std::vector<Row>> rows = database_.query(
      "SELECT id,arm,generation,author,kernel,config,patch,levers,parents,rationale,digest,verdict,"
      "gate,reason,duplicate_of,admission FROM candidates ORDER BY number");
  if (!rows.ok()) return rows.status();
  for (const Row& row : *rows) {
    Result<Record> record = record_of(row);
    if (!record.ok()) return record.status();
    contents.records.push_back(*std::move(record));
  }
  std::map<std::string, Record*> by_id;
  for (Record& record : contents.records) by_id[record.candidate.id] = &record;
  OCTAVO_RETURN_IF_ERROR(add_gates(database_, by_id));
  return add_samples(database_, by_id);
}

Result<LedgerContents> Ledger::read() const {
  LedgerContents contents;
  const Result<std::vector<Row>> run = database_.query("SELECT key,value FROM run");
  if (!run.ok()) return run.status();
  for (const Row& row : *run) {
    if (row[0].text() == "settings")
      contents.settings = parse_bounded(row[1].text(), kLedgerNesting);
    if (row[0].text() == "spent_s")
      contents.spent_s = row[1].kind() == Value::Kind::text
                             ? std::strtod(row[1].text().c_str(), nullptr)
                             : row[1].real();
  }
  if (!contents.settings.is_object()) return broken("settings");
  OCTAVO_RETURN_IF_ERROR(read_records(contents));
  const Result<std::vector<Row>> effects = database_.query(
      "SELECT candidate,tag,change,speedup,speedup_low,speedup_high,not_measured FROM effects "
      "ORDER BY rowid");
  if (!effects.ok()) return effects.status();
  for (const Row& row : *effects)
    contents.insights.push_back({row[0].text(),
                                 row[1].text(),
                                 row[2].text(),
                                 {row[3].real(), row[4].real(), row[5].real()},
                                 row[6].text()});
  const Result<std::vector<Row>> generations =
      database_.query("SELECT arm,generation,elites FROM generations ORDER BY number");
  if (!generations.ok()) return generations.status();
  for (const Row& row : *generations) {
    Result<std::vector<std::string>> elites = text_list(row[2], "elites");
    if (!elites.ok()) return elites.status();
    contents.generations.push_back(
        {row[0].text(), static_cast<int>(row[1].integer()), *std::move(elites)});
  }
  return contents;
}

}  // namespace octavo::evolve
