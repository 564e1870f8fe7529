// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <nanobind/stl/string.h>

#include <array>
#include <regex>
#include <utility>

namespace nb = nanobind;

namespace octavo::python {
namespace {

PyObject* exception_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return PyExc_ValueError;
    case ErrorCode::unsupported:
      return PyExc_NotImplementedError;
    case ErrorCode::out_of_memory:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

// Regular expressions for the library's names, with the names of the Python parameters; applied in
// this order.
constexpr std::array<std::pair<const char*, const char*>, 8> kNames = {{
    {R"(\bout_scales(\.\w+)?)", "out_scale"},
    {R"(\b([qkv])_scales\.data\b)", "$1.scales"},
    {R"(\b([qkv])_scales\.)", "$1."},
    {R"(\b([qkv])_scales\b)", "$1.scales"},
    {R"(\bwindow_left\b)", "window[0]"},
    {R"(\bwindow_right\b)", "window[1]"},
    {R"(\bmax_len_(q|kv)\b)", "max_seqlen_$1"},
    {R"(\b([qkv])\.data is null\b)", "$1 is without memory of its own"},
}};

// Maps a dimension of the library's (batch, heads, seqlen, head_dim) to that of the layout.
constexpr std::array<int, 4> kInBshd = {0, 2, 1, 3}, kInPacked = {0, 1, 0, 2};

std::string reordered(const std::string& text, Layout layout) {
  const std::array<int, 4>& order = layout == Layout::bshd ? kInBshd : kInPacked;
  static const std::regex member(R"(\.(shape|stride)\[([0-3])\])");
  std::string made;
  auto from = text.cbegin();
  for (std::smatch found; std::regex_search(from, text.cend(), found, member);
       from = found.suffix().first) {
    made.append(found.prefix()).append(".").append(found.str(1)).append("[");
    made.append(std::to_string(order[found.str(2)[0] - '0'])).append("]");
  }
  made.append(from, text.cend());
  static const std::regex shape(R"(\((\d+), (\d+), (\d+), (\d+)\))");
  return std::regex_replace(made, shape,
                            layout == Layout::bshd ? "($1, $3, $2, $4)" : "($3, $2, $4)");
}

}  // namespace

std::string in_python_terms(std::string text, Layout layout) {
  for (const auto& [theirs, ours] : kNames)
    text = std::regex_replace(text, std::regex(theirs), ours);
  // The dimensions of bias and mask have one order in every layout.
  const bool of_scores = text.starts_with("bias") || text.starts_with("mask");
  return layout == Layout::bhsd || of_scores ? text : reordered(text, layout);
}

void raise(const Status& status, Layout layout) {
  PyErr_SetString(exception_for(status.code()), in_python_terms(status.what(), layout).c_str());
  throw nb::python_error();
}

void refuse(PyObject* exception, const std::string& what, const std::string& value,
            const std::string& supported) {
  PyErr_SetString(exception, (what + " is " + value + "; supported: " + supported + ".").c_str());
  throw nb::python_error();
}

std::string shown(nb::handle value) {
  const std::string type = nb::cast<std::string>(nb::handle(value.type()).attr("__name__"));
  if (PyBool_Check(value.ptr()) || PyLong_Check(value.ptr()) || PyFloat_Check(value.ptr()) ||
      PyUnicode_Check(value.ptr()))
    return nb::cast<std::string>(nb::repr(value)) + " (" + type + ")";
  return "of type " + type;
}

std::string quoted(std::string_view text) {
  std::string made("'");
  made.append(text).append("'");
  return made;
}

}  // namespace octavo::python
