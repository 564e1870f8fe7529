// SPDX-License-Identifier: Apache-2.0
// Converts the library's Status to Python exceptions, and raises the same kind of error for
// arguments that are rejected before the library is called.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::python {

// The order of an array's dimensions.
enum class Layout : std::uint8_t { bhsd, bshd, varlen };

// Rewrites the library's error in terms of the Python arguments: k_scales.data[3] becomes
// k.scales[3], and dimensions are numbered in the order of the layout.
std::string in_python_terms(std::string text, Layout layout);

// Raises ValueError, NotImplementedError (a RuntimeError), MemoryError or RuntimeError.
[[noreturn]] void raise(const Status& status, Layout layout = Layout::bhsd);

inline void check(const Status& status, Layout layout = Layout::bhsd) {
  if (!status.ok()) raise(status, layout);
}
template <class T>
T check(Result<T> result, Layout layout = Layout::bhsd) {
  if (!result.ok()) raise(result.status(), layout);
  return std::move(result).value();
}

// Raises "<what> is <value>; supported: <supported>."
[[noreturn]] void refuse(PyObject* exception, const std::string& what, const std::string& value,
                         const std::string& supported);

// Describes a value in an error: "3 (int)", "of type list".
std::string shown(nanobind::handle value);
std::string quoted(std::string_view text);

}  // namespace octavo::python
