// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <utility>

#include "call.h"
#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

Causal causal_of(nb::handle value) {
  if (value.is_none() || value.ptr() == Py_False) return Causal::none;
  if (value.ptr() == Py_True) return Causal::top_left;
  constexpr const char* kSupported = "False, True, 'top_left', 'bottom_right'";
  return check(parse_causal(text_of(value, "causal", kSupported)));
}

void read_window(nb::handle value, Options& options) {
  if (value.is_none()) return;
  constexpr const char* kSupported = "None or a pair (left, right), -1 or None for no limit";
  if (!PySequence_Check(value.ptr()) || nb::len(value) != 2)
    refuse(PyExc_TypeError, "window", shown(value), kSupported);
  const auto side = [&](int i) -> std::int64_t {
    const nb::object one = value[i];
    return one.is_none() ? -1 : number_of(one, "window", kSupported);
  };
  options.window_left = side(0);
  options.window_right = side(1);
}

void read_quantization(nb::handle value, Quantization& q) {
  if (value.is_none()) return;
  constexpr const char* kKeys = "a dict with qk, v, block_rows, rule, smooth_k, hadamard";
  if (!PyDict_Check(value.ptr())) refuse(PyExc_TypeError, "quantization", shown(value), kKeys);
  for (auto [key, one] : nb::borrow<nb::dict>(value)) {
    const std::string_view name = text_of(key, "quantization", kKeys);
    const auto granularity = [&, given = one] {
      return check(parse_granularity(text_of(given, "granularity", "its name")));
    };
    if (name == "qk") {
      q.qk = granularity();
    } else if (name == "v") {
      q.v = granularity();
    } else if (name == "block_rows") {
      q.block_rows = number_of(one, "block_rows", "a number of rows");
    } else if (name == "rule") {
      q.rule = check(parse_scale_rule(text_of(one, "rule", "its name")));
    } else if (name == "smooth_k") {
      q.smooth_k = is_true(one);
    } else if (name == "hadamard") {
      q.hadamard = is_true(one);
    } else {
      refuse(PyExc_ValueError, "quantization", "a dict with " + quoted(name), kKeys);
    }
  }
}

float real_of(nb::handle value) {
  const double x = PyFloat_AsDouble(value.ptr());
  if (x == -1 && PyErr_Occurred()) throw nb::python_error();
  return static_cast<float>(x);
}

Options options_of(const Given& given) {
  Options options;
  options.causal = causal_of(given[kCausal]);
  read_window(given[kWindow], options);
  if (!given[kPrecision].is_none())
    options.precision =
        check(parse_precision(text_of(given[kPrecision], "precision", "its name, or None")));
  if (!given[kMaxError].is_none()) options.max_error = real_of(given[kMaxError]);
  read_quantization(given[kQuantization], options.quantization);
  if (!given[kSoftcap].is_none()) options.softcap = real_of(given[kSoftcap]);
  options.batch_invariant = is_true(given[kBatchInvariant]);
  options.overlap_launch = is_true(given[kOverlapLaunch]);
  if (!given[kSmMargin].is_none())
    options.sm_margin = number_of(given[kSmMargin], "sm_margin", "a number of SMs");
  return options;
}

// Moves the owner of the array's memory to the call.
Array keep(Call& call, Array array) {
  if (array.keep.is_valid()) call.kept.push_back(std::move(array.keep));
  return array;
}

// One of q, k and v: where it is stored, and its number of scales, -1 for none.
struct Operand {
  const char* what;
  ConstTensor* tensor;
  Scales* scales;
  GroupScales* groups = nullptr;
  std::int64_t scale_count = -1;
  VLayout layout = VLayout::rows;
};

void check_device(const Call& call, const Array& array, const char* what) {
  if (array.device == call.q.device) return;
  refuse(PyExc_ValueError, what, "on " + name(array.device), name(call.q.device) + ", where q is");
}

// Checks that there are as many scales as the library will read.
void check_scale_count(const Call& call, const Operand& operand, std::int64_t max_len) {
  const Scales& scales = *operand.scales;
  if (operand.tensor->dtype == DType::int4) return;  // check_groups() has done it
  // The scales of a transposed V follow seqlen and head_dim, which K's shape has in order.
  std::array<std::int64_t, 4> shape =
      operand.layout == VLayout::transposed ? call.arguments.k.shape : operand.tensor->shape;
  const bool by_sequence =
      scales.granularity != Granularity::row && scales.granularity != Granularity::tensor;
  if (call.arguments.cu_seqlens_q != nullptr && by_sequence) {
    shape[0] = call.arguments.sequences;
    shape[2] = max_len;
  }
  // The pages of a cache share the scales of heads.
  if (call.arguments.page_table != nullptr && scales.granularity == Granularity::head &&
      operand.tensor != &call.arguments.q)
    shape[0] = 1;
  const std::int64_t wanted = scale_count(shape, scales.granularity, scales.block_rows);
  if (operand.scale_count == wanted) return;
  refuse(PyExc_ValueError, std::string(operand.what) + ".scales",
         std::to_string(operand.scale_count) + " numbers",
         std::to_string(wanted) + ", one per " + std::string(name(scales.granularity)));
}

