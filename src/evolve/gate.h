// SPDX-License-Identifier: Apache-2.0
// The interface of the gates that a candidate must pass, in order, each blocking the next: policy,
// compile, emulator, correctness, sanitizer, performance, counters.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "evolve/candidate.h"
#include "evolve/isolation/isolate.h"
#include "octavo/evidence.hpp"

namespace octavo::evolve {

// The kernel that a run optimises, and the cases for which it does.
struct Task {
  std::string kernel;  // the family
  // The inputs' type and the precision, which candidates may not change.
  DType dtype = DType::f16;
  Options attention{};
  std::vector<BenchCase> shapes;  // the score is the geometric mean over them
  std::string base_config;        // the kernel that candidates are compared with
  Device device{};                // cuda: measured there; otherwise nothing is measured
  Isolation gpu_isolation{};      // of children that open the GPU
};

struct Context {
  const Task& task;
  // Drawn after the candidate was written: unseen shapes, distributions and inputs come from it.
  std::uint64_t seed = 0;
  std::string directory;     // for files of this candidate; exists, and is empty at the first gate
  double time_limit_s = 60;  // of one gate
  std::uint64_t memory_limit_bytes = std::uint64_t{8} << 30;
  // The figures of the gates passed so far, by gate: figures["compile"]["sass_sha256"].
  nlohmann::json figures = nlohmann::json::object();
};

enum class Verdict : std::uint8_t { passed, rejected, not_done };

struct GateOutcome {
  Verdict verdict = Verdict::not_done;
  std::string reason;  // one sentence, also if passed
  // Measured figures. The compile gate's have "sass_sha256" (of the machine code), "source_sha256"
  // (of all sources that the kernel includes), "registers", "spill_bytes", "smem_bytes", and "mma".
  nlohmann::json figures = nlohmann::json::object();
};

class Gate {
 public:
  Gate() = default;
  virtual ~Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  virtual std::string_view name() const = 0;
  // Never throws; whatever the candidate does is a verdict.
  virtual GateOutcome judge(const Candidate& candidate, const Context& context) = 0;
};

using Gates = std::vector<std::unique_ptr<Gate>>;

}  // namespace octavo::evolve
