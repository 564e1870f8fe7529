// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan/automatic_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "attention/validate.h"
#include "base/error.h"
#include "runtime/plan/precision_record.h"

namespace octavo {
namespace {

void say_candidate(Explanation& e, const Candidate& candidate) {
  e.reason = candidate.reason + "; " + e.reason;
  e.max_error = candidate.max_error;
}

// Wraps the plan of the picked precision mode. `problem` remains the caller's, with precision auto,
// so that a plan cache finds the plan again.
class AutomaticPlan final : public Plan::Impl {
 public:
  AutomaticPlan(const Problem& asked, std::shared_ptr<const Plan::Impl> taken,
                const Candidate& candidate)
      : Impl(asked, taken->device), taken_(std::move(taken)), candidate_(candidate) {}

  Explanation explain() const override {
    Explanation e = taken_->explain();
    say_candidate(e, candidate_);
    return e;
  }
  std::size_t workspace_bytes(const Problem& run_problem,
                              const Arguments* arguments) const override {
    return taken_->workspace_bytes(settled(run_problem), arguments);
  }
  std::size_t full_workspace_bytes(const Problem& run_problem,
                                   const Arguments* arguments) const override {
    return taken_->full_workspace_bytes(settled(run_problem), arguments);
  }
  Status run(const Problem& run_problem, const Arguments& arguments, Workspace workspace,
             Stream stream) const override {
    return taken_->run(settled(run_problem), arguments, workspace, stream);
  }
  Status run_empty(const Problem& run_problem, const Arguments& arguments,
                   Stream stream) const override {
    return taken_->run_empty(settled(run_problem), arguments, stream);
  }

  bool run_again(const Arguments& arguments, Workspace workspace, Stream stream,
                 Status& status) const override {
    return taken_->run_again(arguments, workspace, stream, status);
  }

 private:
  Problem settled(const Problem& run_problem) const {
    Problem p = run_problem;
    p.options = taken_->problem.options;
    return p;
  }

  const std::shared_ptr<const Plan::Impl> taken_;
  const Candidate candidate_;
};

double work_of(std::int64_t rows, std::int64_t keys, std::int64_t columns) {
  const double products =
      static_cast<double>(rows) * static_cast<double>(keys) * static_cast<double>(columns);
  return std::log(std::max(products, 1.0));
}

// The recorded size with the nearest amount of work.
std::size_t nearest_size(const PrecisionRecords& records, const Problem& p) {
  const double here =
      work_of(p.batch * p.heads_q * p.seqlen_q, p.seqlen_kv, (p.head_dim + p.head_dim_v) / 2);
  const auto distance = [here](const RecordSize& s) {
    return std::abs(here - work_of(s.heads * s.length, s.length, s.head_dim));
  };
  std::size_t nearest = 0;
  for (std::size_t i = 1; i < records.sizes.size(); ++i)
    if (distance(records.sizes[i]) < distance(records.sizes[nearest])) nearest = i;
  return nearest;
}

// Whether a precision mode is a candidate. 16-bit inputs run in their own precision or in 8 bits,
// 32-bit inputs in fp16 or in 8 bits. On a CPU 8 bits are no faster.
bool takes(const Problem& p, Precision precision, bool on_cpu) {
  if (precision == Precision::fp16) return p.q != DType::bf16;
  if (precision == Precision::bf16) return p.q == DType::bf16;
  return !on_cpu;
}

std::string reason_of(const PrecisionRecord& mode, const RecordSize& size, double us,
                      std::string_view machine, double wanted) {
  return fmt::format(
      "auto takes {}: the fastest mode, {:.3g} us at (1, {}, {}, {}) on {}, whose worst recorded "
      "error, {:.2g}, is within {:.2g}",
      name(mode.precision), us, size.heads, size.length, size.head_dim, machine, mode.max_error,
      wanted);
}

std::string reason_on_cpu(const PrecisionRecord& mode, double wanted) {
  return fmt::format(
      "auto takes {}: on a CPU no 8-bit mode is faster, and its worst recorded error, {:.2g}, is "
      "within {:.2g}",
      name(mode.precision), mode.max_error, wanted);
}

// Tries the candidates until one is served.
template <class T, class Attempt>
Result<T> first_served(const Problem& problem, Device device, const PrecisionRecords& records,
                       const Attempt& attempt) {
  const Result<std::vector<Candidate>> candidates = automatic_candidates(records, problem, device);
  if (!candidates.ok()) return candidates.status();
  Status refused;
  for (const Candidate& candidate : *candidates) {
    Problem settled = problem;
    settled.options.precision = candidate.precision;
    settled.options.max_error = 0;
    // Some options of the caller exclude some precision modes.
    refused = validate(settled);
    if (!refused.ok()) break;
    Result<T> made = attempt(settled, candidate);
    if (made.ok()) return made;
    refused = made.status();
    if (refused.code() != ErrorCode::unsupported) break;
  }
  return refused;
}

}  // namespace

const PrecisionRecords& precision_records() {
  static constexpr PrecisionRecords kOnRecord{kRecordMachine, kRecordSizes, kPrecisionRecords};
  return kOnRecord;
}

Result<std::vector<Candidate>> automatic_candidates(const PrecisionRecords& records,
                                                    const Problem& problem, Device device) {
  const bool on_cpu = device.kind == Device::Kind::cpu;
  const std::size_t size = nearest_size(records, problem);
  std::vector<PrecisionRecord> modes;
  for (const PrecisionRecord& mode : records.modes)
    if (takes(problem, mode.precision, on_cpu)) modes.push_back(mode);
  if (modes.empty())
    return unsupported("precision", "auto", "a named precision, as no errors are recorded");
  std::stable_sort(modes.begin(), modes.end(),
                   [size](const auto& a, const auto& b) { return a.us[size] < b.us[size]; });
  const double wanted = problem.options.max_error;
  std::vector<Candidate> within;
  std::string all;
  for (const PrecisionRecord& mode : modes) {
    all +=
        fmt::format("{}{} {:.2g}", all.empty() ? "" : ", ", name(mode.precision), mode.max_error);
    if (mode.max_error > wanted) continue;
    within.push_back(
        {mode.precision, mode.max_error,
         on_cpu ? reason_on_cpu(mode, wanted)
                : reason_of(mode, records.sizes[size], mode.us[size], records.machine, wanted)});
  }
  if (!within.empty()) return within;
  return invalid("max_error", fmt::format("{:.3g}", wanted),
                 fmt::format("at least the worst recorded error of a mode, here {}", all));
}

Result<Explanation> explain_automatic(
    const Problem& problem, const std::function<Result<Explanation>(const Problem&)>& explain,
    const PrecisionRecords& records) {
  return first_served<Explanation>(problem, Device{Device::Kind::cuda, 0}, records,
                                   [&](const Problem& settled, const Candidate& candidate) {
                                     Result<Explanation> e = explain(settled);
                                     if (e.ok()) say_candidate(*e, candidate);
                                     return e;
                                   });
}

Result<std::shared_ptr<const Plan::Impl>> make_automatic_plan(const Problem& problem, Device device,
                                                              const PrecisionRecords& records) {
  using Made = std::shared_ptr<const Plan::Impl>;
  return first_served<Made>(
      problem, device, records, [&](const Problem& settled, const Candidate& candidate) {
        Result<Made> made = make_plan(settled, device);
        if (!made.ok()) return made;
        return Result<Made>(std::make_shared<AutomaticPlan>(problem, *std::move(made), candidate));
      });
}

}  // namespace octavo
