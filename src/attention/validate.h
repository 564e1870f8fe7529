// Every check on what a caller gives, done once, before anything is planned or written.
#pragma once

#include "octavo/octavo.hpp"

namespace octavo {

// Sizes, types, mask and precision of a problem.
Status validate(const Problem& problem);

// That the arguments pose the problem a plan was made for, up to their lengths and batch.
Status validate_run(const Problem& planned, const Problem& run_problem);

// Of a packed batch, that neither array decreases; for arrays that the host can read. Entries
// outside the tensor are no error: they are clamped.
Status validate_cu_seqlens(const Arguments& arguments);

// A tensor as such: shape, strides, pointer, extent. `what` names it.
Status validate_tensor(std::string_view what, const ConstTensor& tensor);
// Two elements of a tensor that is written must not share memory.
Status validate_no_self_overlap(std::string_view what, const Tensor& tensor);
// A tensor that is written must not share memory with another.
Status validate_apart(std::string_view what, const Tensor& written, std::string_view other_what,
                      const ConstTensor& other);

}  // namespace octavo
