// SPDX-License-Identifier: Apache-2.0
// The table of C functions that DLPack (from 1.3 on) lets a framework attach to its array type. It
// reads an array and the current stream, and allocates, without a call into Python. PyTorch has it
// from 2.10 on: reading a tensor takes 40 ns, through __dlpack__ 1 us.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace octavo::python {

// A tensor whose receiver calls `deleter`, if it is not null.
struct DlpackManaged {
  std::uint32_t major_version, minor_version;
  void* owner;
  void (*deleter)(DlpackManaged* self);
  std::uint64_t flags;
  nanobind::dlpack::dltensor tensor;
};

struct DlpackExchange {
  std::uint32_t major_version, minor_version;
  DlpackExchange* previous;  // the table of an older major version, or null
  // Allocates a tensor of the type, shape and device of `like`, for the current stream. On failure
  // returns -1 and calls `report` with the kind of error and a message.
  int (*allocate)(nanobind::dlpack::dltensor* like, DlpackManaged** out, void* context,
                  void (*report)(void* context, const char* kind, const char* message));
  void (*to_managed)();  // these two convert arrays and are not used here
  void (*from_managed)();
  // Fills in `out`, whose memory the object owns. May be null. Returns -1 with a Python exception
  // set.
  int (*view)(void* object, nanobind::dlpack::dltensor* out);
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

// The table of this type, or null.
const DlpackExchange* exchange_of(PyTypeObject* type);

}  // namespace octavo::python
