// SPDX-License-Identifier: Apache-2.0
// Reads single Python values, and the parameters of a call by name.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>

#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// The parameters' names as interned strings: names in Python code are then the same objects.
PyObject* interned(int parameter) {
  static const auto& names = *[] {
    auto* made = new std::array<PyObject*, kParameterCount>();
    for (int i = 0; i < kParameterCount; ++i)
      (*made)[i] = PyUnicode_InternFromString(kParameters[i]);
    return made;
  }();
  return names[parameter];
}

// The parameter of this name, or kParameterCount.
Parameter parameter_of(PyObject* name, const Signature& signature) {
  for (const auto& some : {signature.named, signature.needed})
    for (const Parameter one : some)
      if (name == interned(one)) return one;
  for (const auto& some : {signature.named, signature.needed})
    for (const Parameter one : some)
      if (PyUnicode_Compare(name, interned(one)) == 0) return one;
  return kParameterCount;
}

// Parameter names of other attention functions, and what to use here.
struct Alias {
  std::string_view theirs, advice;
};
constexpr std::array kAliases = {
    Alias{"is_causal", "did you mean 'causal'?"},
    Alias{"softmax_scale", "did you mean 'scale'?"},
    Alias{"sm_scale", "did you mean 'scale'?"},
    Alias{"scaling", "did you mean 'scale'?"},
    Alias{"window_size", "did you mean 'window'?"},
    Alias{"sliding_window", "did you mean 'window'?"},
    Alias{"cu_seqlens_k", "did you mean 'cu_seqlens_kv'?"},
    Alias{"max_seqlen_k", "did you mean 'max_seqlen_kv'?"},
    Alias{"query", "did you mean 'q'?"},
    Alias{"key", "did you mean 'k'?"},
    Alias{"value", "did you mean 'v'?"},
    Alias{"dtype", "did you mean 'out_dtype'?"},
    Alias{"return_softmax_lse", "did you mean 'return_lse'?"},
    Alias{"return_attn_probs", "did you mean 'return_lse'?"},
    Alias{"tensor_layout", "did you mean 'layout'?"},
    Alias{"deterministic", "did you mean 'batch_invariant'?"},
    Alias{"enable_gqa", "it is not needed: heads of k and v that divide those of q are taken."},
    Alias{"attn_mask", "did you mean 'mask' (boolean) or 'bias' (added to the scores)?"},
    Alias{"attention_mask", "did you mean 'mask' (boolean) or 'bias' (added to the scores)?"},
    Alias{"attn_bias", "did you mean 'bias'?"},
    Alias{"s_aux", "did you mean 'sinks'?"},
    Alias{"seqused_q", "did you mean 'seqlens_q'?"},
    Alias{"seqused_k", "did you mean 'seqlens_kv'?"},
    Alias{"cache_seqlens", "did you mean 'seqlens_kv'?"},
    Alias{"block_table", "did you mean 'page_table'?"},
    Alias{"block_tables", "did you mean 'page_table'?"},
    Alias{"block_sparse_tensors", "did you mean 'block_mask'?"},
    Alias{"leftpad_k", "did you mean 'leftpad_kv'?"},
    Alias{"dropout_p", "there is no dropout; octavo.torch.sdpa falls back."},
};

// The text after "unexpected keyword argument": an alias, else the nearest name.
std::string advice_for(const std::string& name, const Signature& signature) {
  for (const Alias& alias : kAliases)
    if (alias.theirs == name) return "; " + std::string(alias.advice);
  for (const Parameter one : kAttentionSignature.named)
    if (kParameters[one] == name) return "; only attention() has it.";
  nb::list known;
  for (const auto& some : {signature.needed, signature.named})
    for (const Parameter one : some) known.append(kParameters[one]);
  const nb::object near = nb::module_::import_("difflib").attr("get_close_matches")(name, known, 1);
  if (nb::len(near) == 0) return "";
  return "; did you mean '" + nb::cast<std::string>(nb::object(near[0])) + "'?";
}

