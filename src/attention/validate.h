// All checks of a caller's arguments, made once before anything is planned or written.
#pragma once

#include "octavo/octavo.hpp"

namespace octavo {

// Sizes, types, mask and precision of a problem.
Status validate(const Problem& problem);

// The same for a problem of the backward pass, which supports fewer types and precisions.
Status validate_backward(const Problem& problem);

// Checks that a run's problem is the plan's except for lengths and batch.
Status validate_run(const Problem& planned, const Problem& run_problem);

// Checks that neither array of a varlen batch decreases; for arrays that the host can read. Entries
// outside the tensor are no error: they are clamped.
Status validate_cu_seqlens(const Arguments& arguments);

// Checks one tensor: shape, strides, pointer, extent. `what` is its name in messages.
Status validate_tensor(std::string_view what, const ConstTensor& tensor);
// Two elements of a tensor that is written must not share memory.
Status validate_no_self_overlap(std::string_view what, const Tensor& tensor);
// A tensor that is written must not share memory with another.
Status validate_apart(std::string_view what, const Tensor& written, std::string_view other_what,
                      const ConstTensor& other);

}  // namespace octavo
