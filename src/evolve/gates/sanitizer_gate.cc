// SPDX-License-Identifier: Apache-2.0
// The sanitizer gate: the candidate's checks on the GPU once more, under compute-sanitizer. It runs
// `octavo evolve examine` with the candidate in a file.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "evidence/gates/check.h"
#include "evolve/gates/examine.h"
#include "evolve/gates/gpu_child.h"
#include "evolve/gates/standard_gates.h"
#include "evolve/gates/unseen_cases.h"
#include "files/bounded_json.h"
#include "octavo/file.hpp"

namespace octavo::evolve {
namespace {

std::string this_command() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return {};
  const std::string name(path.data(), static_cast<std::size_t>(length));
  return name.ends_with("/octavo") ? name : "";
}

std::string sanitizer() {
  for (const char* const path :
       {"/usr/local/cuda/bin/compute-sanitizer",
        "/usr/local/cuda/compute-sanitizer/compute-sanitizer", "/usr/bin/compute-sanitizer"})
    if (access(path, X_OK) == 0) return path;
  return {};
}

class SanitizerGate : public Gate {
 public:
  std::string_view name() const override { return "sanitizer"; }

  GateOutcome judge(const Candidate& candidate, const Context& context) override {
    const Result<Subject> subject = subject_of(candidate);
    if (!subject.ok()) return rejected(subject.status().message());
    if (context.task.device.kind != Device::Kind::cuda)
      return not_done("The task has no GPU, which compute-sanitizer needs.");
    const std::string tool = sanitizer(), command = this_command();
    if (tool.empty()) return not_done("compute-sanitizer is not installed.");
    if (command.empty())
      return not_done("Only the command octavo can run itself under compute-sanitizer.");
    const std::string file = context.directory + "/sanitized.json";
    if (const Status written = write_examination(candidate, context, file); !written.ok())
      return not_done(written.message());
    nlohmann::json figures = nlohmann::json::object();
    for (const char* const kind : {"memcheck", "initcheck", "synccheck"}) {
      Limits limits = limits_of(context);
      limits.gpu = true;
      limits.isolation = context.task.gpu_isolation;
      const ChildResult ran = run_program(limits, {tool, "--tool", kind, "--error-exitcode", "9",
                                                   command, "evolve", "examine", file});
      figures[kind] = ran.reason;
      if (ran.finished()) continue;
      GateOutcome outcome = rejected(
          fmt::format("compute-sanitizer's {}: {} {}", kind, ran.reason, first_report(ran.output)));
      outcome.figures = figures;
      return outcome;
    }
    GateOutcome outcome = passed("memcheck, initcheck and synccheck find nothing.");
    outcome.figures = figures;
    return outcome;
  }

 private:
  // The first line that the tool wrote about an error.
  static std::string first_report(const std::string& output) {
    constexpr std::string_view kMark = "=========";
    for (std::size_t at = output.find(kMark); at != std::string::npos;
         at = output.find(kMark, at + 1)) {
      const std::string line = output.substr(at, output.find('\n', at) - at);
      if (line.find("Invalid") != std::string::npos || line.find("Uninit") != std::string::npos ||
          line.find("Barrier") != std::string::npos || line.find("error") != std::string::npos)
        return printable(line);
    }
    return "";
  }
};

}  // namespace

Status write_examination(const Candidate& candidate, const Context& context,
                         const std::string& path) {
  const nlohmann::json text = {{"kernel", candidate.kernel},
                               {"config", candidate.config},
                               {"patch", candidate.patch},
                               {"device", context.task.device.index},
                               {"seed", context.seed}};
  Result<OutputFile> file = OutputFile::open(path);
  if (!file.ok()) return file.status();
  OCTAVO_RETURN_IF_ERROR(file->write(text.dump()));
  return file->commit();
}

Status examine(const std::string& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
  const Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  const Result<std::string> text = file->read_all(kMostBytes);
  if (!text.ok()) return text.status();
  const nlohmann::json json = parse_bounded(*text, kReportNesting);
  const bool whole = json.is_object() && json.contains("kernel") && json["kernel"].is_string() &&
                     json.contains("config") && json["config"].is_string() &&
                     json.contains("patch") && json["patch"].is_string() &&
                     json.contains("device") && json["device"].is_number_integer() &&
                     json.contains("seed") && json["seed"].is_number_unsigned();
  if (!whole) return invalid("examine", "'" + path + "'", "a file that the sanitizer gate wrote");
  Candidate candidate;
  candidate.kernel = json["kernel"];
  candidate.config = json["config"];
  candidate.patch = json["patch"];
  const Result<Subject> subject = subject_of(candidate);
  if (!subject.ok()) return subject.status();
  OCTAVO_RETURN_IF_ERROR(use_source_overlay(subject->patched.overlay()));
  constexpr int kUnseen = 6;
  constexpr std::int64_t kLongest = 200;
  std::vector<evidence::Case> cases = edge_cases(subject->config);
  for (const evidence::Case& c : unseen_cases(subject->config, json["seed"], kUnseen, kLongest))
    cases.push_back(c);
  CheckOptions options;
  options.device = {Device::Kind::cuda, json["device"]};
  options.repeat = 2;
  const Result<CheckReport> report =
      evidence::check_cases(options, cases,
                            evidence::runner_of(options.device, kernel_of(subject->config),
                                                evidence::OnStream::standard));
  if (!report.ok()) return report.status();
  if (report->failures.empty() && report->cases > 0) return {};
  return {ErrorCode::device_error,
          report->failures.empty() ? "No case ran." : report->failures.front()};
}

std::unique_ptr<Gate> sanitizer_gate() { return std::make_unique<SanitizerGate>(); }

}  // namespace octavo::evolve
