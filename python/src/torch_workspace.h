// SPDX-License-Identifier: Apache-2.0
// The workspace of a call with PyTorch tensors.
#pragma once

#include <cstddef>

#include "call.h"
#include "dlpack_exchange.h"

namespace octavo::python {

// Allocates from PyTorch, which handles streams and keeps the memory of captured CUDA graphs alive.
// Requires the GIL.
class TorchWorkspace {
 public:
  TorchWorkspace(const Call& call, std::size_t bytes);
  ~TorchWorkspace();
  TorchWorkspace(const TorchWorkspace&) = delete;
  TorchWorkspace& operator=(const TorchWorkspace&) = delete;

  Workspace get() const { return workspace_; }

 private:
  bool allocate_by_exchange(const Call& call, std::size_t bytes);

  Workspace workspace_{};
  DlpackManaged* managed_ = nullptr;
  nanobind::object tensor_{};  // if there is no DlpackExchange
};

}  // namespace octavo::python
