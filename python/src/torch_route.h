// SPDX-License-Identifier: Apache-2.0
// Decides whether a call with PyTorch tensors goes directly to the library or through the operator
// that octavo.torch registers with PyTorch's dispatcher.
#pragma once

#include "call.h"

namespace octavo::python {

enum class Route : std::uint8_t {
  direct,       // nothing observes the call: the direct path, which saves several microseconds
  observed,     // the operator, or the direct path in octavo.torch if it lacks a parameter
  transformed,  // only the operator: the direct path would give a wrong result
};

// Whether q, k or v is a PyTorch tensor, or an octavo.Quantized of such tensors.
bool has_torch(const Given& given);

// The only place that decides. Requires has_torch().
Route route_of(const Given& given);

// Whether route_of() avoids PyTorch's slower functions; for the tests.
bool reads_dispatch_keys();

// Whether q, k, v, bias, alibi_slopes or sinks requires grad while gradients are enabled.
bool wants_gradient(const Given& given);
// Raises NotImplementedError if one of them is a dual tensor: there is no forward-mode derivative,
// and one that is silently missing would be worse than an error.
void refuse_tangents(const Given& given);
// The error text of refuse_tangents() for this parameter.
std::string tangent_sentence(const std::string& parameter);

// Calls octavo.torch.`function` with `first`, q, k, v and all other parameters that are given,
// except for device and dout.
nanobind::object call_octavo_torch(const char* function, nanobind::object first,
                                   const Given& given);

}  // namespace octavo::python
