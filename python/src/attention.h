#pragma once

#include "call.h"

namespace octavo::python {

// The output, or (output, lse).
nanobind::object attention(const Given& given);
// The common case of octavo.torch.sdpa in one call; None where that has to look closer.
nanobind::object plain_sdpa(nanobind::handle q, nanobind::handle k, nanobind::handle v, bool causal,
                            nanobind::handle scale, bool enable_gqa);
Explanation explain_call(const Given& given);

}  // namespace octavo::python
