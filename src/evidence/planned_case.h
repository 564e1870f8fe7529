// One case of bench and counters: its inputs, its plan, and the memory both work on.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evidence/cases.h"
#include "evidence/inputs.h"
#include "evidence/quantized_call.h"
#include "octavo/evidence.hpp"
#include "runtime/backend.h"
#include "runtime/staging.h"

namespace octavo::evidence {

// What is planned, of every case alike.
struct PlannedCaseOptions {
  Device device{};
  DType dtype = DType::f16;
  Options attention{};
  std::uint64_t seed = 42;
  std::string config{};  // a kernel configuration to force; empty: the chosen one
  int copies = 1;        // of inputs and outputs in the memory of a GPU
  bool packed = false;   // operands are quantized before, V in this layout
  VLayout packed_v = VLayout::transposed;
};

// The five presets where none is given; those without a name are called by their shape.
std::vector<BenchCase> named_cases(std::vector<BenchCase> cases);

// The first thing that is wrong with the options or a shape, in one sentence.
Status validate_cases(const PlannedCaseOptions& options, const std::vector<BenchCase>& cases);

// 4 B H S D times the length of K, half of it when causal.
double flop_of(const BenchCase& shape, Causal causal);

class PlannedCase {
 public:
  PlannedCase(const PlannedCaseOptions& options, const BenchCase& shape);

  Status prepare();
  Status run(Stream stream = nullptr, int copy = 0) const;
  Status fetch() const;  // the outputs, to where inputs() has them; on the CPU they are there

  const Case& of() const { return case_; }
  Inputs& inputs() { return inputs_; }
  Explanation explain() const { return plan_->explain(); }
  const Plan::Impl& impl() const { return *impl_; }
  const Arguments& on_device() const { return staged_[0].on_device(); }  // not on the CPU
  Workspace workspace() const { return workspace_; }
  bool on_cpu() const { return options_.device.kind == Device::Kind::cpu; }

 private:
  Status make_plan(const Problem& problem);
  Status make_workspace();

  const PlannedCaseOptions options_;
  const Case case_;
  Inputs inputs_;
  QuantizedCall packed_;  // where it is packed
  Arguments given_;       // what the plan runs on, in host memory
  std::shared_ptr<const Plan::Impl> impl_;
  std::optional<Plan> plan_;
  std::vector<std::byte> memory_;  // on the CPU
  Buffer device_memory_;           // elsewhere
  Workspace workspace_;
  std::vector<StagedArguments> staged_;  // none on the CPU
};

}  // namespace octavo::evidence
