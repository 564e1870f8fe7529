// SPDX-License-Identifier: Apache-2.0
// Writes several outputs so that either all targets change or, on a failure before commit(), none.
#include "outputs.h"

#include "error.h"
#include "exit.h"

namespace octavo::cli {

void Outputs::open(std::string_view flag, const std::string& spec, std::string_view tensor_name) {
  if (spec.empty()) return;
  for (const Target& other : targets_) {
    if (other.spec == spec) {
      require(bad_input(flag, in_quotes(spec), "a file other than the one of " + other.flag));
    }
  }
  targets_.push_back(
      {std::string(flag), spec, require_written(TensorWriter::open(flag, spec, tensor_name))});
}

bool Outputs::wanted(std::string_view flag) const {
  for (const Target& target : targets_) {
    if (target.flag == flag) return true;
  }
  return false;
}

void Outputs::write(std::string_view flag, const HostTensor& tensor) {
  for (Target& target : targets_) {
    if (target.flag != flag) continue;
    require_written(target.writer.write(tensor));
    const bool widened = target.writer.widens(tensor.dtype);
    notes_.emplace_back(target.flag.substr(2),
                        target.spec + (widened ? " (as f32: .npy has no bf16)" : ""));
  }
}

void Outputs::commit() {
  for (Target& target : targets_) require_written(target.writer.commit());
}

}  // namespace octavo::cli
