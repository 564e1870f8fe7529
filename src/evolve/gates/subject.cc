// SPDX-License-Identifier: Apache-2.0
#include "evolve/gates/subject.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "evolve/ledger.h"
#include "files/bounded_json.h"

namespace octavo::evolve {

Result<Subject> subject_of(const Candidate& candidate) {
  const Result<KernelConfig> config = parse_config(candidate.kernel, candidate.config);
  if (!config.ok()) return config.status();
  Result<Patched> patched = apply_patch(candidate.patch);
  if (!patched.ok()) return patched.status();
  return Subject{*config, std::move(patched).value()};
}

Limits limits_of(const Context& context) {
  Limits limits;
  limits.seconds = context.time_limit_s;
  limits.memory_bytes = context.memory_limit_bytes;
  limits.directory = context.directory;
  return limits;
}

void use_cache_of(const Context& context) {
  if (!context.directory.empty())
    (void)setenv("OCTAVO_CACHE_DIR", (context.directory + "/cubins").c_str(), 1);
}

namespace {

GateOutcome outcome(Verdict verdict, std::string reason) {
  GateOutcome made;
  made.verdict = verdict;
  made.reason = std::move(reason);
  return made;
}

}  // namespace

GateOutcome rejected(std::string reason) { return outcome(Verdict::rejected, std::move(reason)); }
GateOutcome not_done(std::string reason) { return outcome(Verdict::not_done, std::move(reason)); }
GateOutcome passed(std::string reason) { return outcome(Verdict::passed, std::move(reason)); }

std::string to_answer(const GateOutcome& outcome) {
  const nlohmann::json answer = {
      {"verdict", name(outcome.verdict)}, {"reason", outcome.reason}, {"figures", outcome.figures}};
  // A report of a candidate may hold any bytes.
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GateOutcome outcome_of(const ChildResult& child, std::string_view gate) {
  if (child.end == ChildResult::End::not_started) return not_done(child.reason);
  GateOutcome outcome;
  if (!child.finished()) {
    outcome = rejected(fmt::format("In the {} gate: {}", gate, child.reason));
  } else {
    const nlohmann::json answer = parse_bounded(child.output, kReportNesting);
    const bool whole = answer.is_object() && answer.contains("verdict") &&
                       answer["verdict"].is_string() && answer.contains("reason") &&
                       answer["reason"].is_string() && answer.contains("figures");
    if (!whole) {
      outcome = rejected(fmt::format("The child of the {} gate gave no answer.", gate));
    } else {
      const std::string verdict = answer["verdict"];
      outcome.verdict = verdict == name(Verdict::passed)     ? Verdict::passed
                        : verdict == name(Verdict::not_done) ? Verdict::not_done
                                                             : Verdict::rejected;
      outcome.reason = answer["reason"];
      outcome.figures = answer["figures"];
    }
  }
  outcome.figures["child"] = name(child.end);
  if (!child.missing.empty()) outcome.figures["isolation_missing"] = child.missing;
  return outcome;
}

}  // namespace octavo::evolve