// Scales and zeros of int4 have the shape of the cache: (pages, heads, 2 * groups, page_size).
void check_groups(const Operand& operand, const Array& scales) {
  const auto& shape = operand.tensor->shape;
  const std::array<std::int64_t, 4> wanted = {shape[0], shape[1], scales.shape[2], shape[2]};
  if (scales.shape == wanted) return;
  const auto text = [](const std::array<std::int64_t, 4>& s) {
    return "(" + std::to_string(s[0]) + ", " + std::to_string(s[1]) + ", " + std::to_string(s[2]) +
           ", " + std::to_string(s[3]) + ")";
  };
  refuse(PyExc_ValueError, std::string(operand.what) + ".scales", "of shape " + text(scales.shape),
         text(wanted) + ": (pages, heads, 2 * groups, page_size)");
}

// causal=True is unambiguous only if seqlen_q equals seqlen_kv. In a varlen batch this holds if
// both cu_seqlens are the same array; other arrays may be on a GPU, where comparing them would wait
// for it.
void check_alignment(const Call& call, const Given& given) {
  if (given[kCausal].ptr() != Py_True) return;
  constexpr const char* kSupported =
      "'top_left' (query i attends to keys up to i) or 'bottom_right' (the last query attends to "
      "the "
      "last key, as with a KV cache)";
  if (call.arguments.page_table != nullptr)
    refuse(PyExc_ValueError, "causal", "True with a page_table", "'bottom_right', False");
  if (call.layout == Layout::varlen) {
    if (given[kCuSeqlensQ].is(given[kCuSeqlensKv]) &&
        call.arguments.max_seqlen_q == call.arguments.max_seqlen_kv)
      return;
    refuse(PyExc_ValueError, "causal",
           "True with cu_seqlens_q and cu_seqlens_kv that are different arrays", kSupported);
  }
  const std::int64_t seqlen_q = call.arguments.q.shape[2];
  const std::int64_t seqlen_kv = call.arguments.k.shape[2];
  if (seqlen_q != seqlen_kv)
    refuse(PyExc_ValueError, "causal",
           "True with seqlen_q " + std::to_string(seqlen_q) + " and seqlen_kv " +
               std::to_string(seqlen_kv),
           kSupported);
  if (!given[kSeqlensQ].is(given[kSeqlensKv]) || !given[kLeftpadQ].is(given[kLeftpadKv]))
    refuse(PyExc_ValueError, "causal",
           "True with different padding of q and of k and v (other arrays of lengths)", kSupported);
}

// Reads q, k or v: an array, or an octavo.Quantized.
void read_operand(Call& call, Operand& operand, nb::handle value, Layout layout) {
  const char* const what = operand.what;
  const bool is_q = call.q.type == nullptr;
  const bool quantized = array_type(value).framework == Framework::none && is_quantized(value);
  QuantizedArray found;
  Array array;
  if (quantized) {
    found = read_quantized(value, what);
    array = keep(call, std::move(found.data));
  } else {
    array = keep(call, read_array(value, what));
  }
  if (is_q) call.q = array;
  check_device(call, array, what);
  const DType dtype = quantized ? found.format : element_type(array, what);
  if (!quantized && is_8bit(dtype))
    refuse(PyExc_ValueError, what, "an array of " + std::string(name(dtype)) + " without scales",
           "octavo.Quantized(data, scales, format, granularity) for 8-bit inputs");
  operand.layout = found.layout;
  const bool transposed = found.layout == VLayout::transposed;
  if (transposed && operand.tensor != &call.arguments.v)
    refuse(PyExc_ValueError, what, "transposed", "tensors that are not transposed, except for v");
  *operand.tensor = tensor_view(array, dtype, transposed ? Layout::bhsd : layout, what);
  if (!quantized) return;
  const Array scales = keep(call, std::move(found.scales));
  check_device(call, scales, (std::string(what) + ".scales").c_str());
  // Other threads may give the Quantized object other arrays during the call.
  call.kept.reserve(6);  // data and scales of q, k and v
  call.kept.push_back(std::move(found.owners[0]));
  call.kept.push_back(std::move(found.owners[1]));
  *operand.scales = found.view;
  if (found.format == DType::int4) {
    if (operand.groups == nullptr)
      refuse(PyExc_ValueError, what, "int4", "int4 for k and v of a paged cache");
    check_groups(operand, scales);
    *operand.groups = found.groups;
  }
  operand.scale_count = found.scale_count;
}

// Returns the address of the sequence starts, and sets or checks their number.
const std::int32_t* read_starts(Call& call, nb::handle value, const char* what,
                                std::int64_t& sequences) {
  const Array array = keep(call, read_array(value, what));
  check_device(call, array, what);
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Int, 32))
    refuse(PyExc_TypeError, what, "of " + dtype_name(array.dtype), "int32");
  if (array.dimensions != 1 || array.shape[0] < 1 || (array.shape[0] > 1 && array.stride[0] != 1))
    refuse(PyExc_ValueError, what,
           "not a contiguous array of one dimension and at least one number",
           "(sequences + 1), contiguous");
  if (sequences >= 0 && sequences != array.shape[0] - 1)
    refuse(PyExc_ValueError, what, "of " + std::to_string(array.shape[0]) + " entries",
           "as many as cu_seqlens_q has, here " + std::to_string(sequences + 1));
  sequences = array.shape[0] - 1;
  return static_cast<const std::int32_t*>(array.data);
}

