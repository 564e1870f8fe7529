// An array of any framework, read without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>

#include "dlpack_exchange.h"
#include "errors.h"
#include "octavo/octavo.hpp"

namespace octavo::python {

// DLPack's numbers.
inline constexpr std::int32_t kDlpackCpu = 1, kDlpackCuda = 2, kDlpackCudaHost = 3,
                              kDlpackCudaManaged = 13;
constexpr nanobind::dlpack::dtype dlpack_type(nanobind::dlpack::dtype_code code, int bits) {
  return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
}

enum class Framework : std::uint8_t {
  torch,
  torch_subclass,  // fake tensors and the like: for PyTorch's dispatcher alone
  numpy,
  other,  // whatever has __dlpack__: CuPy, JAX
  none,   // no array
};

// What is known of an array's type; one for each type that was ever seen.
struct ArrayType {
  PyTypeObject* type;
  Framework framework;
  const DlpackExchange* exchange;  // null: read by __dlpack__
};
const ArrayType& array_type(nanobind::handle array);
std::string module_of(const ArrayType& type);  // "cupy", "jaxlib._jax"

constexpr int kMostDimensions = 4;

struct Array {
  nanobind::handle object;
  const ArrayType* type = nullptr;
  void* data = nullptr;
  nanobind::dlpack::dtype dtype{};
  int dimensions = 0;  // more than four are counted, not kept
  std::array<std::int64_t, kMostDimensions> shape{};
  std::array<std::int64_t, kMostDimensions> stride{};  // in elements
  Device device{};
  nanobind::object keep{};  // what holds the memory beside the object itself
};

// `what` names it in errors. TypeError for what is no array, or one of a kind of memory unknown.
Array read_array(nanobind::handle object, const char* what);
// One that is going to be written.
Array read_output(nanobind::handle object, const char* what);

// The library's type; TypeError for one it does not have.
DType element_type(const Array& array, const char* what);
std::string dtype_name(nanobind::dlpack::dtype dtype);

// (batch, heads, rows, columns), whatever the order of the array's dimensions.
Tensor tensor_view(const Array& array, DType dtype, Layout layout, const char* what);

// PyTorch's functions that a call needs; looked up once.
struct Torch {
  nanobind::object module, empty, empty_like, is_grad_enabled, uint8, float32;
  static const Torch& get();
};

// An uninitialised array of the framework of `like`, on its device. Its memory order is that of
// `like` if `shape` is null. For the others than PyTorch and NumPy it is only a DLPack object,
// which finish() gives to the framework once it is written: JAX's arrays may not change after that.
nanobind::object make_like(const Array& like, DType dtype);
nanobind::object make_array(const Array& like, DType dtype, int dimensions,
                            const std::int64_t* shape);
nanobind::object finish(const Array& like, nanobind::object made);

}  // namespace octavo::python
