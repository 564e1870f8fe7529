// SPDX-License-Identifier: Apache-2.0
// What octavo.BlockMask.from_ranges calls.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo::python {

void add_block_mask(nanobind::module_& m);

}  // namespace octavo::python