std::int64_t longest(const Call& call, nb::handle given, const char* what,
                     const std::int32_t* starts) {
  if (!given.is_none()) return number_of(given, what, "the length of the longest sequence");
  if (call.q.type->framework == Framework::traced)
    refuse(PyExc_ValueError, what, "None",
           "a number in octavo.jax, where the numbers in cu_seqlens are not known");
  if (call.q.device.kind != Device::Kind::cpu)
    refuse(PyExc_ValueError, what, "None",
           "a number where cu_seqlens are on a GPU: to read them here would wait for it");
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < call.arguments.sequences; ++i)
    most = std::max(most, std::int64_t{starts[i + 1]} - starts[i]);
  return most;
}

void read_varlen(Call& call, const Given& given) {
  Arguments& a = call.arguments;
  if (given[kCuSeqlensQ].is_none() || given[kCuSeqlensKv].is_none())
    refuse(PyExc_ValueError, given[kCuSeqlensQ].is_none() ? "cu_seqlens_q" : "cu_seqlens_kv",
           "None", "both of cu_seqlens_q and cu_seqlens_kv, or neither");
  std::int64_t sequences = -1;
  a.cu_seqlens_q = read_starts(call, given[kCuSeqlensQ], "cu_seqlens_q", sequences);
  a.cu_seqlens_kv = read_starts(call, given[kCuSeqlensKv], "cu_seqlens_kv", sequences);
  a.sequences = sequences;
  a.max_seqlen_q = longest(call, given[kMaxSeqlenQ], "max_seqlen_q", a.cu_seqlens_q);
  a.max_seqlen_kv = longest(call, given[kMaxSeqlenKv], "max_seqlen_kv", a.cu_seqlens_kv);
}

std::int64_t sequences_of(const Arguments& a) {
  return a.cu_seqlens_q != nullptr ? a.sequences : a.q.shape[0];
}

// An expanded dimension is read as one of size 1, so its size is checked here.
void check_expanded(const Call& call, const char* what, std::size_t dimension, std::int64_t size) {
  const Arguments& a = call.arguments;
  const std::array scores = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.shape[2]};
  if (size == scores[dimension]) return;
  refuse(PyExc_ValueError, std::string(what) + ".shape[" + std::to_string(dimension) + "]",
         std::to_string(size), std::to_string(scores[dimension]) + " or 1");
}

// Reads an array of `count` numbers of 32 bits.
const void* read_numbers(Call& call, const Given& given, Parameter parameter,
                         nb::dlpack::dtype dtype, std::int64_t count, const char* of_what) {
  if (given[parameter].is_none()) return nullptr;
  const char* const what = kParameters[parameter];
  const Array array = keep(call, read_array(given[parameter], what));
  check_device(call, array, what);
  if (array.dtype != dtype)
    refuse(PyExc_TypeError, what, "of " + dtype_name(array.dtype), dtype_name(dtype));
  const bool contiguous = array.shape[0] <= 1 || array.stride[0] == 1;
  if (array.dimensions != 1 || array.shape[0] != count || !contiguous)
    refuse(PyExc_ValueError, what,
           array.dimensions != 1 ? "of " + std::to_string(array.dimensions) + " dimensions"
           : contiguous          ? "of " + std::to_string(array.shape[0]) + " entries"
                                 : "not contiguous",
           "(" + std::to_string(count) + "), contiguous: one per " + of_what);
  // An array without entries may have no memory, but it is given.
  static const std::int64_t nothing = 0;
  return array.data != nullptr ? array.data : &nothing;
}

void read_padding(Call& call, const Given& given) {
  Arguments& a = call.arguments;
  const auto read = [&](Parameter parameter) {
    return static_cast<const std::int32_t*>(
        read_numbers(call, given, parameter, dlpack_type(nb::dlpack::dtype_code::Int, 32),
                     a.q.shape[0], "batch entry"));
  };
  for (const Parameter one : {kSeqlensQ, kSeqlensKv, kLeftpadQ, kLeftpadKv})
    if (!given[one].is_none() && call.layout == Layout::varlen)
      refuse(PyExc_ValueError, kParameters[one], "given together with cu_seqlens",
             "one of the two");
  a.seqlens_q = read(kSeqlensQ);
  a.seqlens_kv = read(kSeqlensKv);
  a.leftpad_q = read(kLeftpadQ);
  a.leftpad_kv = read(kLeftpadKv);
}

