// SPDX-License-Identifier: Apache-2.0
// An array of any framework, read without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "dlpack_exchange.h"
#include "errors.h"
#include "octavo/octavo.hpp"

namespace octavo::python {

// Device types of DLPack.
inline constexpr std::int32_t kDlpackCpu = 1, kDlpackCuda = 2, kDlpackCudaHost = 3,
                              kDlpackCudaManaged = 13;
constexpr nanobind::dlpack::dtype dlpack_type(nanobind::dlpack::dtype_code code, int bits) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
}

enum class Framework : std::uint8_t {
  torch,
  torch_subclass,  // fake tensors and the like: only PyTorch's dispatcher handles them
  numpy,
  other,   // any other object with __dlpack__: CuPy, JAX
  traced,  // a TracedArray
  none,    // not an array
};

// The shape and type of an array, all that is known of it when JAX traces a program. Checks that
// compare addresses see one of its own, where nothing is stored.
struct TracedArray {
  std::vector<std::int64_t> shape;
  std::string dtype;  // its name in NumPy
  std::uintptr_t address;

  TracedArray(std::vector<std::int64_t> shape, std::string dtype);
};

// Cached information on an array's Python type.
struct ArrayType {
  PyTypeObject* type;
  Framework framework;
  const DlpackExchange* exchange;  // null: arrays are read through __dlpack__
};
const ArrayType& array_type(nanobind::handle array);
std::string module_of(const ArrayType& type);  // "cupy", "jaxlib._jax"

constexpr int kMostDimensions = 4;

struct Array {
  nanobind::handle object;
  const ArrayType* type = nullptr;
  void* data = nullptr;
  nanobind::dlpack::dtype dtype{};
  int dimensions = 0;  // may exceed kMostDimensions; shape and stride then hold the first four
  std::array<std::int64_t, kMostDimensions> shape{};
  std::array<std::int64_t, kMostDimensions> stride{};  // in elements
  Device device{};
  nanobind::object keep{};  // owns the memory in addition to the object itself
};

// `what` names the argument in errors. Raises TypeError if the object is not an array or its memory
// is of an unknown kind.
Array read_array(nanobind::handle object, const char* what);
// Reads an array that the call will write.
Array read_output(nanobind::handle object, const char* what);

// The library's element type; raises TypeError for an unsupported one.
DType element_type(const Array& array, const char* what);
std::string dtype_name(nanobind::dlpack::dtype dtype);

// A (batch, heads, seqlen, head_dim) view of an array of any layout.
Tensor tensor_view(const Array& array, DType dtype, Layout layout, const char* what);

// PyTorch's functions that a call needs, looked up once.
struct Torch {
  nanobind::object module, empty, empty_like, is_grad_enabled, uint8, float32, boolean;
  static const Torch& get();
};

// All return an uninitialised array of the framework of `like`, on its device; make_like() also
// has its shape and memory order, but for other columns if they are given. Except for PyTorch and
// NumPy it is only a DLPack object, which finish() passes to the framework after it is written:
// JAX's arrays are immutable from then on.
nanobind::object make_like(const Array& like, DType dtype);
nanobind::object make_like(const Array& like, DType dtype, std::int64_t columns);
nanobind::object make_array(const Array& like, DType dtype, int dimensions,
                            const std::int64_t* shape);
// Fills an array that make_like() made; `target` is its memory.
void fill_with_zeros(const Array& like, const nanobind::object& made, const Array& target);
nanobind::object finish(const Array& like, nanobind::object made);

}  // namespace octavo::python
