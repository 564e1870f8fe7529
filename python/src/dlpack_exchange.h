// The table of C functions that DLPack (from 1.3 on) lets a framework hang on its array type: an
// array is read, and the current stream asked for, without a call into Python. PyTorch has it from
// 2.10 on; reading a tensor by it costs 40 ns, by __dlpack__ 1 us.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace octavo::python {

struct DlpackExchange {
  std::uint32_t major_version, minor_version;
  DlpackExchange* previous;  // the same for an older major version, or null
  void (*allocate)();        // these three make and take arrays, which nobody here does
  void (*to_managed)();
  void (*from_managed)();
  // Fills in what the object keeps; may be null. -1: failed, with a Python exception set.
  int (*view)(void* object, nanobind::dlpack::dltensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

// The table of this type, or null.
const DlpackExchange* exchange_of(PyTypeObject* type);

}  // namespace octavo::python