// The page table is (batch, pages of a sequence).
void read_page_table(Call& call, const Given& given) {
  if (given[kPageTable].is_none()) return;
  Arguments& a = call.arguments;
  const Array array = keep(call, read_array(given[kPageTable], "page_table"));
  check_device(call, array, "page_table");
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Int, 32))
    refuse(PyExc_TypeError, "page_table", "of " + dtype_name(array.dtype), "int32");
  const bool contiguous = array.dimensions == 2 && (array.shape[1] <= 1 || array.stride[1] == 1);
  if (!contiguous || array.shape[0] != a.q.shape[0])
    refuse(PyExc_ValueError, "page_table",
           array.dimensions != 2 ? "of " + std::to_string(array.dimensions) + " dimensions"
           : contiguous          ? "of " + std::to_string(array.shape[0]) + " sequences"
                                 : "not contiguous",
           "(" + std::to_string(a.q.shape[0]) + ", pages of a sequence), with contiguous rows");
  // A table without entries may have no memory, but it is given.
  static const std::int32_t nothing = 0;
  a.page_table = array.data != nullptr ? static_cast<const std::int32_t*>(array.data) : &nothing;
  a.pages_per_sequence = array.shape[1];
  a.page_table_stride = array.shape[0] > 1 ? array.stride[0] : array.shape[1];
}

// Reads bias or mask: missing dimensions come first, as in NumPy, and an expanded dimension (stride
// 0) is one of size 1, unless the gradient of each of its entries is wanted.
ConstTensor read_score_tensor(Call& call, const Given& given, Parameter parameter) {
  if (given[parameter].is_none()) return {};
  const char* const what = kParameters[parameter];
  const Array array = keep(call, read_array(given[parameter], what));
  check_device(call, array, what);
  if (array.dimensions > kMostDimensions)
    refuse(PyExc_ValueError, what, "of " + std::to_string(array.dimensions) + " dimensions",
           "at most 4, that broadcast to (batch, heads, seqlen_q, seqlen_kv)");
  const bool is_mask = parameter == kMask;
  const bool is_boolean = array.dtype == dlpack_type(nb::dlpack::dtype_code::Bool, 8);
  if (is_mask != is_boolean)
    refuse(PyExc_TypeError, what, "of " + dtype_name(array.dtype),
           is_mask ? "bool; bias for numbers that are added to the scores"
                   : "float32, float16, bfloat16; mask for booleans");
  const DType dtype = is_mask ? DType::boolean : element_type(array, what);
  ConstTensor t{array.data, dtype, {1, 1, 1, 1}, {0, 0, 0, 1}};
  for (int i = 0; i < array.dimensions; ++i) {
    const auto to = static_cast<std::size_t>(kMostDimensions - array.dimensions + i);
    const bool expanded = array.shape[i] > 1 && array.stride[i] == 0 &&
                          !(parameter == kBias && is_true(given[kReturnDbias]));
    t.shape[to] = array.shape[i];
    if (array.shape[i] > 1) t.stride[to] = array.stride[i];
    if (expanded) check_expanded(call, what, to, array.shape[i]);
    if (expanded) t.shape[to] = 1;
    if (t.shape[to] == 1) t.stride[to] = to == 3 ? 1 : 0;
  }
  return t;
}

// alibi_slopes is (heads), or (batch, heads).
void read_slopes(Call& call, const Given& given) {
  if (given[kAlibiSlopes].is_none()) return;
  Arguments& a = call.arguments;
  const Array array = keep(call, read_array(given[kAlibiSlopes], "alibi_slopes"));
  check_device(call, array, "alibi_slopes");
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Float, 32))
    refuse(PyExc_TypeError, "alibi_slopes", "of " + dtype_name(array.dtype), "float32");
  const std::int64_t sequences = sequences_of(a), heads = a.q.shape[1];
  const bool by_sequence = array.dimensions == 2;
  const int last = by_sequence ? 1 : 0;
  const bool fits = (array.dimensions == 1 || by_sequence) && array.shape[last] == heads &&
                    (!by_sequence || array.shape[0] == sequences) &&
                    (heads <= 1 || array.stride[last] == 1);
  if (!fits)
    refuse(PyExc_ValueError, "alibi_slopes", "of another shape or not contiguous",
           "(" + std::to_string(heads) + ") or (" + std::to_string(sequences) + ", " +
               std::to_string(heads) + "), contiguous: one per head, or per sequence and head");
  a.alibi_slopes = static_cast<const float*>(array.data);
  a.alibi_batch_stride = by_sequence && sequences > 1 ? array.stride[0] : 0;
}

const nb::object& block_mask_class() {
  static const nb::object* found = nullptr;  // guarded by the GIL, see Torch::get()
  if (found != nullptr) return *found;
  nb::object imported = nb::module_::import_("octavo._block_mask").attr("BlockMask");
  if (found == nullptr) found = new nb::object(std::move(imported));
  return *found;
}

// A field of a block mask: an attribute of block_mask, or an argument of an operator.
nb::object block_mask_field(const Given& given, Parameter field) {
  if (given[kBlockMask].is_none()) return nb::borrow(given[field]);
  return given[kBlockMask].attr(kParameters[field]);
}

