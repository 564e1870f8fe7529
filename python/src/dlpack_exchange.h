// The table of C functions that DLPack (from 1.3 on) lets a framework attach to its array type. It
// reads an array and the current stream without a call into Python. PyTorch has it from 2.10 on:
// reading a tensor takes 40 ns, through __dlpack__ 1 us.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace octavo::python {

struct DlpackExchange {
  std::uint32_t major_version, minor_version;
  DlpackExchange* previous;  // the table of an older major version, or null
  void (*allocate)();        // these three create and convert arrays and are not used here
  void (*to_managed)();
  void (*from_managed)();
  // Fills in `out`, whose memory the object owns. May be null. Returns -1 with a Python exception
  // set.
  int (*view)(void* object, nanobind::dlpack::dltensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

// The table of this type, or null.
const DlpackExchange* exchange_of(PyTypeObject* type);

}  // namespace octavo::python
