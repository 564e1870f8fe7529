// The extension module octavo._octavo: the library's functions, for arrays of any framework.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <vector>

#include "attention.h"
#include "errors.h"
#include "octavo/evidence.hpp"
#include "quantize.h"
#include "torch_route.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// Nothing thrown in C++ passes into the interpreter.
template <class Body>
PyObject* guarded(const Body& body) noexcept {
  try {
    return body().release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* attention_method(PyObject*, PyObject* const* values, Py_ssize_t positional,
                           PyObject* names) {
  return guarded(
      [&] { return attention(read_parameters("attention", kDevice, values, positional, names)); });
}

// For octavo.torch: see attention.h.
PyObject* run_method(PyObject*, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  return guarded([&] {
    return run_directly(read_parameters("attention", kDevice, values, positional, names));
  });
}

template <bool above_autograd, bool lse>
PyObject* operator_method(PyObject*, PyObject* const* values, Py_ssize_t positional,
                          PyObject* names) {
  return guarded([&] {
    const Given given = read_operator_parameters(values, positional, names);
    return above_autograd ? run_above_autograd(given, lse) : run_operator(given, lse);
  });
}

nb::object told_by(const Explanation& told) {
  return nb::module_::import_("octavo._told")
      .attr("Explanation")(told.device, told.kernel, told.config, told.reason, told.workspace_bytes,
                           told.measured_us, told.max_error);
}

PyObject* explain_method(PyObject*, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) {
  return guarded([&] {
    return told_by(
        explain_call(read_parameters("explain", kParameterCount, values, positional, names)));
  });
}

nb::list list_devices() {
  std::vector<DeviceInfo> found;
  {
    const nb::gil_scoped_release released;
    found = devices();
  }
  const nb::object type = nb::module_::import_("octavo._told").attr("DeviceInfo");
  nb::list made;
  for (const DeviceInfo& one : found)
    made.append(type(name(one.device), one.description, one.available, one.reason));
  return made;
}

void fill_normal(nb::handle array, std::uint64_t seed, std::uint64_t stream) {
  const Array out = read_output(array, "array");
  if (out.device.kind != Device::Kind::cpu)
    refuse(PyExc_NotImplementedError, "array", "on " + name(out.device), "arrays in host memory");
  const Tensor view = tensor_view(out, element_type(out, "array"), Layout::bhsd, "array");
  check(random_normal(view, seed, stream));
}

// Python's own signature syntax in front of a docstring: help() and inspect read it.
#define OCTAVO_PARAMETERS                                                                    \
  "q, k, v, *, causal=False, window=None, scale=None, precision=None, out=None, "            \
  "return_lse=False, layout='bhsd', out_dtype=None, cu_seqlens_q=None, cu_seqlens_kv=None, " \
  "max_seqlen_q=None, max_seqlen_kv=None, quantization=None, batch_invariant=False, "        \
  "overlap_launch=False, stream=None, max_error=None, out_scale=None, return_amax=False"

constexpr const char* kAttentionDoc = "attention(" OCTAVO_PARAMETERS R"doc()
--

softmax(scale * Q K^T + mask) V, without copies, for arrays of NumPy, PyTorch, CuPy or JAX.

q            (batch, heads, rows, columns); (tokens, heads, columns) with cu_seqlens
k, v         likewise, with heads that divide q's
             float32, float16, bfloat16, 8-bit types, or octavo.Quantized
causal       True where q and k have as many rows; else "top_left": row i sees keys up to i, as in
             PyTorch; or "bottom_right": the last row sees the last key, as with a cache
window       (left, right): keys beside the diagonal that a row sees; -1 or None: no limit
scale        of Q K^T; 1 / sqrt(columns) if None
precision    None (as the inputs are), fp16, bf16, fp8, fp8_mixed, fp8_fast, int8, int8_mixed, sim8;
             "auto": the fastest whose worst error on record is within max_error
out          the array to write into; else one is made, of q's kind, device and memory order
return_lse   also return the natural logarithm of each row's sum: (batch, heads, rows) float32
layout       "bhsd", or "bshd" for dimensions in the order (batch, rows, heads, columns)
out_dtype    float32, float16 or bfloat16; q's own if None, float16 if that has 8 bits;
             float8_e4m3fn, float8_e5m2 or int8 with out_scale (bytes in NumPy)
cu_seqlens_q, cu_seqlens_kv    int32, on q's device: where the sequences of a packed batch start
max_seqlen_q, max_seqlen_kv    the longest of them; may be None in host memory
quantization how a precision of 8 bits quantizes: a dict with qk, v, block_rows, rule, smooth_k,
             hadamard
batch_invariant    a row's bits do not depend on its company in the batch
overlap_launch     on a GPU it may start before what precedes it in the stream has ended, whose
             results it waits for itself
stream       a CUDA stream; the framework's current one if None
max_error    of an output, for inputs of about unit variance: of precision="auto" alone
out_scale    of an 8-bit output, float32, on q's device: one number, or (batch, heads). A code
             stands for code * scale; rounded to nearest even, cut at the largest code
return_amax  also return the largest finite |out| before that rounding, float32: (1,), or
             (batch, heads) where out_scale is; the last of the results

Raises ValueError and TypeError for arguments, NotImplementedError for what this device does not
serve, MemoryError and RuntimeError.)doc";

constexpr const char* kExplainDoc = "explain(" OCTAVO_PARAMETERS R"doc(, device=None)
--

Which kernel attention() would run for these arguments, and why: an octavo.Explanation.

device       "cpu", "cuda:0", "auto"; where the arrays are if None)doc";

