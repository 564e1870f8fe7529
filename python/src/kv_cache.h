// SPDX-License-Identifier: Apache-2.0
// What octavo._merge_states and octavo._kv_cache call.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo::python {

void add_kv_cache(nanobind::module_& m);

}  // namespace octavo::python
