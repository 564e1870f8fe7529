// SPDX-License-Identifier: Apache-2.0
// Converts the Python arguments of attention(), attention_backward() and explain() to the library's
// types.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "array.h"
#include "octavo/octavo.hpp"

namespace octavo::python {

// The parameters, in the order of kParameters.
enum Parameter : int {
  kQ,
  kK,
  kV,
  kCausal,
  kWindow,
  kScale,
  kPrecision,
  kOut,
  kReturnLse,
  kLayout,
  kOutDtype,
  kCuSeqlensQ,
  kCuSeqlensKv,
  kMaxSeqlenQ,
  kMaxSeqlenKv,
  kQuantization,
  kBatchInvariant,
  kOverlapLaunch,
  kStream,
  kMaxError,
  kOutScale,
  kReturnAmax,
  kSeqlensQ,
  kSeqlensKv,
  kLeftpadQ,
  kLeftpadKv,
  kBias,
  kMask,
  kAlibiSlopes,
  kSinks,
  kSoftcap,
  kPageTable,
  kBlockMask,
  kDraftTree,
  kSmMargin,
  kDevice,  // only for explain()
  kDout,    // from here on only for attention_backward()
  kLse,
  kReturnDbias,
  kReturnDsinks,
  kKvNumBlocks,  // from here on only for the operators of octavo.torch: the fields of a block mask
  kKvIndices,
  kFullKvNumBlocks,
  kFullKvIndices,
  kBitIndices,
  kBits,
  kBlockSize,
  kParameterCount
};
inline constexpr std::array<const char*, kParameterCount> kParameters = {"q",
                                                                         "k",
                                                                         "v",
                                                                         "causal",
                                                                         "window",
                                                                         "scale",
                                                                         "precision",
                                                                         "out",
                                                                         "return_lse",
                                                                         "layout",
                                                                         "out_dtype",
                                                                         "cu_seqlens_q",
                                                                         "cu_seqlens_kv",
                                                                         "max_seqlen_q",
                                                                         "max_seqlen_kv",
                                                                         "quantization",
                                                                         "batch_invariant",
                                                                         "overlap_launch",
                                                                         "stream",
                                                                         "max_error",
                                                                         "out_scale",
                                                                         "return_amax",
                                                                         "seqlens_q",
                                                                         "seqlens_kv",
                                                                         "leftpad_q",
                                                                         "leftpad_kv",
                                                                         "bias",
                                                                         "mask",
                                                                         "alibi_slopes",
                                                                         "sinks",
                                                                         "softcap",
                                                                         "page_table",
                                                                         "block_mask",
                                                                         "draft_tree",
                                                                         "sm_margin",
                                                                         "device",
                                                                         "dout",
                                                                         "lse",
                                                                         "return_dbias",
                                                                         "return_dsinks",
                                                                         "kv_num_blocks",
                                                                         "kv_indices",
                                                                         "full_kv_num_blocks",
                                                                         "full_kv_indices",
                                                                         "bit_indices",
                                                                         "bits",
                                                                         "block_size"};

// The optional tensors of the operators of octavo.torch, in the order of their schema after q, k
// and v.
inline constexpr std::array kOptionalTensors = {
    kCuSeqlensQ,    kCuSeqlensKv, kSeqlensQ, kSeqlensKv, kLeftpadQ,    kLeftpadKv, kBias,
    kMask,          kAlibiSlopes, kSinks,    kPageTable, kKvNumBlocks, kKvIndices, kFullKvNumBlocks,
    kFullKvIndices, kBitIndices,  kBits};

// Borrowed references to the arguments of one call; None for those not given.
using Given = std::array<nanobind::handle, kParameterCount>;

// The parameters of a function: those that it needs, which may be given by position, and the
// others.
struct Signature {
  const char* function;
  std::span<const Parameter> needed;
  std::span<const Parameter> named;
};
extern const Signature kAttentionSignature, kExplainSignature, kBackwardSignature;

// Reads arguments in the vectorcall convention.
Given read_parameters(const Signature& signature, PyObject* const* values, Py_ssize_t positional,
                      PyObject* names);

// Reads arguments of the operators of octavo.torch. PyTorch has checked them against the schema,
// and kOptionalTensors follow q, k and v by position.
Given read_operator_parameters(PyObject* const* values, Py_ssize_t positional, PyObject* names);

// A call in the library's types, with the objects that own its memory.
struct Call {
  Array q{};
  std::vector<nanobind::object> kept{};  // DLPack capsules; none for types with a DlpackExchange
  Arguments arguments{};
  Options options{};
  Layout layout = Layout::bhsd;
  Device device{};
  Stream stream = nullptr;
  bool stream_given = false;
  nanobind::object out, lse, amax;  // null if not requested
};

Call read_call(const Given& given);

// A call of the backward pass.
struct BackwardCall {
  Call forward{};  // q, k, v and what both passes share; its arguments have no outputs
  BackwardArguments arguments{};
  nanobind::object dq, dk, dv, dbias, dsinks;  // the last two are null if not requested
};

BackwardCall read_backward_call(const Given& given);

// The arguments that both passes of a call share.
BackwardArguments shared_arguments(const Arguments& arguments);

std::string_view text_of(nanobind::handle value, const char* what, const char* supported);
std::int64_t number_of(nanobind::handle value, const char* what, const char* supported);
bool is_true(nanobind::handle value);  // as Python's `if`
Layout layout_of(nanobind::handle value);
// `quantized`: also accept 8-bit types.
DType dtype_of(nanobind::handle value, const char* what, bool quantized = false);

// An address, or a stream of PyTorch or CuPy; and the stream that the array's framework uses now.
Stream stream_of(nanobind::handle value);
Stream current_stream(const Array& array);

bool is_quantized(nanobind::handle value);
nanobind::object data_of_quantized(nanobind::handle value);
struct QuantizedArray {
  Array data, scales;
  DType format = DType::e4m3;
  Scales view{};
  GroupScales groups{};  // of int4
  VLayout layout = VLayout::rows;
  std::int64_t scale_count = 1;
  std::array<nanobind::object, 2> owners{};  // of the memory of data and scales
};
QuantizedArray read_quantized(nanobind::handle value, const char* what);

}  // namespace octavo::python
