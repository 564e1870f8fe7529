#pragma once

#include "call.h"

namespace octavo::python {

// octavo.attention: the output, or a tuple of the output, lse and amax. Tensors of PyTorch go
// through its dispatcher where route_of() says so.
nanobind::object attention(const Given& given);
// The same without a look at what PyTorch is doing.
nanobind::object run_directly(const Given& given);
// The operators' kernels: that of CPU and CUDA, and that of Autograd, which saves PyTorch a second
// trip through the dispatcher where nothing is below it.
nanobind::object run_operator(Given given, bool lse);
nanobind::object run_above_autograd(const Given& given, bool lse);
// The common case of octavo.torch.sdpa in one call; None where that has to look closer.
nanobind::object plain_sdpa(nanobind::handle q, nanobind::handle k, nanobind::handle v, bool causal,
                            nanobind::handle scale, bool enable_gqa);
Explanation explain_call(const Given& given);

}  // namespace octavo::python
