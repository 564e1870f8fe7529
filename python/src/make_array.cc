// SPDX-License-Identifier: Apache-2.0
// Allocates the results of a call in the framework of its inputs.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "array.h"
#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// The type's name in PyTorch, which NumPy and JAX share.
const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::e4m3:
      return "float8_e4m3fn";
    case DType::e5m2:
      return "float8_e5m2";
    case DType::int8:
      return "int8";
    case DType::sim8:
    case DType::int4:
      return "uint8";
    case DType::boolean:
      return "bool";
  }
  return "";
}

// NumPy has no bfloat16, so ml_dtypes provides it. 8-bit floats become uint8.
nb::object numpy_dtype(DType dtype) {
  if (dtype == DType::bf16) return nb::module_::import_("ml_dtypes").attr("bfloat16");
  if (dtype == DType::e4m3 || dtype == DType::e5m2) return nb::str("uint8");
  return nb::str(torch_name(dtype));
}

nb::dlpack::dtype exported_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return dlpack_type(nb::dlpack::dtype_code::Bfloat, 16);
    case DType::f32:
    case DType::f16:
      return dlpack_type(nb::dlpack::dtype_code::Float, dtype == DType::f32 ? 32 : 16);
    case DType::int8:
      return dlpack_type(nb::dlpack::dtype_code::Int, 8);
    default:
      return dlpack_type(nb::dlpack::dtype_code::UInt, 8);
  }
}

nb::object make_buffer(Device device, DType dtype, int dimensions, const std::int64_t* shape) {
  std::array<std::size_t, kMostDimensions> sizes{};
  std::size_t bytes = size_bytes(dtype);
  for (int i = 0; i < dimensions; ++i) bytes *= sizes[i] = static_cast<std::size_t>(shape[i]);
  auto* const buffer = new Buffer(check(Buffer::make(device, std::max<std::size_t>(bytes, 1))));
  nb::capsule owner(buffer, [](void* held) noexcept { delete static_cast<Buffer*>(held); });
  const bool on_gpu = device.kind == Device::Kind::cuda;
  return nb::cast(nb::ndarray<nb::array_api>(
      buffer->data(), static_cast<std::size_t>(dimensions), sizes.data(), owner, nullptr,
      exported_type(dtype), on_gpu ? kDlpackCuda : kDlpackCpu, on_gpu ? device.index : 0));
}

nb::object make_traced(DType dtype, int dimensions, const std::int64_t* shape) {
  return nb::cast(TracedArray({shape, shape + dimensions}, torch_name(dtype)));
}

nb::tuple tuple_of(int dimensions, const std::int64_t* shape) {
  nb::list sizes;
  for (int i = 0; i < dimensions; ++i) sizes.append(shape[i]);
  return nb::tuple(sizes);
}

}  // namespace

const Torch& Torch::get() {
  // The GIL guards the pointer. A static with an initialiser would have its own lock. The import
  // releases the GIL while it holds that lock, and another thread that waits for the lock with the
  // GIL would deadlock.
  static const Torch* torch = nullptr;
  if (torch != nullptr) return *torch;
  const nb::object module = nb::module_::import_("torch");
  const auto* const made = new Torch{module,
                                     module.attr("empty"),
                                     module.attr("empty_like"),
                                     module.attr("is_grad_enabled"),
                                     module.attr("uint8"),
                                     module.attr("float32"),
                                     module.attr("bool")};
  if (torch == nullptr) torch = made;  // else another thread was faster, and `made` leaks
  return *torch;
}

nb::object make_like(const Array& like, DType dtype) {
  switch (like.type->framework) {
    case Framework::torch: {
      const Torch& torch = Torch::get();
      if (exported_type(dtype) == like.dtype) return torch.empty_like(like.object);
      return torch.empty_like(like.object, nb::arg("dtype") = torch.module.attr(torch_name(dtype)));
    }
    case Framework::numpy:
      return nb::module_::import_("numpy").attr("empty_like")(
          like.object, nb::arg("dtype") = numpy_dtype(dtype), nb::arg("subok") = false);
    case Framework::traced:
      return make_traced(dtype, like.dimensions, like.shape.data());
    default:
      return make_buffer(like.device, dtype, like.dimensions, like.shape.data());
  }
}

nb::object make_array(const Array& like, DType dtype, int dimensions, const std::int64_t* shape) {
  switch (like.type->framework) {
    case Framework::torch: {
      const Torch& torch = Torch::get();
      return torch.empty(tuple_of(dimensions, shape),
                         nb::arg("dtype") = torch.module.attr(torch_name(dtype)),
                         nb::arg("device") = like.object.attr("device"));
    }
    case Framework::numpy:
      return nb::module_::import_("numpy").attr("empty")(tuple_of(dimensions, shape),
                                                         nb::arg("dtype") = numpy_dtype(dtype));
    case Framework::traced:
      return make_traced(dtype, dimensions, shape);
    default:
      return make_buffer(like.device, dtype, dimensions, shape);
  }
}

nb::object make_like(const Array& like, DType dtype, std::int64_t columns) {
  const int last = like.dimensions - 1;
  if (like.shape[last] == columns) return make_like(like, dtype);
  // The dimensions before the last one, from the longest stride to the shortest.
  std::array<int, kMostDimensions> order{};
  std::iota(order.begin(), order.end(), 0);
  if (like.type->framework != Framework::other)
    std::stable_sort(order.begin(), order.begin() + last,
                     [&like](int a, int b) { return like.stride[a] > like.stride[b]; });
  std::array<std::int64_t, kMostDimensions> shape{}, places{};
  for (int i = 0; i <= last; ++i) {
    shape[i] = order[i] == last ? columns : like.shape[order[i]];
    places[order[i]] = i;
  }
  const nb::object made = make_array(like, dtype, like.dimensions, shape.data());
  switch (like.type->framework) {
    case Framework::torch:
      return made.attr("permute")(tuple_of(like.dimensions, places.data()));
    case Framework::numpy:
      return made.attr("transpose")(tuple_of(like.dimensions, places.data()));
    default:
      return made;
  }
}

void fill_with_zeros(const Array& like, const nb::object& made, const Array& target) {
  if (like.type->framework == Framework::traced) return;  // XLA fills it when the program runs
  if (like.type->framework == Framework::torch) {
    made.attr("zero_")();
  } else if (like.type->framework == Framework::numpy) {
    made.attr("fill")(0);
  } else if (like.device.kind == Device::Kind::cpu) {
    std::size_t bytes = target.dtype.bits / 8;
    for (int i = 0; i < target.dimensions; ++i) bytes *= static_cast<std::size_t>(target.shape[i]);
    if (bytes > 0) std::memset(target.data, 0, bytes);
  } else {
    refuse(PyExc_NotImplementedError, "cu_seqlens_q",
           "given with arrays of " + module_of(*like.type) + " on a GPU",
           "PyTorch tensors in the backward pass of a varlen batch there");
  }
}

nb::object finish(const Array& like, nb::object made) {
  if (like.type->framework != Framework::other) return made;
  if (nb::hasattr(like.object, "__array_namespace__"))
    return like.object.attr("__array_namespace__")().attr("from_dlpack")(made);
  const std::string module = module_of(*like.type);
  return nb::module_::import_(module.substr(0, module.find('.')).c_str()).attr("from_dlpack")(made);
}

}  // namespace octavo::python
