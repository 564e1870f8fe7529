#include "errors.h"

#include <nanobind/stl/string.h>

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

}  // namespace

void raise(const Status& status) {
  PyErr_SetString(exception_for(status.code()), status.what());
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
