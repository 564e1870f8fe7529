// octavo.merge_states, and the KV cache for octavo._kv_cache.
#pragma once

#include <nanobind/nanobind.h>

namespace octavo::python {

void add_kv_cache(nanobind::module_& m);

}  // namespace octavo::python