[[noreturn]] void refuse_call(const char* function, const std::string& why) {
  PyErr_SetString(PyExc_TypeError, (std::string(function) + "() " + why).c_str());
  throw nb::python_error();
}

const nb::object& quantized_class() {
  static const nb::object* found = nullptr;  // guarded by the GIL, see Torch::get()
  if (found != nullptr) return *found;
  nb::object imported = nb::module_::import_("octavo._quantized").attr("Quantized");
  if (found == nullptr) found = new nb::object(std::move(imported));
  return *found;
}

}  // namespace

namespace {

constexpr std::array kOperands = {kQ, kK, kV};
constexpr std::array kAttentionNamed = {
    kCausal,       kWindow,         kScale,         kPrecision,   kOut,        kReturnLse,
    kLayout,       kOutDtype,       kCuSeqlensQ,    kCuSeqlensKv, kMaxSeqlenQ, kMaxSeqlenKv,
    kQuantization, kBatchInvariant, kOverlapLaunch, kStream,      kMaxError,   kOutScale,
    kReturnAmax,   kSeqlensQ,       kSeqlensKv,     kLeftpadQ,    kLeftpadKv,  kBias,
    kMask,         kAlibiSlopes,    kSinks,         kSoftcap,     kPageTable,  kBlockMask,
    kDraftTree,    kSmMargin,       kDevice};
// The parameters of octavo.torch's operators by name: those of attention() and the block size.
constexpr auto kOperatorNamed = [] {
  std::array<Parameter, kAttentionNamed.size() + 1> named{};
  std::copy(kAttentionNamed.begin(), kAttentionNamed.end(), named.begin());
  named.back() = kBlockSize;
  return named;
}();
constexpr Signature kOperatorSignature{"attention", kOperands, kOperatorNamed};
constexpr std::array kBackwardNeeded = {kDout, kQ, kK, kV, kOut, kLse};
constexpr std::array kBackwardNamed = {
    kCausal,      kWindow,       kScale,          kPrecision, kLayout,      kCuSeqlensQ,
    kCuSeqlensKv, kMaxSeqlenQ,   kMaxSeqlenKv,    kSeqlensQ,  kSeqlensKv,   kLeftpadQ,
    kLeftpadKv,   kBias,         kMask,           kSinks,     kAlibiSlopes, kSoftcap,
    kReturnDbias, kReturnDsinks, kBatchInvariant, kStream,    kBlockMask};

// "q, k and v"
std::string listed(std::span<const Parameter> parameters) {
  std::string text;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    text += std::string(i == 0                       ? ""
                        : i + 1 == parameters.size() ? " and "
                                                     : ", ") +
            kParameters[parameters[i]];
  return text;
}

}  // namespace

// device is the last of the named ones, and only explain() has it.
const Signature kAttentionSignature{"attention", kOperands,
                                    std::span(kAttentionNamed).first(kAttentionNamed.size() - 1)};
const Signature kExplainSignature{"explain", kOperands, kAttentionNamed};
const Signature kBackwardSignature{"attention_backward", kBackwardNeeded, kBackwardNamed};

Given read_parameters(const Signature& signature, PyObject* const* values, Py_ssize_t positional,
                      PyObject* names) {
  const char* const function = signature.function;
  const auto needed = static_cast<Py_ssize_t>(signature.needed.size());
  Given given;
  given.fill(nb::handle(Py_None));
  if (positional > needed)
    refuse_call(function, "takes " + std::to_string(needed) + " positional arguments, " +
                              listed(signature.needed) + ", but " + std::to_string(positional) +
                              " were given");
  std::array<bool, kParameterCount> present{};
  for (Py_ssize_t i = 0; i < positional; ++i) {
    const Parameter one = signature.needed[static_cast<std::size_t>(i)];
    given[one] = values[i];
    present[one] = true;
  }
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(names, i);
    const Parameter found = parameter_of(name, signature);
    if (found == kParameterCount)
      refuse_call(function, "got an unexpected keyword argument " +
                                nb::cast<std::string>(nb::repr(nb::handle(name))) +
                                advice_for(nb::cast<std::string>(nb::handle(name)), signature));
    if (present[found])
      refuse_call(function, std::string("got several values for ") + kParameters[found]);
    present[found] = true;
    given[found] = values[positional + i];
  }
  for (const Parameter one : signature.needed)
    if (!present[one]) refuse_call(function, std::string("needs ") + kParameters[one]);
  return given;
}

