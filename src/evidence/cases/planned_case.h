// SPDX-License-Identifier: Apache-2.0
// One case of bench and counters: its inputs, its plan, and their memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"
#include "evidence/cases/quantized_call.h"
#include "octavo/evidence.hpp"
#include "runtime/plan/backend.h"
#include "runtime/staging.h"

namespace octavo::evidence {

// Options common to all cases.
struct PlannedCaseOptions {
  Device device{};
  DType dtype = DType::f16;
  Options attention{};
  std::uint64_t seed = 42;
  std::string config{};       // a kernel configuration to force; empty: the chosen one
  int copies = 1;             // of inputs and outputs in GPU memory
  bool prequantized = false;  // operands are quantized in advance, V in this layout
  VLayout prequantized_v = VLayout::transposed;
};

// The five presets if none is given; cases without a name are named by their shape.
std::vector<BenchCase> named_cases(std::vector<BenchCase> cases);

// The first error in the options or a shape, in one sentence.
Status validate_cases(const PlannedCaseOptions& options, const std::vector<BenchCase>& cases);

// Sets the sizes of a case to those of a shape.
void set_shape(Case& c, const BenchCase& shape);

// The problem of a shape; the output has the inputs' dtype, f16 if that is an 8-bit one.
Problem problem_of(DType dtype, const Options& attention, const BenchCase& shape);

// 4 B H S D times seqlen_kv, half of it when causal.
double flop_of(const BenchCase& shape, Causal causal);

class PlannedCase {
 public:
  PlannedCase(const PlannedCaseOptions& options, const BenchCase& shape);

  Status prepare();
  Status run(Stream stream = nullptr, int copy = 0) const;
  Status fetch() const;  // copies the outputs to inputs(); a no-op on the CPU

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
  QuantizedCall prequantized_;  // if prequantized
  Arguments given_;             // the plan's arguments, in host memory
  std::shared_ptr<const Plan::Impl> impl_;
  std::optional<Plan> plan_;
  std::vector<std::byte> memory_;  // on the CPU
  Buffer device_memory_;           // elsewhere
  Workspace workspace_;
  std::vector<StagedArguments> staged_;  // none on the CPU
};

}  // namespace octavo::evidence
