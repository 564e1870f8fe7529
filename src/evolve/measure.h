// SPDX-License-Identifier: Apache-2.0
// Times two kernels in turn. The performance gate, the measurement before an admission and
// the reversal of levers all do so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "evolve/gate.h"
#include "evolve/statistics.h"

namespace octavo::evolve {

struct MeasureRequest {
  const Candidate* base = nullptr;  // if its config is empty, the library chooses for each shape
  const Candidate* candidate = nullptr;
  std::uint64_t seed = 0;   // of inputs, and of the order of the two kernels
  int rounds = 0;           // of each shape
  std::string directory{};  // for compiled kernels; empty: the user's cache
  double time_limit_s = 120;
};

class Measurer {
 public:
  Measurer() = default;
  virtual ~Measurer() = default;
  Measurer(const Measurer&) = delete;
  Measurer& operator=(const Measurer&) = delete;
  // One block, in a fresh process. An error, in one sentence: ErrorCode::unsupported if there is no
  // GPU to measure on, else the candidate's fault.
  virtual Result<Block> measure(const Task& task, const MeasureRequest& request) = 0;
  // The least time that the chip can take for a shape, from its peak; 0: unknown.
  virtual double floor_us(const Task& task, const BenchCase& shape) = 0;
};

// Measures on the task's GPU, in a child process with its own context. The outputs of the last
// timed runs are compared with the oracle.
std::unique_ptr<Measurer> gpu_measurer();

// The least time in which a chip can compute a shape: its work over the peak of the tensor cores.
double tensor_floor_us(const Task& task, const BenchCase& shape);

// The kernel that candidates of a task are compared with.
Candidate base_of(const Task& task);

// Times the candidate and the task's base in turn, and lets only a faster one pass. Its figures
// have the samples.
class PerformanceGate final : public Gate {
 public:
  PerformanceGate(Measurer& measurer, int rounds) : measurer_(measurer), rounds_(rounds) {}
  std::string_view name() const override { return "performance"; }
  GateOutcome judge(const Candidate& candidate, const Context& context) override;

 private:
  Measurer& measurer_;
  int rounds_;
};

// Why a comparison does not let a candidate pass, in one sentence; empty: it passes.
std::string objection(const Comparison& comparison, const Task& task);

// Names the first shape that is faster than the chip can be; empty: none.
std::string impossible_time(const Task& task, const std::vector<Block>& blocks, Measurer& measurer);

// The samples of blocks as JSON, and back: blocks, shapes, base_us and candidate_us.
nlohmann::json to_json(const std::vector<Block>& blocks);
std::vector<Block> blocks_from_json(const nlohmann::json& json);
nlohmann::json to_json(const Comparison& comparison);

}  // namespace octavo::evolve
