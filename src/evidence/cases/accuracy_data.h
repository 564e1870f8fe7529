// SPDX-License-Identifier: Apache-2.0
// The distributions of `octavo accuracy`.
#pragma once

#include <string>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"

namespace octavo::evidence {

struct Distribution {
  std::string name, description;
  std::vector<Case> sizes;  // in f16; the precision is set later
  bool hadamard = false;    // rotates Q and K; wider precisions do not need it
  // Changes standard normal inputs in place.
  void (*shape)(Inputs& inputs, std::uint64_t seed) = nullptr;
};
const std::vector<Distribution>& distributions();

// The inputs of a case under a distribution, rounded to the case's type.
Result<Inputs> make_inputs(const Distribution& of, const Case& c);

}  // namespace octavo::evidence
