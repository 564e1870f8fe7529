#pragma once

#include "call.h"

namespace octavo::python {

// octavo.attention: returns the output, or a tuple of the output, lse and amax. PyTorch tensors go
// through the dispatcher if route_of() says so.
nanobind::object attention(const Given& given);
// The same without checking PyTorch's state.
nanobind::object run_directly(const Given& given);
// The operators' kernels: for CPU and CUDA, and for Autograd. The latter runs the kernel directly
// if nothing lies below Autograd, which saves a second pass through the dispatcher.
nanobind::object run_operator(Given given, bool lse);
nanobind::object run_above_autograd(const Given& given, bool lse);
// The common case of octavo.torch.sdpa in one call; returns None if the general path is needed.
nanobind::object plain_sdpa(nanobind::handle q, nanobind::handle k, nanobind::handle v, bool causal,
                            nanobind::handle scale, bool enable_gqa);
Explanation explain_call(const Given& given);

}  // namespace octavo::python
