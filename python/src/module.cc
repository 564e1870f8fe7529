// SPDX-License-Identifier: Apache-2.0
// The extension module octavo._octavo: the library's functions for arrays of any framework.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "attention.h"
#include "block_mask.h"
#include "errors.h"
#include "kv_cache.h"
#include "octavo/evidence.hpp"
#include "quantize.h"
#include "torch_route.h"
#include "xla_call.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// Converts C++ exceptions to Python exceptions, so that none reaches the interpreter.
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
      [&] { return attention(read_parameters(kAttentionSignature, values, positional, names)); });
}

// For octavo.torch, see run_directly() in attention.h.
PyObject* run_method(PyObject*, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  return guarded([&] {
    return run_directly(read_parameters(kAttentionSignature, values, positional, names));
  });
}

template <bool directly>
PyObject* backward_method(PyObject*, PyObject* const* values, Py_ssize_t positional,
                          PyObject* names) {
  return guarded([&] {
    const Given given = read_parameters(kBackwardSignature, values, positional, names);
    return directly ? run_backward_directly(given) : attention_backward(given);
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

nb::object as_python(const Explanation& e) {
  return nb::module_::import_("octavo._results")
      .attr("Explanation")(e.device, e.kernel, e.config, e.reason, e.workspace_bytes, e.measured_us,
                           e.max_error);
}

PyObject* explain_method(PyObject*, PyObject* const* values, Py_ssize_t positional,
                         PyObject* names) {
  return guarded([&] {
    return as_python(explain_call(read_parameters(kExplainSignature, values, positional, names)));
  });
}

nb::list list_devices() {
  std::vector<DeviceInfo> found;
  {
    const nb::gil_scoped_release released;
    found = devices();
  }
  const nb::object type = nb::module_::import_("octavo._results").attr("DeviceInfo");
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

// The signature at the start of a docstring, which help() and inspect read.
#define OCTAVO_PARAMETERS                                                                    \
  "q, k, v, *, causal=False, window=None, scale=None, precision=None, out=None, "            \
  "return_lse=False, layout='bhsd', out_dtype=None, cu_seqlens_q=None, cu_seqlens_kv=None, " \
  "max_seqlen_q=None, max_seqlen_kv=None, quantization=None, batch_invariant=False, "        \
  "overlap_launch=False, stream=None, max_error=None, out_scale=None, return_amax=False, "   \
  "seqlens_q=None, seqlens_kv=None, leftpad_q=None, leftpad_kv=None, bias=None, mask=None, " \
  "alibi_slopes=None, sinks=None, softcap=None, page_table=None, block_mask=None, "          \
  "draft_tree=None, sm_margin=0"

constexpr const char* kAttentionDoc = "attention(" OCTAVO_PARAMETERS R"doc()
--

Computes softmax(scale * Q K^T + mask) V on NumPy, PyTorch, CuPy or JAX arrays without copies.

q            (batch, heads, seqlen, head_dim); (tokens, heads, head_dim) with cu_seqlens
k, v         the same, with a number of heads that divides q's
             float32, float16, bfloat16, 8-bit types, or octavo.Quantized
causal       True if q and k have equal seqlen; else "top_left": query i attends to keys up to i, as
             in PyTorch; or "bottom_right": the last query attends to the last key, as with a KV cache
window       (left, right): number of visible keys on each side of the diagonal; -1 or None: no limit
scale        softmax scale; 1 / sqrt(head_dim) if None
precision    None (the types of the inputs), fp16, bf16, fp8, fp8_mixed, fp8_fast, int8, int8_mixed,
             sim8; "auto": the fastest mode whose worst recorded error is within max_error
out          the array to write into; if None, a new one of q's kind, device and memory order
return_lse   also return the log-sum-exp of each query: (batch, heads, seqlen) float32
layout       "bhsd", or "bshd" for (batch, seqlen, heads, head_dim)
out_dtype    float32, float16 or bfloat16; q's type if None, float16 if q is 8-bit;
             float8_e4m3fn, float8_e5m2 or int8 with out_scale (uint8 arrays in NumPy)
cu_seqlens_q, cu_seqlens_kv    int32, on q's device: the sequence starts of a varlen batch
max_seqlen_q, max_seqlen_kv    the longest sequence; may be None in host memory
quantization how 8-bit modes quantize: a dict with qk, v, block_rows, rule, smooth_k, hadamard
batch_invariant    the bits of a row do not depend on the other sequences of the batch
overlap_launch     on a GPU the kernel may start before the preceding work in the stream has ended; it
             waits for the results itself
sm_margin    on a GPU, how many SMs a persistent kernel leaves free, e.g. for communication
stream       a CUDA stream; the framework's current one if None
max_error    largest error of an output, for inputs of about unit variance; for precision="auto"
out_scale    scale of an 8-bit output, float32, on q's device: one number, or (batch, heads). The
             output is out / scale, rounded to nearest even and saturated
return_amax  also return, as the last result, the largest finite |out| before that rounding, float32:
             (1,), or (batch, heads) if out_scale has that shape
seqlens_q, seqlens_kv, leftpad_q, leftpad_kv    int32 (batch), on q's device: entry b holds a sequence
             in rows leftpad[b] to leftpad[b] + seqlens[b], all to the last if seqlens is None; the
             other rows are padding. Padding of q gets output 0 and lse -inf, that of k and v is not
             read, and masks count from the first row of a sequence
bias         float32, float16 or bfloat16, added to the scores; -inf hides a key. It broadcasts to
             (batch, heads, seqlen_q, seqlen_kv) in every layout, padding included
mask         bool, broadcasts likewise: False hides a key. A query without keys gets output 0
alibi_slopes float32 (heads) or (batch, heads): slope * |diagonal - key| is subtracted from the scores
sinks        float32 (heads): exp(sink) is added to the denominator of the softmax
softcap      scores become softcap * tanh(scores / softcap) before bias and ALiBi; None or 0: none
page_table   int32 (batch, pages of a sequence), on q's device: k and v are a paged KV cache (pages, heads,
             page_size, head_dim), and key j of sequence b is in row j % page_size of page
             page_table[b][j // page_size]. seqlens_kv is required. octavo.KvCache keeps such a cache
block_mask   an octavo.BlockMask: which blocks of 64 or 128 keys each block of queries attends to, as in
             FlexAttention. Hidden blocks cost nothing. Not with cu_seqlens or padding
draft_tree   int32 (batch, seqlen): the tree of drafts of speculative decoding. The queries are the last keys,
             of which query i sees those whose bit is set: bit j of word i is that of query j

Raises ValueError and TypeError for wrong arguments, NotImplementedError for problems that this device
does not support, MemoryError and RuntimeError.)doc";

constexpr const char* kExplainDoc = "explain(" OCTAVO_PARAMETERS R"doc(, device=None)
--

Returns the kernel that attention() would run, and why, as an octavo.Explanation.

device       "cpu", "cuda:0", "auto"; the device of the arrays if None. Or a GPU that need not be here:
             "a100", "a10", "a40", "rtx3090", "l4", "l40s", "rtx4090", "h100", "h100_pcie", "h200",
             "b200", "rtx5090")doc";

constexpr const char* kBackwardDoc =
    R"doc(attention_backward(dout, q, k, v, out, lse, *, causal=False, window=None, scale=None, precision=None, layout='bhsd', cu_seqlens_q=None, cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, seqlens_q=None, seqlens_kv=None, leftpad_q=None, leftpad_kv=None, bias=None, mask=None, alibi_slopes=None, sinks=None, softcap=None, block_mask=None, return_dbias=False, return_dsinks=False, batch_invariant=False, stream=None)
--

Returns (dq, dk, dv), the gradients of a loss, from dout, its gradient with respect to out.

dout         of the shape of out; all arrays but lse have one type: float32, float16 or bfloat16
out, lse     the results of attention(q, k, v, return_lse=True)
return_dbias, return_dsinks    also return the gradients of bias and of sinks, in this order

The other parameters are those of attention(), and must have the values they had there. Rows that
belong to no sequence of a varlen or padded batch have zero gradients. Results are deterministic.)doc";

using FastMethod = PyObject*(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
PyMethodDef method(const char* name, FastMethod* function, const char* doc = nullptr) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}

PyMethodDef methods[] = {method("attention", attention_method, kAttentionDoc),
                         method("attention_backward", backward_method<false>, kBackwardDoc),
                         method("explain", explain_method, kExplainDoc),
                         method("_run_backward", backward_method<true>),
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
  m.def("_plain_sdpa", &plain_sdpa, nb::arg().none(), nb::arg().none(), nb::arg().none(),
        nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg());
  m.def("_reads_dispatch_keys", &reads_dispatch_keys);
  m.def("_backward_refusal", &backward_refusal);
  m.def("_tangent_sentence", &tangent_sentence);
  m.def("devices", &list_devices,
        "Lists all devices, and why some are not available, as octavo.DeviceInfo.");
  m.def(
      "quantize",
      [](nb::handle x, nb::handle format, nb::handle operand, std::string_view precision,
         nb::handle granularity, std::int64_t block_rows, std::string_view rule, bool smooth,
         bool hadamard, nb::handle scales, nb::handle layout, nb::handle transposed,
         nb::handle max_quantized, nb::handle cu_seqlens, nb::handle max_seqlen,
         nb::handle stream) {
        return quantize_array(
            x, {format, operand, granularity, scales, layout, transposed, max_quantized, cu_seqlens,
                max_seqlen, stream, precision, rule, block_rows, smooth, hadamard});
      },
      nb::arg("x"), nb::arg("format").none() = nb::none(), nb::kw_only(),
      nb::arg("operand").none() = nb::none(), nb::arg("precision") = "fp8",
      nb::arg("granularity").none() = nb::none(), nb::arg("block_rows") = 64,
      nb::arg("rule") = "amax", nb::arg("smooth") = false, nb::arg("hadamard") = false,
      nb::arg("scales").none() = nb::none(), nb::arg("layout") = "bhsd",
      nb::arg("transposed").none() = nb::none(), nb::arg("max_quantized").none() = nb::none(),
      nb::arg("cu_seqlens").none() = nb::none(), nb::arg("max_seqlen").none() = nb::none(),
      nb::arg("stream").none() = nb::none(),
      "Quantizes an array to 8 bits, on its device: returns an octavo.Quantized.\n\n"
      "operand: 'q', 'k' or 'v', for what the fastest kernels of the device take with `precision`\n"
      "(fp8, fp8_fast, int8, sim8; fp8_mixed and int8_mixed for q and k): format, granularity,\n"
      "transposed and max_quantized then have its values. Without it they are, unless given:\n"
      "format: e4m3, of e4m3, e5m2, int8, sim8; granularity: head, of tensor, head, block, row,\n"
      "channel; transposed: False, of a v that Hopper's 8-bit kernels read directly (else every\n"
      "call transposes v); max_quantized, the quantized value of the largest magnitude under a\n"
      "scale: for e4m3 the largest with which scores fit FP16, for others 0, the format's "
      "largest.\n\n"
      "rule: amax, least_squares; smooth: subtract the mean row of each head first; hadamard:\n"
      "then rotate the rows; scales: use these scales; cu_seqlens, max_seqlen: x is a varlen\n"
      "batch (tokens, heads, head_dim). On a GPU in the order of `stream`, the framework's\n"
      "current one if None, with rule amax and head dimensions that are a multiple of 8.");
  m.def("dequantize", &dequantize_array, nb::arg("quantized"), nb::arg("dtype") = "float32",
        nb::arg("layout") = "bhsd",
        "Returns the values of an octavo.Quantized, without undoing rotation or smoothing.");
  m.def(
      "set_cpu_threads", [](int threads) { check(octavo::set_cpu_threads(threads)); },
      nb::arg("threads"),
      "Sets the number of CPU threads; 0: one per core that this process may use.");
  m.def("random_normal", &fill_normal, nb::arg("array"), nb::arg("seed"), nb::arg("stream") = 0,
        "Fills a (batch, heads, seqlen, head_dim) array with standard normal values that depend "
        "only\n"
        "on seed, stream and index: the same on every machine, and in C++.");
  add_block_mask(m);
  add_kv_cache(m);
  nb::class_<TracedArray>(m, "_TracedArray")
      .def(nb::init<std::vector<std::int64_t>, std::string>())
      .def_ro("shape", &TracedArray::shape)
      .def_ro("dtype", &TracedArray::dtype);
#ifdef OCTAVO_XLA_CALLS
  add_xla_calls(m);
#endif
  m.attr("__version__") = std::string(octavo::version());
}
