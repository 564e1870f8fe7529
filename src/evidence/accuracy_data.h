// The distributions of `octavo accuracy`.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases.h"
#include "evidence/inputs.h"

namespace octavo::evidence {

struct Distribution {
  std::string name, description;
  std::vector<Case> sizes;  // of f16; the precision is set later
  bool hadamard = false;    // Q and K are rotated, which wider precisions have no use for
  // Changes standard normal inputs in place.
  void (*shape)(Inputs& inputs, std::uint64_t seed) = nullptr;
};
const std::vector<Distribution>& distributions();

// Inputs of a case, as the distribution has them, rounded to the case's type.
Result<Inputs> make_inputs(const Distribution& of, const Case& c);

}  // namespace octavo::evidence
