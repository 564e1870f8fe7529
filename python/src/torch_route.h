// Which way a call with tensors of PyTorch takes: straight to the library, or through the operator
// that octavo.torch registers with PyTorch's dispatcher.
#pragma once

#include "call.h"

namespace octavo::python {

enum class Route : std::uint8_t {
  direct,       // nothing looks at the call: the short path, several microseconds less
  observed,     // the operator, or the short path in octavo.torch where it lacks a parameter
  transformed,  // the operator alone: the short path would give a wrong answer
};

// Whether q, k or v is a tensor, or an octavo.Quantized of tensors.
bool has_torch(const Given& given);

// The one place that decides. Requires has_torch().
Route route_of(const Given& given);

// Whether it does so without PyTorch's slower functions, for the tests.
bool reads_dispatch_keys();

// NotImplementedError where q, k or v asks for a derivative: there is no backward pass, and a
// gradient that is silently missing is worse than none.
void refuse_derivatives(const Given& given);
// Whether refuse_derivatives() would refuse for the sake of a backward pass.
bool wants_gradient(const Given& given);
// Its sentences for the parameter of this name: of a backward pass, and of forward mode.
std::string gradient_sentence(const std::string& parameter);
std::string tangent_sentence(const std::string& parameter);

// The call by octavo.torch.`function`, for all parameters that are given.
nanobind::object call_octavo_torch(const char* function, nanobind::object first,
                                   const Given& given);

}  // namespace octavo::python
