// From the library's Status to Python's exceptions, and the house's sentence for what is refused on
// the way to the library.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::python {

// ValueError, NotImplementedError (a RuntimeError), MemoryError or RuntimeError.
[[noreturn]] void raise(const Status& status);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}
template <class T>
T check(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

// "what is value; supported: supported."
[[noreturn]] void refuse(PyObject* exception, const std::string& what, const std::string& value,
                         const std::string& supported);

// For the sentence: "3 (int)", "of type list".
std::string shown(nanobind::handle value);
std::string quoted(std::string_view text);

}  // namespace octavo::python
