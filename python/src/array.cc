// SPDX-License-Identifier: Apache-2.0
#include "array.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

using nb::dlpack::dtype_code;

constexpr const char* kArrays = "arrays of NumPy, PyTorch, CuPy, JAX, and others with __dlpack__";
constexpr const char* kElements =
    "float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8; octavo.Quantized for others";

bool is_class(nb::handle type, const char* module, const char* name) {
  const auto is = [type](const char* attribute, const char* text) {
    nb::object value = nb::getattr(type, attribute, nb::none());
    return PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0;
  };
  return is("__name__", name) && is("__module__", module);
}

ArrayType look_at(PyTypeObject* type) {
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  ArrayType found{type, Framework::none, nullptr};
  for (nb::handle base : nb::borrow<nb::tuple>(type->tp_mro)) {
    if (is_class(base, "torch", "Tensor")) {
      const bool plain = base.is(handle) || is_class(handle, "torch.nn.parameter", "Parameter");
      found.framework = plain ? Framework::torch : Framework::torch_subclass;
    } else if (is_class(base, "numpy", "ndarray")) {
      found.framework = Framework::numpy;
    }
  }
  if (handle.is(nb::type<TracedArray>())) found.framework = Framework::traced;
  if (found.framework == Framework::none && nb::hasattr(handle, "__dlpack__"))
    found.framework = Framework::other;
  if (found.framework == Framework::torch) found.exchange = exchange_of(type);
  return found;
}

Device device_of(std::int32_t type, std::int32_t index, const char* what) {
  if (type == kDlpackCpu || type == kDlpackCudaHost) return {Device::Kind::cpu, 0};
  if (type == kDlpackCuda || type == kDlpackCudaManaged) return {Device::Kind::cuda, index};
  refuse(PyExc_TypeError, what, "on a device of DLPack's type " + std::to_string(type),
         "arrays in host memory or on an NVIDIA GPU");
}

template <class Tensor>
void fill(Array& array, const Tensor& t, void* data, const std::int64_t* strides,
          const char* what) {
  array.data = data;
  array.dtype = t.dtype;
  array.dimensions = t.ndim;
  array.device = device_of(t.device.device_type, t.device.device_id, what);
  const int kept = std::min<int>(t.ndim, kMostDimensions);
  std::int64_t dense = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (i < kept) {
      array.shape[i] = t.shape[i];
      array.stride[i] = strides == nullptr ? dense : strides[i];
    }
    dense *= t.shape[i];
  }
}

// The name of the array's own dtype, e.g. "bfloat16".
std::string own_dtype_name(nb::handle object) {
  const std::string text = nb::cast<std::string>(nb::str(nb::handle(object.attr("dtype"))));
  return text.substr(text.rfind('.') + 1);
}

// The type of this name in NumPy, e.g. "float16", if octavo could name it in an error.
std::optional<nb::dlpack::dtype> type_named(const std::string& name) {
  if (name == "bool") return dlpack_type(dtype_code::Bool, 8);
  if (name == "float8_e4m3fn") return dlpack_type(dtype_code::Float8_E4M3FN, 8);
  if (name == "float8_e5m2") return dlpack_type(dtype_code::Float8_E5M2, 8);
  const std::size_t digits = std::min(name.find_first_of("0123456789"), name.size());
  if (digits == name.size() || name.find_first_not_of("0123456789", digits) != name.npos) return {};
  const int bits = std::stoi(name.substr(digits));
  for (const auto& [prefix, code] : {std::pair{"float", dtype_code::Float},
                                     {"bfloat", dtype_code::Bfloat},
                                     {"int", dtype_code::Int},
                                     {"uint", dtype_code::UInt},
                                     {"complex", dtype_code::Complex}})
    if (name.compare(0, digits, prefix) == 0) return dlpack_type(code, bits);
  return {};
}

void read_traced(Array& array, const char* what) {
  const auto& traced = *nb::inst_ptr<TracedArray>(array.object);
  const std::optional<nb::dlpack::dtype> dtype = type_named(traced.dtype);
  if (!dtype) refuse(PyExc_TypeError, what, traced.dtype, kElements);
  const struct {
    nb::dlpack::dtype dtype;
    int ndim;
    nb::dlpack::device device;
    const std::int64_t* shape;
  } t{*dtype, static_cast<int>(traced.shape.size()), {kDlpackCpu, 0}, traced.shape.data()};
  fill(array, t, reinterpret_cast<void*>(traced.address), nullptr, what);
}