// Whether a call of an operator has a part of a block mask.
bool has_block_mask_field(const Given& given) {
  for (const int field :
       {kKvNumBlocks, kKvIndices, kFullKvNumBlocks, kFullKvIndices, kBitIndices, kBits, kBlockSize})
    if (!given[field].is_none()) return true;
  return false;
}

// One of the arrays of a block mask, or none: int32, contiguous, of so many dimensions.
Array read_block_array(Call& call, const Given& given, Parameter field, int dimensions) {
  const nb::object value = block_mask_field(given, field);
  if (value.is_none()) return {};
  const std::string what = std::string("block_mask.") + kParameters[field];
  Array array = read_array(value, what.c_str());
  // The attribute's object may be the only owner of its memory.
  call.kept.push_back(value);
  if (array.keep.is_valid()) call.kept.push_back(array.keep);
  check_device(call, array, what.c_str());
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Int, 32))
    refuse(PyExc_TypeError, what, "of " + dtype_name(array.dtype), "int32");
  std::int64_t count = 1;
  bool contiguous = array.dimensions == dimensions;
  for (int i = contiguous ? dimensions - 1 : -1; i >= 0; --i) {
    contiguous = contiguous && (array.shape[i] <= 1 || count == 0 || array.stride[i] == count);
    count *= array.shape[i];
  }
  if (!contiguous)
    refuse(PyExc_ValueError, what,
           array.dimensions != dimensions ? "of " + std::to_string(array.dimensions) + " dimensions"
                                          : "not contiguous",
           std::to_string(dimensions) + " dimensions, contiguous");
  return array;
}

// An array without entries may have no memory, but it is given.
const std::int32_t* words_of(const Array& array) {
  static const std::int32_t nothing = 0;
  if (array.type == nullptr) return nullptr;
  return array.data != nullptr ? static_cast<const std::int32_t*>(array.data) : &nothing;
}

// All arrays have the batch, the heads and the blocks of queries of the first that is given.
void check_block_shape(const BlockMask& mask, const Array& array, const char* what) {
  if (array.type == nullptr) return;
  if (array.shape[0] == mask.batch && array.shape[1] == mask.heads &&
      array.shape[2] == mask.q_blocks)
    return;
  refuse(PyExc_ValueError, std::string("block_mask.") + what, "of another shape",
         "(" + std::to_string(mask.batch) + ", " + std::to_string(mask.heads) + ", " +
             std::to_string(mask.q_blocks) + "), as the lists beside it");
}

// int32 (batch, seqlen of q), contiguous.
void read_draft_tree(Call& call, const Given& given) {
  if (given[kDraftTree].is_none()) return;
  const Array array = keep(call, read_array(given[kDraftTree], "draft_tree"));
  check_device(call, array, "draft_tree");
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Int, 32))
    refuse(PyExc_TypeError, "draft_tree", "of " + dtype_name(array.dtype), "int32");
  const auto& q = call.arguments.q.shape;
  const bool contiguous = array.dimensions == 2 && array.shape[0] == q[0] &&
                          array.shape[1] == q[2] && (q[2] <= 1 || array.stride[1] == 1) &&
                          (q[0] <= 1 || array.stride[0] == q[2]);
  if (!contiguous)
    refuse(PyExc_ValueError, "draft_tree", "of another shape or not contiguous",
           "(" + std::to_string(q[0]) + ", " + std::to_string(q[2]) +
               "), contiguous: a word for "
               "each query");
  static const std::int32_t nothing = 0;  // an array without entries may have no memory
  call.arguments.draft_tree =
      array.data != nullptr ? static_cast<const std::int32_t*>(array.data) : &nothing;
}

void read_block_mask(Call& call, const Given& given) {
  const nb::handle value = given[kBlockMask];
  if (value.is_none() && !has_block_mask_field(given)) return;
  if (!value.is_none() && !nb::isinstance(value, block_mask_class()))
    refuse(PyExc_TypeError, "block_mask", shown(value),
           "octavo.BlockMask, which from_flex() makes of a BlockMask of FlexAttention");
  BlockMask& mask = call.arguments.block_mask;
  const nb::object size = block_mask_field(given, kBlockSize);
  if (!size.is_none()) mask.block_size = number_of(size, "block_mask.block_size", "64, 128");
  if (mask.block_size == 0) refuse(PyExc_ValueError, "block_mask.block_size", "0", "64, 128");
  const Array counts = read_block_array(call, given, kKvNumBlocks, 3);
  const Array indices = read_block_array(call, given, kKvIndices, 4);
  const Array full_counts = read_block_array(call, given, kFullKvNumBlocks, 3);
  const Array full_indices = read_block_array(call, given, kFullKvIndices, 4);
  const Array bit_indices = read_block_array(call, given, kBitIndices, 4);
  const Array bits = read_block_array(call, given, kBits, 3);
  const Array& first = counts.type != nullptr ? counts : full_counts;
  if (first.type == nullptr)
    refuse(PyExc_ValueError, "block_mask", "without lists",
           "kv_num_blocks and kv_indices, or full_kv_num_blocks and full_kv_indices");
  mask.batch = first.shape[0];
  mask.heads = first.shape[1];
  mask.q_blocks = first.shape[2];
  check_block_shape(mask, indices, "kv_indices");
  check_block_shape(mask, full_counts, "full_kv_num_blocks");
  check_block_shape(mask, full_indices, "full_kv_indices");
  check_block_shape(mask, bit_indices, "bit_indices");
  mask.kv_num_blocks = words_of(counts);
  mask.kv_indices = words_of(indices);
  if (indices.type != nullptr) mask.kv_capacity = indices.shape[3];
  mask.full_kv_num_blocks = words_of(full_counts);
  mask.full_kv_indices = words_of(full_indices);
  if (full_indices.type != nullptr) mask.full_kv_capacity = full_indices.shape[3];
  mask.bit_indices = words_of(bit_indices);
  if (bit_indices.type != nullptr && bit_indices.shape[3] != mask.kv_capacity)
    refuse(PyExc_ValueError, "block_mask.bit_indices", "of another shape", "that of kv_indices");
  if (bits.type == nullptr) return;
  if (bits.shape[1] != mask.block_size || bits.shape[2] * 32 != mask.block_size)
    refuse(PyExc_ValueError, "block_mask.bits",
           "of rows of " + std::to_string(bits.shape[2]) + " words",
           "(entries, block_size, block_size / 32)");
  mask.bits = reinterpret_cast<const std::uint32_t*>(words_of(bits));
  mask.bit_blocks = bits.shape[0];
}