Given read_operator_parameters(PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  Given given;
  given.fill(nb::handle(Py_None));
  for (Py_ssize_t i = 0; i < positional; ++i)
    given[i < 3 ? kOperands[i] : kOptionalTensors.at(i - 3)] = values[i];
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < named; ++i) {
    given.at(parameter_of(PyTuple_GET_ITEM(names, i), kOperatorSignature)) = values[positional + i];
  }
  return given;
}

std::string_view text_of(nb::handle value, const char* what, const char* supported) {
  if (!PyUnicode_Check(value.ptr())) refuse(PyExc_TypeError, what, shown(value), supported);
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &length);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<std::size_t>(length)};
}

std::int64_t number_of(nb::handle value, const char* what, const char* supported) {
  if (!PyIndex_Check(value.ptr())) refuse(PyExc_TypeError, what, shown(value), supported);
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const std::int64_t number = PyLong_AsLongLong(index.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

bool is_true(nb::handle value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  return truth == 1;
}

Layout layout_of(nb::handle value) {
  if (value.is_none()) return Layout::bhsd;
  constexpr const char* kLayouts = "bhsd, bshd";
  const std::string_view text = text_of(value, "layout", kLayouts);
  if (text == "bhsd") return Layout::bhsd;
  if (text == "bshd") return Layout::bshd;
  refuse(PyExc_ValueError, "layout", quoted(text), kLayouts);
}

// Accepts "float16", torch.float16, numpy.float16, numpy.dtype("float16").
DType dtype_of(nb::handle value, const char* what, bool quantized) {
  const nb::object named = nb::getattr(value, "__name__", nb::str(value));
  std::string text = nb::cast<std::string>(named);
  text = text.substr(text.rfind('.') + 1);
  if (text == "float32") return DType::f32;
  if (text == "float16") return DType::f16;
  if (text == "bfloat16") return DType::bf16;
  if (quantized && text == "float8_e4m3fn") return DType::e4m3;
  if (quantized && text == "float8_e5m2") return DType::e5m2;
  if (quantized && text == "int8") return DType::int8;
  refuse(PyExc_ValueError, what, quoted(text),
         quantized ? "float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8"
                   : "float32, float16, bfloat16");
}

namespace {

// The scales of an int4 tensor: float16 (pages, heads, 2 * groups, page_size), then zeros.
void read_groups(QuantizedArray& found, const std::string& scales_name) {
  const Array& scales = found.scales;
  if (element_type(scales, scales_name.c_str()) != DType::f16)
    refuse(PyExc_TypeError, scales_name, "of " + dtype_name(scales.dtype), "float16 for int4");
  const std::int64_t head_dim =
      found.data.dimensions == 4 ? 2 * found.data.shape[3] : std::int64_t{0};
  std::int64_t count = 1;
  bool contiguous = scales.dimensions == 4;
  for (int i = scales.dimensions - 1; contiguous && i >= 0; --i) {
    contiguous = scales.shape[i] == 1 || scales.stride[i] == count;
    count *= scales.shape[i];
  }
  const std::int64_t rows = contiguous ? scales.shape[2] : 0;
  if (rows < 2 || rows % 2 != 0 || head_dim == 0 || head_dim % (rows / 2) != 0)
    refuse(PyExc_ValueError, scales_name, "of another shape or not contiguous",
           "(pages, heads, 2 * groups, page_size) for int4, contiguous");
  found.groups = {scales.data, head_dim / (rows / 2)};
  found.scale_count = count;
}

}  // namespace

bool is_quantized(nb::handle value) {
  const nb::object& quantized = quantized_class();
  return value.type().is(quantized) || nb::isinstance(value, quantized);
}

namespace {

// An attribute whose name is made once: a call with 8-bit operands reads 21 of them. The GIL guards
// the pointer.
class Attribute {
 public:
  constexpr explicit Attribute(const char* name) : name_(name) {}
  nb::object of(nb::handle value) {
    if (interned_ == nullptr) interned_ = PyUnicode_InternFromString(name_);
    PyObject* const found =
        interned_ == nullptr ? nullptr : PyObject_GetAttr(value.ptr(), interned_);
    if (found == nullptr) throw nb::python_error();
    return nb::steal(found);
  }

 private:
  const char* name_;
  PyObject* interned_ = nullptr;
};
constinit Attribute data_of{"data"}, scales_of{"scales"}, format_of{"format"},
    granularity_of{"granularity"}, block_rows_of{"block_rows"}, transposed_of{"transposed"},
    max_quantized_of{"max_quantized"};

}  // namespace

nb::object data_of_quantized(nb::handle value) { return data_of.of(value); }

QuantizedArray read_quantized(nb::handle value, const char* what) {
  const std::string scales_name = std::string(what) + ".scales";
  nb::object data = data_of.of(value), scales = scales_of.of(value);
  QuantizedArray found{read_array(data, what), read_array(scales, scales_name.c_str())};
  found.owners = {std::move(data), std::move(scales)};
  if (found.data.dtype.bits != 8)
    refuse(PyExc_TypeError, std::string(what) + ".data", "of " + dtype_name(found.data.dtype),
           "8-bit types");
  const nb::object format = format_of.of(value), granularity = granularity_of.of(value),
                   block_rows = block_rows_of.of(value);
  if (text_of(format, "format", "its name") == "int4") {
    found.format = DType::int4;
    read_groups(found, scales_name);
    return found;
  }
  found.format = check(parse_dtype(text_of(format, "format", "e4m3, e5m2, int8, sim8")));
  if (!is_8bit(found.format))
    refuse(PyExc_ValueError, std::string(what) + ".format", std::string(name(found.format)),
           "e4m3, e5m2, int8, sim8");
  found.view.granularity =
      check(parse_granularity(text_of(granularity, "granularity", "its name")));
  found.view.block_rows = number_of(block_rows, "block_rows", "a number of rows");
  if (is_true(transposed_of.of(value))) found.layout = VLayout::transposed;
  const double max_quantized = PyFloat_AsDouble(max_quantized_of.of(value).ptr());
  if (max_quantized == -1 && PyErr_Occurred()) throw nb::python_error();
  found.view.max_quantized = static_cast<float>(max_quantized);
  if (element_type(found.scales, scales_name.c_str()) != DType::f32)
    refuse(PyExc_TypeError, scales_name, "of " + dtype_name(found.scales.dtype), "float32");
  if (found.scales.dimensions > kMostDimensions)
    refuse(PyExc_ValueError, scales_name,
           "of " + std::to_string(found.scales.dimensions) + " dimensions", "at most 3");
  for (int i = found.scales.dimensions - 1; i >= 0; --i) {
    if (found.scales.shape[i] != 1 && found.scales.stride[i] != found.scale_count)
      refuse(PyExc_ValueError, scales_name, "not contiguous",
             "contiguous arrays in the shape of the granularity");
    found.scale_count *= found.scales.shape[i];
  }
  found.view.data = static_cast<const float*>(found.scales.data);
  return found;
}

}  // namespace octavo::python