// The types that a framework has but does not export by DLPack: those of ml_dtypes in NumPy, float8
// in PyTorch before 2.9. Their memory is exported as integers instead.
std::optional<nb::dlpack::dtype> hidden_type(nb::handle object) {
  if (!nb::hasattr(object, "dtype")) return {};
  const std::string name = own_dtype_name(object);
  if (name == "bfloat16") return dlpack_type(dtype_code::Bfloat, 16);
  if (name == "float8_e4m3fn") return dlpack_type(dtype_code::Float8_E4M3FN, 8);
  if (name == "float8_e5m2") return dlpack_type(dtype_code::Float8_E5M2, 8);
  return {};
}

nb::object as_integers(nb::handle object, Framework framework, int bits) {
  if (framework == Framework::torch)
    return object.attr("view")(Torch::get().module.attr(bits == 8 ? "uint8" : "int16"));
  return object.attr("view")(bits == 8 ? "uint8" : "uint16");
}

template <class NdArray>
bool import_by_protocol(nb::handle object, Array& array, const char* what) {
  NdArray imported;
  if (!nb::try_cast(object, imported, false) || !imported.is_valid()) return false;
  struct {
    nb::dlpack::dtype dtype;
    int ndim;
    nb::dlpack::device device;
    const std::int64_t* shape;
  } const t{imported.dtype(),
            static_cast<int>(imported.ndim()),
            {imported.device_type(), imported.device_id()},
            imported.shape_ptr()};
  fill(array, t, const_cast<void*>(static_cast<const void*>(imported.data())),
       imported.stride_ptr(), what);
  array.keep = nb::capsule(new NdArray(std::move(imported)),
                           [](void* held) noexcept { delete static_cast<NdArray*>(held); });
  return true;
}

template <class NdArray>
bool read_by_protocol(Array& array, const char* what) {
  nb::object object = nb::borrow(array.object);
  // Tensors that need a gradient were rejected before. PyTorch does not export a leaf tensor that
  // requires grad even under no_grad(), so detach it.
  if (array.type->framework == Framework::torch) object = object.attr("detach")();
  if (import_by_protocol<NdArray>(object, array, what)) return true;
  const std::optional<nb::dlpack::dtype> hidden = hidden_type(object);
  if (!hidden) return false;
  const nb::object integers = as_integers(object, array.type->framework, hidden->bits);
  if (!import_by_protocol<NdArray>(integers, array, what)) return false;
  array.dtype = *hidden;
  return true;
}

// Reports PyTorch's error without its C++ stack trace, e.g. for sparse and nested tensors.
[[noreturn]] void refuse_unexported(const char* what) {
  nb::python_error error;
  std::string why = nb::cast<std::string>(nb::str(error.value()));
  why = why.substr(0, why.find('\n'));
  refuse(PyExc_TypeError, what, "a tensor that PyTorch does not export (" + why + ")",
         "dense tensors in host memory or on an NVIDIA GPU");
}

bool read(Array& array, const char* what, bool written) {
  if (array.type->framework == Framework::traced) {
    read_traced(array, what);
    return true;
  }
  if (const DlpackExchange* exchange = array.type->exchange) {
    nb::dlpack::dltensor t;
    if (exchange->view(array.object.ptr(), &t) != 0) refuse_unexported(what);
    fill(array, t, static_cast<char*>(t.data) + t.byte_offset, t.strides, what);
    return true;
  }
  return written ? read_by_protocol<nb::ndarray<>>(array, what)
                 : read_by_protocol<nb::ndarray<nb::ro>>(array, what);
}

// jax.jit, jax.vmap and jax.grad pass tracers instead of arrays: they have a type but no memory.
bool is_jax_tracer(const ArrayType& type) {
  for (nb::handle base : nb::borrow<nb::tuple>(type.type->tp_mro)) {
    const nb::object module = nb::getattr(base, "__module__", nb::none());
    if (PyUnicode_Check(module.ptr()) && nb::cast<std::string>(module).starts_with("jax") &&
        nb::cast<std::string>(base.attr("__name__")) == "Tracer")
      return true;
  }
  return false;
}

// Raises the reason why an array could not be read: an unsupported dtype or kind of array.
[[noreturn]] void refuse_unread(const Array& array, const char* what) {
  if (is_jax_tracer(*array.type))
    refuse(
        PyExc_TypeError, what, "a traced JAX array",
        "arrays of JAX outside of jax.jit, jax.vmap and jax.grad; octavo.jax.attention inside of "
        "them too");
  if (!nb::hasattr(array.object, "dtype"))
    refuse(PyExc_TypeError, what, shown(array.object), kElements);
  const std::string dtype = own_dtype_name(array.object);
  if (std::string(kElements).find(dtype) == std::string::npos)
    refuse(PyExc_TypeError, what, dtype, kElements);
  refuse(PyExc_TypeError, what, shown(array.object) + ", which DLPack does not export", kArrays);
}

Array start(nb::handle object, const char* what) {
  Array array;
  array.object = object;
  array.type = &array_type(object);
  if (array.type->framework == Framework::none)
    refuse(PyExc_TypeError, what, shown(object), kArrays);
  return array;
}

}  // namespace