void read_modifiers(Call& call, const Given& given) {
  Arguments& a = call.arguments;
  a.bias = read_score_tensor(call, given, kBias);
  a.mask = read_score_tensor(call, given, kMask);
  read_slopes(call, given);
  a.sinks = static_cast<const float*>(read_numbers(call, given, kSinks,
                                                   dlpack_type(nb::dlpack::dtype_code::Float, 32),
                                                   a.q.shape[1], "query head"));
  read_block_mask(call, given);
  read_draft_tree(call, given);
}

// The output's type: the requested one, else that of the first operand that is not 8-bit.
DType out_type(const Call& call, nb::handle asked) {
  if (!asked.is_none()) return dtype_of(asked, "out_dtype", true);
  for (const ConstTensor* t : {&call.arguments.q, &call.arguments.v, &call.arguments.k})
    if (!is_8bit(t->dtype)) return t->dtype;
  return DType::f16;
}

void prepare_out(Call& call, const Given& given, Layout layout) {
  if (given[kOut].is_none()) {
    const DType dtype = out_type(call, given[kOutDtype]);
    const ConstTensor& v = call.arguments.v;
    const bool transposed = call.arguments.v_layout == VLayout::transposed;
    const std::int64_t columns = v.dtype == DType::int4 ? 2 * v.shape[3]  // two in a byte
                                 : transposed           ? v.shape[2]
                                                        : v.shape[3];
    call.out = make_like(call.q, dtype, columns);
    call.arguments.out = tensor_view(keep(call, read_array(call.out, "out")), dtype, layout, "out");
    return;
  }
  const Array out = keep(call, read_output(given[kOut], "out"));
  check_device(call, out, "out");
  call.out = nb::borrow(given[kOut]);
  // A uint8 array holds the requested 8-bit type, because NumPy has no FP8 types.
  const bool bytes = out.dtype == dlpack_type(nb::dlpack::dtype_code::UInt, 8);
  DType dtype = DType::f32;
  if (bytes && !given[kOutDtype].is_none()) dtype = dtype_of(given[kOutDtype], "out_dtype", true);
  if (!is_8bit(dtype)) dtype = element_type(out, "out");
  call.arguments.out = tensor_view(out, dtype, layout, "out");
}

// The number of scales tells whether they are per tensor or per head.
void read_out_scale(Call& call, nb::handle given) {
  Arguments& a = call.arguments;
  if (!is_8bit(a.out.dtype)) {
    if (given.is_none()) return;
    refuse(PyExc_ValueError, "out_scale", "given with out of " + std::string(name(a.out.dtype)),
           "None; an array with out_dtype float8_e4m3fn, float8_e5m2 or int8");
  }
  const std::int64_t heads = sequences_of(a) * a.q.shape[1];
  const std::string supported =
      "float32, contiguous, of 1 number or " + std::to_string(heads) + ", one per head";
  if (given.is_none())
    refuse(PyExc_ValueError, "out_scale", "None with out of " + std::string(name(a.out.dtype)),
           supported);
  const Array array = keep(call, read_array(given, "out_scale"));
  check_device(call, array, "out_scale");
  if (array.dtype != dlpack_type(nb::dlpack::dtype_code::Float, 32))
    refuse(PyExc_TypeError, "out_scale", "of " + dtype_name(array.dtype), supported);
  std::int64_t count = 1;
  bool contiguous = array.dimensions <= kMostDimensions;
  for (int i = contiguous ? array.dimensions - 1 : -1; i >= 0; --i) {
    contiguous = contiguous && (array.shape[i] == 1 || array.stride[i] == count);
    count *= array.shape[i];
  }
  if (!contiguous || (count != 1 && count != heads))
    refuse(PyExc_ValueError, "out_scale",
           contiguous ? std::to_string(count) + " numbers" : "not contiguous", supported);
  a.out_scales.data = static_cast<const float*>(array.data);
  a.out_scales.granularity = count == 1 ? Granularity::tensor : Granularity::head;
}

