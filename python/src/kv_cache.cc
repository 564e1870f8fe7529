// SPDX-License-Identifier: Apache-2.0
#include "kv_cache.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "call.h"
#include "errors.h"
#include "octavo/kv_cache.hpp"

namespace nb = nanobind;

namespace octavo::python {
namespace {

Array host_array(nb::handle object, const std::string& what) {
  Array array = read_array(object, what.c_str());
  if (array.device.kind != Device::Kind::cpu)
    refuse(PyExc_NotImplementedError, what, "on " + name(array.device), "arrays in host memory");
  return array;
}

Tensor host_tensor(const Array& array, Layout layout, const std::string& what) {
  return tensor_view(array, element_type(array, what.c_str()), layout, what.c_str());
}

// lse is (batch, heads, seqlen) in every layout.
Tensor lse_tensor(const Array& array, const std::string& what) {
  if (array.dimensions != 3)
    refuse(PyExc_ValueError, what, "of " + std::to_string(array.dimensions) + " dimensions",
           "(batch, heads, seqlen)");
  Tensor t{array.data, element_type(array, what.c_str()), {1, 1, 1, 1}, {0, 0, 0, 1}};
  for (std::size_t i = 0; i < 3; ++i) {
    t.shape[i] = array.shape[i];
    t.stride[i] = array.stride[i];
  }
  return t;
}

// The parts of a list, or of an array with a leading dimension.
std::vector<nb::object> parts_of(nb::handle given, const char* what) {
  const Py_ssize_t count = PyObject_Length(given.ptr());
  if (count < 0) {
    PyErr_Clear();
    refuse(PyExc_TypeError, what, shown(given), "a list of arrays, one for each part of the keys");
  }
  std::vector<nb::object> parts;
  for (Py_ssize_t i = 0; i < count; ++i) {
    parts.push_back(nb::steal(PyObject_GetItem(given.ptr(), nb::int_(i).ptr())));
    if (!parts.back().is_valid()) throw nb::python_error();
  }
  return parts;
}

nb::object merge_parts(nb::handle out, nb::handle lse, nb::handle given_layout) {
  const Layout layout = layout_of(given_layout);
  const std::vector<nb::object> out_parts = parts_of(out, "out"), lse_parts = parts_of(lse, "lse");
  if (out_parts.empty() || out_parts.size() != lse_parts.size())
    refuse(PyExc_ValueError, "out",
           std::to_string(out_parts.size()) + " parts with " + std::to_string(lse_parts.size()) +
               " of lse",
           "the same number, from 1 on");
  std::vector<Array> arrays;  // own the memory
  std::vector<ConstTensor> outs, lses;
  for (std::size_t i = 0; i < out_parts.size(); ++i) {
    std::string place("[");
    place += std::to_string(i);
    place += "]";
    arrays.push_back(host_array(out_parts[i], "out" + place));
    outs.push_back(host_tensor(arrays.back(), layout, "out" + place));
    arrays.push_back(host_array(lse_parts[i], "lse" + place));
    lses.push_back(lse_tensor(arrays.back(), "lse" + place));
  }
  const Array &first = arrays[0], &first_lse = arrays[1];
  nb::object merged = make_like(first, outs[0].dtype);
  nb::object merged_lse = make_array(first_lse, DType::f32, 3, first_lse.shape.data());
  const Array out_memory = read_array(merged, "out"), lse_memory = read_array(merged_lse, "lse");
  const Tensor to = tensor_view(out_memory, outs[0].dtype, layout, "out");
  const Tensor lse_to = lse_tensor(lse_memory, "lse");
  Status status;
  {
    const nb::gil_scoped_release released;
    status = merge_states(outs, lses, to, lse_to);
  }
  check(status, layout);
  return nb::make_tuple(finish(first, std::move(merged)), finish(first_lse, std::move(merged_lse)));
}

// cos and sin: float32 (positions, pairs), contiguous.
const float* read_angles(const Array& array, const char* what) {
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Float, 32))
    refuse(PyExc_TypeError, what, "of " + dtype_name(array.dtype), "float32");
  const bool contiguous = array.dimensions == 2 && (array.shape[1] <= 1 || array.stride[1] == 1) &&
                          (array.shape[0] <= 1 || array.stride[0] == array.shape[1]);
  if (!contiguous)
    refuse(PyExc_ValueError, what, "of another shape or not contiguous",
           "(positions, pairs), contiguous");
  return static_cast<const float*>(array.data);
}

Stream stream_at(std::uintptr_t address) { return reinterpret_cast<Stream>(address); }

