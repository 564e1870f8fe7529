// SPDX-License-Identifier: Apache-2.0
// Reads and writes tensors. The name of the file decides the format: X.npy, X.safetensors,
// X.safetensors:NAME.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "octavo/file.hpp"
#include "octavo/octavo.hpp"
#include "tensors/host_tensor.h"

namespace octavo::cli {

// An error message starts with `flag` ("--q"). `untyped`: see npy.h.
Result<HostTensor> load_tensor(std::string_view flag, const std::string& spec,
                               std::optional<DType> untyped = {});

// An output that is opened before the work and written after it.
class TensorWriter {
 public:
  // `tensor_name` is the name in a .safetensors file whose spec gives none.
  static Result<TensorWriter> open(std::string_view flag, const std::string& spec,
                                   std::string_view tensor_name);

  // True where the format cannot hold the type and write() converts it to f32: bf16 in .npy.
  bool widens(DType dtype) const { return !safetensors_ && dtype == DType::bf16; }
  Status write(const HostTensor& tensor);
  Status commit() { return file_.commit(); }

 private:
  TensorWriter(OutputFile file, bool safetensors, std::string tensor_name)
      : file_(std::move(file)), safetensors_(safetensors), tensor_name_(std::move(tensor_name)) {}

  OutputFile file_;
  bool safetensors_ = false;
  std::string tensor_name_;
};

}  // namespace octavo::cli