// amax is (batch, heads) if the output's scales are per head, else a single number.
void prepare_amax(Call& call) {
  Arguments& a = call.arguments;
  const bool of_heads = is_8bit(a.out.dtype) && a.out_scales.granularity == Granularity::head;
  const std::array<std::int64_t, 2> shape = {of_heads ? sequences_of(a) : 1, a.q.shape[1]};
  call.amax = make_array(call.q, DType::f32, of_heads ? 2 : 1, shape.data());
  a.out_amax = static_cast<float*>(keep(call, read_array(call.amax, "amax")).data);
}

// lse is (batch, heads, seqlen), or (heads, tokens) for a varlen batch.
void prepare_lse(Call& call, Layout layout) {
  const auto& shape = call.arguments.q.shape;
  const bool varlen = layout == Layout::varlen;
  call.lse = make_array(call.q, DType::f32, varlen ? 2 : 3, shape.data() + (varlen ? 1 : 0));
  const Array lse = keep(call, read_array(call.lse, "lse"));
  call.arguments.lse = Tensor::bhsd(lse.data, DType::f32, shape[0], shape[1], shape[2], 1);
}

}  // namespace

// Accepts an address, or a stream of PyTorch or CuPy.
Stream stream_of(nb::handle value) {
  for (const char* pointer : {"cuda_stream", "ptr"})
    if (nb::hasattr(value, pointer)) return stream_of(value.attr(pointer));
  const std::int64_t address =
      number_of(value, "stream", "None, a CUstream's address, a stream of PyTorch or CuPy");
  return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(address));
}

Stream current_stream(const Array& q) {
  void* stream = nullptr;
  if (q.type->exchange != nullptr && q.type->exchange->current_stream != nullptr) {
    if (q.type->exchange->current_stream(kDlpackCuda, q.device.index, &stream) != 0)
      throw nb::python_error();
    return stream;
  }
  if (q.type->framework == Framework::torch)
    return stream_of(Torch::get().module.attr("cuda").attr("current_stream")(q.device.index));
  if (module_of(*q.type).starts_with("cupy"))
    return stream_of(nb::module_::import_("cupy").attr("cuda").attr("get_current_stream")());
  return nullptr;  // the legacy default stream, which synchronizes with the others, as __dlpack__
                   // requires
}