// "int4", which is the name of no array's type, or a dtype.
DType cache_dtype(nb::handle dtype) {
  if (PyUnicode_Check(dtype.ptr()) && nb::cast<std::string>(dtype) == "int4") return DType::int4;
  return dtype_of(dtype, "dtype", true);
}

class PythonKvCache {
 public:
  PythonKvCache(const KvCacheOptions& options, Device device)
      : cache_(check(KvCache::create(options, device))) {}

  KvCache& cache() { return cache_; }

  void append(nb::handle k, nb::handle v, nb::handle rotary, bool interleaved, nb::handle layout,
              std::uintptr_t stream) {
    const Array k_array = cache_array(k, "k"), v_array = cache_array(v, "v");
    const Layout order = layout_of(layout);
    Rotary turned;
    std::array<Array, 2> angles;
    if (!rotary.is_none()) {
      if (!PyTuple_Check(rotary.ptr()) || nb::len(rotary) != 2)
        refuse(PyExc_TypeError, "rotary", shown(rotary), "None or a pair (cos, sin)");
      angles = {cache_array(rotary[0], "cos"), cache_array(rotary[1], "sin")};
      turned.cos = read_angles(angles[0], "cos");
      turned.sin = read_angles(angles[1], "sin");
      if (angles[0].shape[0] != angles[1].shape[0] || angles[0].shape[1] != angles[1].shape[1])
        refuse(PyExc_ValueError, "sin", "of another shape than cos", "the shape of cos");
      turned.positions = angles[0].shape[0];
      turned.pairs = angles[0].shape[1];
      turned.interleaved = interleaved;
    }
    const Tensor k_rows = host_tensor(k_array, order, "k"),
                 v_rows = host_tensor(v_array, order, "v");
    Status status;
    {
      const nb::gil_scoped_release released;
      status = cache_.append(k_rows, v_rows, turned, stream_at(stream));
    }
    check(status, order);
  }

  void read(std::int64_t sequence, nb::handle k, nb::handle v, std::uintptr_t stream) {
    const Array k_array = read_output(k, "k"), v_array = read_output(v, "v");
    check(cache_.read(sequence, host_tensor(k_array, Layout::bhsd, "k"),
                      host_tensor(v_array, Layout::bhsd, "v"), stream_at(stream)));
  }

  // Arrays of the cache's memory, which `self` owns: k, v, k_scales, v_scales, page_table, lengths.
  // The scales of int4 are those of the groups, and then their zeros.
  nb::dict arrays(nb::handle self) {
    Arguments a;
    cache_.set_arguments(a);
    const KvCacheOptions& o = cache_.options();
    nb::dict found;
    const bool swapped = o.layout == PageLayout::bshd;
    for (const auto& [what, t] : {std::pair{"k", a.k}, {"v", a.v}}) {
      std::array<std::size_t, 4> shape = {
          static_cast<std::size_t>(o.pages), static_cast<std::size_t>(o.heads),
          static_cast<std::size_t>(o.page_size), static_cast<std::size_t>(t.shape[3])};
      if (swapped) std::swap(shape[1], shape[2]);
      found[what] = view(self, const_cast<void*>(t.data), t.dtype, 4, shape.data());
    }
    if (is_8bit(o.dtype))
      for (const auto& [what, scales] :
           {std::pair{"k_scales", a.k_scales}, {"v_scales", a.v_scales}}) {
        const std::array<std::size_t, 3> shape = {static_cast<std::size_t>(o.pages),
                                                  static_cast<std::size_t>(o.heads),
                                                  static_cast<std::size_t>(o.page_size)};
        found[what] = view(self, const_cast<float*>(scales.data), DType::f32, 3, shape.data());
      }
    if (o.dtype == DType::int4)
      for (const auto& [what, groups] :
           {std::pair{"k_scales", a.k_groups}, {"v_scales", a.v_groups}}) {
        const std::array<std::size_t, 4> shape = {
            static_cast<std::size_t>(o.pages), static_cast<std::size_t>(o.heads),
            static_cast<std::size_t>(2 * o.head_dim / o.group),
            static_cast<std::size_t>(o.page_size)};
        found[what] = view(self, const_cast<void*>(groups.data), DType::f16, 4, shape.data());
      }
    const std::array<std::size_t, 2> table = {static_cast<std::size_t>(cache_.selected()),
                                              static_cast<std::size_t>(a.pages_per_sequence)};
    found["page_table"] = words(self, a.page_table, 2, table.data());
    found["seqlens_kv"] = words(self, a.seqlens_kv, 1, table.data());
    return found;
  }

 private:
  bool is_on_gpu() const { return cache_.device().kind == Device::Kind::cuda; }

