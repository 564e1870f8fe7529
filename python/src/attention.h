// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "call.h"

namespace octavo::python {

// octavo.attention: returns the output, or a tuple of the output, lse and amax. PyTorch tensors go
// through the dispatcher if route_of() says so.
nanobind::object attention(const Given& given);
// The same without checking PyTorch's state.
nanobind::object run_directly(const Given& given);
// The operators' kernels: for CPU and CUDA, and for Autograd. The latter records a derivative where
// one is needed. Otherwise it runs the kernel directly if nothing lies below Autograd, which saves
// a second pass through the dispatcher.
nanobind::object run_operator(Given given, bool lse);
nanobind::object run_above_autograd(const Given& given, bool lse);
// The common case of octavo.torch.sdpa in one call; returns None if the general path is needed.
nanobind::object plain_sdpa(nanobind::handle q, nanobind::handle k, nanobind::handle v,
                            nanobind::handle attn_mask, bool causal, nanobind::handle scale,
                            bool enable_gqa);
Explanation explain_call(const Given& given);

// octavo.attention_backward: returns (dq, dk, dv). PyTorch tensors go through the dispatcher if
// something in PyTorch observes the call, or if a second derivative may be needed.
nanobind::object attention_backward(const Given& given);
// The same without checking PyTorch's state.
nanobind::object run_backward_directly(const Given& given);
// Why the backward pass does not support such a call, in a sentence, or None; from types and sizes
// alone, so that it also works for tensors without memory.
nanobind::object backward_refusal(const std::string& device, const std::vector<std::string>& dtypes,
                                  std::int64_t heads_q, std::int64_t heads_kv,
                                  std::int64_t head_dim, std::int64_t head_dim_v,
                                  const std::string& precision, bool varlen,
                                  std::int64_t block_size);

}  // namespace octavo::python