namespace {

// Reads what both passes share: q, k, v, the options, the varlen batch and the stream.
Call read_inputs(const Given& given) {
  Call call;
  Arguments& a = call.arguments;
  const bool varlen = !given[kCuSeqlensQ].is_none() || !given[kCuSeqlensKv].is_none();
  const Layout layout = varlen ? Layout::varlen : layout_of(given[kLayout]);
  call.layout = layout;
  std::array<Operand, 3> operands = {{{"q", &a.q, &a.q_scales},
                                      {"k", &a.k, &a.k_scales, &a.k_groups},
                                      {"v", &a.v, &a.v_scales, &a.v_groups}}};
  for (int i = 0; i < 3; ++i) read_operand(call, operands[i], given[kQ + i], layout);
  a.v_layout = operands[2].layout;
  call.device = call.q.device;
  call.options = options_of(given);
  if (!given[kScale].is_none()) a.scale = real_of(given[kScale]);
  if (varlen) read_varlen(call, given);
  read_padding(call, given);
  read_page_table(call, given);
  read_modifiers(call, given);
  check_alignment(call, given);
  for (const Operand& one : operands)
    if (one.scale_count >= 0)
      check_scale_count(call, one, one.tensor == &a.q ? a.max_seqlen_q : a.max_seqlen_kv);
  call.stream_given = !given[kStream].is_none();
  if (call.stream_given)
    call.stream = stream_of(given[kStream]);
  else if (call.device.kind == Device::Kind::cuda)
    call.stream = current_stream(call.q);
  return call;
}

// One of out, lse and dout of the backward pass, in the layout of q.
ConstTensor read_result(Call& call, nb::handle value, const char* what) {
  const Array array = keep(call, read_array(value, what));
  check_device(call, array, what);
  return tensor_view(array, element_type(array, what), call.layout, what);
}

// lse has the shape that the forward pass gives it: (batch, heads, seqlen), or (heads, tokens).
ConstTensor read_lse(Call& call, nb::handle value) {
  const Array array = keep(call, read_array(value, "lse"));
  check_device(call, array, "lse");
  const bool varlen = call.layout == Layout::varlen;
  const int dimensions = varlen ? 2 : 3;
  if (array.dimensions != dimensions)
    refuse(PyExc_ValueError, "lse", "of " + std::to_string(array.dimensions) + " dimensions",
           varlen ? "(heads, tokens)" : "(batch, heads, seqlen)");
  ConstTensor lse{array.data, element_type(array, "lse"), {1, 1, 1, 1}, {0, 0, 0, 1}};
  for (int i = 0; i < dimensions; ++i) {
    lse.shape[static_cast<std::size_t>(3 - dimensions + i)] = array.shape[i];
    lse.stride[static_cast<std::size_t>(3 - dimensions + i)] = array.stride[i];
  }
  // In any layout q's shape is (batch, heads, seqlen, head_dim) by now.
  const auto& q = call.arguments.q.shape;
  if (lse.shape[0] != q[0] || lse.shape[1] != q[1] || lse.shape[2] != q[2]) {
    const auto text = [varlen](const std::array<std::int64_t, 4>& s) {
      std::string inside = varlen ? "" : std::to_string(s[0]) + ", ";
      return "(" + inside + std::to_string(s[1]) + ", " + std::to_string(s[2]) + ")";
    };
    refuse(PyExc_ValueError, "lse.shape", text(lse.shape), text(q) + ", a number per row of q");
  }
  return lse;
}

// A gradient of the kind and memory order of `like`. Rows that belong to no sequence are not
// written, but their gradient is zero.
Tensor make_gradient(Call& call, nb::handle like, const char* what, nb::object& made) {
  const Array array = read_array(like, what);
  const DType dtype = element_type(array, what);
  made = make_like(array, dtype);
  const Array target = keep(call, read_array(made, what));
  if (call.layout == Layout::varlen) fill_with_zeros(array, made, target);
  return tensor_view(target, dtype, call.layout, what);
}

// The gradients of bias and sinks, of their shapes, if they are requested.
void make_modifier_gradients(BackwardCall& call, const Given& given) {
  Call& shared = call.forward;
  for (const auto& [asked, of] : {std::pair{kReturnDbias, kBias}, {kReturnDsinks, kSinks}})
    if (is_true(given[asked]) && given[of].is_none())
      refuse(PyExc_ValueError, kParameters[asked], std::string("True without ") + kParameters[of],
             std::string("False without ") + kParameters[of]);
  if (is_true(given[kReturnDbias])) {
    const Array bias = read_array(given[kBias], "bias");
    const Tensor like{nullptr, call.arguments.bias.dtype, call.arguments.bias.shape, {}};
    call.dbias = make_array(shared.q, like.dtype, bias.dimensions, bias.shape.data());
    const Array made = keep(shared, read_array(call.dbias, "dbias"));
    call.arguments.dbias = Tensor::bhsd(made.data, like.dtype, like.shape[0], like.shape[1],
                                        like.shape[2], like.shape[3]);
  }
  if (is_true(given[kReturnDsinks])) {
    call.dsinks = make_array(shared.q, DType::f32, 1, &call.arguments.q.shape[1]);
    call.arguments.dsinks =
        static_cast<float*>(keep(shared, read_array(call.dsinks, "dsinks")).data);
  }
}

}  // namespace

Call read_call(const Given& given) {
  Call call = read_inputs(given);
  prepare_out(call, given, call.layout);
  read_out_scale(call, given[kOutScale]);
  if (is_true(given[kReturnLse])) prepare_lse(call, call.layout);
  if (is_true(given[kReturnAmax])) prepare_amax(call);
  return call;
}

BackwardArguments shared_arguments(const Arguments& a) {
  BackwardArguments b;
  b.q = a.q;
  b.k = a.k;
  b.v = a.v;
  b.scale = a.scale;
  b.cu_seqlens_q = a.cu_seqlens_q;
  b.cu_seqlens_kv = a.cu_seqlens_kv;
  b.sequences = a.sequences;
  b.max_seqlen_q = a.max_seqlen_q;
  b.max_seqlen_kv = a.max_seqlen_kv;
  b.seqlens_q = a.seqlens_q;
  b.seqlens_kv = a.seqlens_kv;
  b.leftpad_q = a.leftpad_q;
  b.leftpad_kv = a.leftpad_kv;
  b.bias = a.bias;
  b.mask = a.mask;
  b.alibi_slopes = a.alibi_slopes;
  b.alibi_batch_stride = a.alibi_batch_stride;
  b.sinks = a.sinks;
  b.block_mask = a.block_mask;
  return b;
}

BackwardCall read_backward_call(const Given& given) {
  BackwardCall call;
  call.forward = read_inputs(given);
  Call& shared = call.forward;
  const Arguments& a = shared.arguments;
  for (const Parameter one : {kQ, kK, kV})
    if (array_type(given[one]).framework == Framework::none)
      refuse(PyExc_NotImplementedError, kParameters[one], "an octavo.Quantized",
             "arrays of float32, float16 and bfloat16 in the backward pass");
  BackwardArguments& b = call.arguments;
  b = shared_arguments(a);
  b.out = read_result(shared, given[kOut], "out");
  b.lse = read_lse(shared, given[kLse]);
  b.dout = read_result(shared, given[kDout], "dout");
  b.dq = make_gradient(shared, given[kQ], "q", call.dq);
  b.dk = make_gradient(shared, given[kK], "k", call.dk);
  b.dv = make_gradient(shared, given[kV], "v", call.dv);
  make_modifier_gradients(call, given);
  return call;
}

}  // namespace octavo::python