  // An array on the device of the cache.
  Array cache_array(nb::handle object, const std::string& what) const {
    if (!is_on_gpu()) return host_array(object, what);
    Array array = read_array(object, what.c_str());
    if (array.device != cache_.device())
      refuse(PyExc_ValueError, what, "on " + name(array.device),
             name(cache_.device()) + ", where the cache is");
    return array;
  }

  nb::object view(nb::handle self, void* data, DType dtype, std::size_t dimensions,
                  const std::size_t* shape) const {
    using Code = nb::dlpack::dtype_code;
    const auto kind = dtype == DType::f32    ? dlpack_type(Code::Float, 32)
                      : dtype == DType::f16  ? dlpack_type(Code::Float, 16)
                      : dtype == DType::bf16 ? dlpack_type(Code::Bfloat, 16)
                                             : dlpack_type(Code::UInt, 8);
    // NumPy has no bfloat16.
    if (is_on_gpu() || dtype == DType::bf16)
      return shared_view(self, data, kind, dimensions, shape);
    return nb::cast(nb::ndarray<nb::numpy>(data, dimensions, shape, self, nullptr, kind));
  }
  nb::object words(nb::handle self, const std::int32_t* data, std::size_t dimensions,
                   const std::size_t* shape) const {
    if (is_on_gpu())
      return shared_view(self, const_cast<std::int32_t*>(data),
                         dlpack_type(nb::dlpack::dtype_code::Int, 32), dimensions, shape);
    return nb::cast(nb::ndarray<nb::numpy, const std::int32_t>(data, dimensions, shape, self));
  }
  // An array for any framework that reads DLPack.
  nb::object shared_view(nb::handle self, void* data, nb::dlpack::dtype kind,
                         std::size_t dimensions, const std::size_t* shape) const {
    return nb::cast(nb::ndarray<nb::array_api>(data, dimensions, shape, self, nullptr, kind,
                                               is_on_gpu() ? kDlpackCuda : kDlpackCpu,
                                               cache_.device().index));
  }

  KvCache cache_;
};

}  // namespace

void add_kv_cache(nb::module_& m) {
  m.def("_merge_states", &merge_parts, nb::arg("out"), nb::arg("lse"), nb::kw_only(),
        nb::arg("layout") = "bhsd");
  nb::class_<PythonKvCache>(m, "_KvCache")
      .def("__init__",
           [](PythonKvCache* self, std::int64_t pages, std::int64_t page_size, std::int64_t heads,
              std::int64_t head_dim, nb::handle dtype, nb::handle layout, std::int64_t max_batch,
              std::int64_t pages_per_sequence, std::int64_t group, std::string_view device) {
             KvCacheOptions o;
             o.pages = pages;
             o.page_size = page_size;
             o.heads = heads;
             o.head_dim = head_dim;
             o.dtype = cache_dtype(dtype);
             o.group = group;
             o.layout = layout_of(layout) == Layout::bshd ? PageLayout::bshd : PageLayout::bhsd;
             o.max_batch = max_batch;
             o.pages_per_sequence = pages_per_sequence;
             new (self) PythonKvCache(o, check(parse_device(device)));
           })
      .def("add_sequence", [](PythonKvCache& c) { return check(c.cache().add_sequence()); })
      .def("fork",
           [](PythonKvCache& c, std::int64_t sequence) { return check(c.cache().fork(sequence)); })
      .def("free_sequence",
           [](PythonKvCache& c, std::int64_t sequence, std::uintptr_t stream) {
             check(c.cache().free_sequence(sequence, stream_at(stream)));
           })
      .def("length", [](PythonKvCache& c,
                        std::int64_t sequence) { return check(c.cache().length(sequence)); })
      .def("free_pages", [](PythonKvCache& c) { return c.cache().free_pages(); })
      .def("select",
           [](PythonKvCache& c, const std::vector<std::int64_t>& sequences, std::uintptr_t stream) {
             check(c.cache().select(sequences, stream_at(stream)));
           })
      .def("reserve",
           [](PythonKvCache& c, std::int64_t tokens, std::uintptr_t stream) {
             check(c.cache().reserve(tokens, stream_at(stream)));
           })
      .def("advance",
           [](PythonKvCache& c, std::int64_t tokens, std::uintptr_t stream) {
             check(c.cache().advance(tokens, stream_at(stream)));
           })
      .def("device", [](PythonKvCache& c) { return name(c.cache().device()); })
      .def("append", &PythonKvCache::append, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
           nb::arg(), nb::arg())
      .def("read", &PythonKvCache::read)
      .def("pages_per_sequence",
           [](PythonKvCache& c) { return c.cache().options().pages_per_sequence; })
      .def("arrays", [](nb::handle_t<PythonKvCache> self) {
        return nb::cast<PythonKvCache&>(self).arrays(self);
      });
}

}  // namespace octavo::python