using FastMethod = PyObject*(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyMethodDef method(const char* name, FastMethod* function, const char* doc = nullptr) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}

PyMethodDef methods[] = {method("attention", attention_method, kAttentionDoc),
                         method("explain", explain_method, kExplainDoc),
                         method("_run", run_method),
                         method("_kernel", operator_method<false, false>),
                         method("_kernel_lse", operator_method<false, true>),
                         method("_autograd_kernel", operator_method<true, false>),
                         method("_autograd_kernel_lse", operator_method<true, true>),
                         {nullptr, nullptr, 0, nullptr}};

}  // namespace
}  // namespace octavo::python

NB_MODULE(_octavo, m) {
  using namespace octavo::python;
  m.doc() = "Octavo: fused attention.";
  if (PyModule_AddFunctions(m.ptr(), methods) != 0) throw nb::python_error();
  m.def("_plain_sdpa", &plain_sdpa, nb::arg().none(), nb::arg().none(), nb::arg().none(), nb::arg(),
        nb::arg().none(), nb::arg());
  m.def("_reads_dispatch_keys", &reads_dispatch_keys);
  m.def("_gradient_sentence", &gradient_sentence);
  m.def("_tangent_sentence", &tangent_sentence);
  m.def("devices", &list_devices,
        "Every device this machine might have, available or not and why: octavo.DeviceInfo.");
  m.def("quantize", &quantize_array, nb::arg("x"), nb::arg("format") = "e4m3", nb::kw_only(),
        nb::arg("granularity") = "head", nb::arg("block_rows") = 64, nb::arg("rule") = "amax",
        nb::arg("smooth") = false, nb::arg("hadamard") = false,
        nb::arg("scales").none() = nb::none(), nb::arg("layout") = "bhsd",
        nb::arg("transposed") = false, nb::arg("largest_code") = 0.0f,
        "8-bit codes and scales of an array in host memory: an octavo.Quantized.\n\n"
        "format: e4m3, e5m2, int8, sim8; granularity: tensor, head, block, row, channel; rule:\n"
        "amax, least_squares; smooth: subtract the mean row of each head first; hadamard: then\n"
        "rotate the rows; scales: yours instead of its own; transposed: for a v that Hopper's\n"
        "8-bit kernels read as it is, where rows cost a pass over v in every call; largest_code:\n"
        "what the largest magnitude under a scale becomes, 0 for the format's largest.");
  m.def("dequantize", &dequantize_array, nb::arg("quantized"), nb::arg("dtype") = "float32",
        nb::arg("layout") = "bhsd",
        "The values of an octavo.Quantized, without undoing rotation or smoothing.");
  m.def(
      "set_cpu_threads", [](int threads) { check(octavo::set_cpu_threads(threads)); },
      nb::arg("threads"),
      "Worker threads of the CPU backend; 0: one per core this process may use.");
  m.def("random_normal", &fill_normal, nb::arg("array"), nb::arg("seed"), nb::arg("stream") = 0,
        "Fills a (batch, heads, rows, columns) array with standard normal values that depend only\n"
        "on seed, stream and index: the same on every machine, and in C++.");
  m.attr("__version__") = std::string(octavo::version());
}
