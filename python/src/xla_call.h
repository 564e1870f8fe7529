// SPDX-License-Identifier: Apache-2.0
// Attention as custom calls of XLA, for octavo.jax.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo::python {

// Adds what octavo/jax.py calls; only where XLA's headers were found.
void add_xla_calls(nanobind::module_& m);

}  // namespace octavo::python
