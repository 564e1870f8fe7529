// SPDX-License-Identifier: Apache-2.0
// The output files of one command: all opened before the work, all written, then all renamed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/host_tensor.h"
#include "tensors/tensor_file.h"

namespace octavo::cli {

class Outputs {
 public:
  // Does nothing if `spec` is empty. Two outputs in one file are an error.
  void open(std::string_view flag, const std::string& spec, std::string_view tensor_name);
  bool wanted(std::string_view flag) const;

  // Until commit() every target is unchanged. Does nothing for a flag that was not opened.
  void write(std::string_view flag, const HostTensor& tensor);
  void commit();

  // ("--out", "O.npy, f32 as .npy has no bf16")
  const std::vector<std::pair<std::string, std::string>>& notes() const { return notes_; }

 private:
  struct Target {
    std::string flag, spec;
    TensorWriter writer;
  };
  std::vector<Target> targets_;
  std::vector<std::pair<std::string, std::string>> notes_;
};

}  // namespace octavo::cli