TracedArray::TracedArray(std::vector<std::int64_t> shape, std::string dtype)
    : shape(std::move(shape)), dtype(std::move(dtype)) {
  // Far enough from each other for any array, and more than a call has. The GIL guards the number.
  constexpr std::uintptr_t kStep = std::uintptr_t{1} << 56, kCount = 120;
  static std::uintptr_t last = 0;
  last = last % kCount + 1;
  address = last * kStep;
}

const DlpackExchange* exchange_of(PyTypeObject* type) {
  constexpr std::uint32_t kMajorVersion = 1;
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  const nb::object capsule = nb::getattr(handle, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_CheckExact(capsule.ptr())) return nullptr;
  void* const pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (pointer == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* table = static_cast<const DlpackExchange*>(pointer);
  while (table != nullptr && table->major_version != kMajorVersion) table = table->previous;
  return table != nullptr && table->view != nullptr ? table : nullptr;
}

const ArrayType& array_type(nb::handle array) {
  // Never freed: the interpreter ends before statics are destroyed.
  static auto& known = *new std::deque<ArrayType>();
  PyTypeObject* const type = Py_TYPE(array.ptr());
  for (const ArrayType& one : known)
    if (one.type == type) return one;
  const ArrayType found = look_at(type);
  Py_INCREF(type);
  return known.emplace_back(found);
}

Array read_array(nb::handle object, const char* what) {
  Array array = start(object, what);
  if (!read(array, what, false)) refuse_unread(array, what);
  return array;
}

std::string module_of(const ArrayType& type) {
  const nb::handle handle(reinterpret_cast<PyObject*>(type.type));
  return nb::cast<std::string>(handle.attr("__module__"));
}

Array read_output(nb::handle object, const char* what) {
  Array array = start(object, what);
  // JAX exports its arrays as writable although they are immutable.
  const bool fixed =
      array.type->framework == Framework::other && module_of(*array.type).starts_with("jax");
  if (fixed || !read(array, what, true))
    refuse(PyExc_ValueError, what, "an array that may not be written",
           "writable arrays of float32, float16, bfloat16");
  return array;
}

std::string dtype_name(nb::dlpack::dtype dtype) {
  const auto bits = std::to_string(dtype.bits);
  switch (static_cast<dtype_code>(dtype.code)) {
    case dtype_code::Int:
      return "int" + bits;
    case dtype_code::UInt:
      return "uint" + bits;
    case dtype_code::Float:
      return "float" + bits;
    case dtype_code::Bfloat:
      return "bfloat" + bits;
    case dtype_code::Complex:
      return "complex" + bits;
    case dtype_code::Bool:
      return "bool";
    default:
      return "DLPack's type " + std::to_string(dtype.code) + " of " + bits + " bits";
  }
}

DType element_type(const Array& array, const char* what) {
  const nb::dlpack::dtype t = array.dtype;
  if (t == dlpack_type(dtype_code::Float, 16)) return DType::f16;
  if (t == dlpack_type(dtype_code::Bfloat, 16)) return DType::bf16;
  if (t == dlpack_type(dtype_code::Float, 32)) return DType::f32;
  if (t == dlpack_type(dtype_code::Float8_E4M3FN, 8)) return DType::e4m3;
  if (t == dlpack_type(dtype_code::Float8_E5M2, 8)) return DType::e5m2;
  if (t == dlpack_type(dtype_code::Int, 8)) return DType::int8;
  refuse(PyExc_TypeError, std::string(what) + " dtype", dtype_name(t), kElements);
}

Tensor tensor_view(const Array& a, DType dtype, Layout layout, const char* what) {
  const int wanted = layout == Layout::varlen ? 3 : 4;
  if (a.dimensions != wanted)
    refuse(PyExc_ValueError, what, "of " + std::to_string(a.dimensions) + " dimensions",
           layout == Layout::varlen ? "3 (tokens, heads, head_dim), with cu_seqlens"
           : layout == Layout::bhsd ? "4 (batch, heads, seqlen, head_dim), or 3 with cu_seqlens"
                                    : "4 (batch, seqlen, heads, head_dim), as layout is bshd");
  Tensor t{a.data, dtype, a.shape, a.stride};
  if (layout == Layout::bshd) {
    std::swap(t.shape[1], t.shape[2]);
    std::swap(t.stride[1], t.stride[2]);
  } else if (layout == Layout::varlen) {
    t.shape = {1, a.shape[1], a.shape[0], a.shape[2]};
    t.stride = {a.shape[0] * a.stride[0], a.stride[1], a.stride[0], a.stride[2]};
  }
  if (t.shape[3] == 1) t.stride[3] = 1;  // the stride of a dimension of size 1 is arbitrary
  return t;
}

}  // namespace octavo::python
