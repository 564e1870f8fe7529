// SPDX-License-Identifier: Apache-2.0
// Derives the problem from the arguments of a call, and checks that shapes agree, that pointers are
// not null, and that outputs do not overlap other tensors.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "attention/backward_arguments.h"
#include "attention/int4_rows.h"
#include "attention/operand_scales.h"
#include "attention/sequence.h"
#include "attention/validate.h"
#include "base/error.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

__extension__ using Wide = __int128;

std::string shape_text(const std::array<std::int64_t, 4>& s) {
  return fmt::format("({}, {}, {}, {})", s[0], s[1], s[2], s[3]);
}

Status expect_shape(std::string_view what, const std::array<std::int64_t, 4>& is,
                    const std::array<std::int64_t, 4>& expected, std::string_view why) {
  if (is == expected) return {};
  return invalid(fmt::format("{}.shape", what), shape_text(is),
                 fmt::format("{} {}", shape_text(expected), why));
}

Status check_shapes(const Arguments& a) {
  const auto& q = a.q.shape;
  const auto& k = a.k.shape;
  if (a.k.dtype == DType::int4 ? k[3] * 2 != q[3] : k[3] != q[3])
    return invalid(
        "k.shape[3]", fmt::format("{}", k[3]),
        fmt::format("{} of q, here {}",
                    a.k.dtype == DType::int4 ? "half the head dimension" : "the head dimension",
                    q[3]));
  if (k[0] != q[0] && !is_paged(a))
    return invalid("k.shape[0]", fmt::format("{}", k[0]),
                   fmt::format("the batch of q, here {}", q[0]));
  if ((a.k.dtype == DType::int4) != (a.v.dtype == DType::int4))
    return invalid("v dtype", name(a.v.dtype), fmt::format("that of k, here {}", name(a.k.dtype)));
  // A transposed V is checked later, by check_transposed_v(), when the number of sequences is
  // known.
  const bool by_rows = a.v_layout == VLayout::rows;
  const std::int64_t columns = by_rows ? row_channels(a.v) : a.out.shape[3];
  if (by_rows)
    OCTAVO_RETURN_IF_ERROR(
        expect_shape("v", a.v.shape, {k[0], k[1], k[2], a.v.shape[3]}, "(that of k)"));
  return expect_shape("out", a.out.shape, {q[0], q[1], q[2], columns},
                      columns == q[3] ? "(that of q)" : "(that of q, with the columns of v)");
}

Status check_lse(const Arguments& a) {
  const auto& q = a.q.shape;
  OCTAVO_RETURN_IF_ERROR(
      expect_shape("lse", a.lse.shape, {q[0], q[1], q[2], 1}, "(a value per row of q)"));
  if (a.lse.dtype != DType::f32) return invalid("lse.dtype", name(a.lse.dtype), "f32");
  return {};
}

// Call after the number of sequences has been checked.
Status check_transposed_v(const Arguments& a) {
  if (a.v_layout == VLayout::rows) return {};
  const auto& k = a.k.shape;
  const std::int64_t columns = transposed_columns(k[2], is_varlen(a) ? a.sequences : 0);
  return expect_shape("v", a.v.shape, {k[0], k[1], a.out.shape[3], columns},
                      "(that of k transposed, with keys padded to a multiple of 16)");
}

// An array argument that is not a tensor, with its size in 32-bit numbers.
struct NamedArray {
  std::string_view what;
  const void* data;
  Wide numbers;
};

// Call after the shapes have been checked.
std::array<NamedArray, 22> arrays_of(const Arguments& a) {
  const Wide batch = a.q.shape[0], heads = a.q.shape[1], sequences = sequence_count(a);
  const BlockMask& m = a.block_mask;
  const Wide lists = m.block_size == 0 ? 0 : Wide{m.batch} * m.heads * m.q_blocks;
  const Wide bits = m.block_size == 0 ? 0 : Wide{m.bit_blocks} * m.block_size * m.block_size / 32;
  const auto scales = [&a](const ConstTensor& t, const Scales& of, std::int64_t longest) -> Wide {
    return is_8bit(t.dtype) ? scales_extent(a, t, of, longest) : 0;
  };
  const std::int64_t rows_q = is_varlen(a) ? a.max_seqlen_q : a.q.shape[2];
  const std::int64_t keys = is_varlen(a) ? a.max_seqlen_kv : rows_kv(a);
  const ConstTensor v = v_by_rows(a);
  return {{{"seqlens_q", a.seqlens_q, batch},
           {"seqlens_kv", a.seqlens_kv, batch},
           {"leftpad_q", a.leftpad_q, batch},
           {"leftpad_kv", a.leftpad_kv, batch},
           {"cu_seqlens_q", a.cu_seqlens_q, sequences + 1},
           {"cu_seqlens_kv", a.cu_seqlens_kv, sequences + 1},
           {"page_table", a.page_table, (batch - 1) * a.page_table_stride + a.pages_per_sequence},
           {"draft_tree", a.draft_tree, batch * a.q.shape[2]},
           {"alibi_slopes", a.alibi_slopes, (sequences - 1) * a.alibi_batch_stride + heads},
           {"sinks", a.sinks, heads},
           {"block_mask.kv_num_blocks", m.kv_num_blocks, lists},
           {"block_mask.kv_indices", m.kv_indices, lists * m.kv_capacity},
           {"block_mask.full_kv_num_blocks", m.full_kv_num_blocks, lists},
           {"block_mask.full_kv_indices", m.full_kv_indices, lists * m.full_kv_capacity},
           {"block_mask.bit_indices", m.bit_indices, lists * m.kv_capacity},
           {"block_mask.bits", m.bits, bits},
           {"q_scales", a.q_scales.data, scales(a.q, a.q_scales, rows_q)},
           {"k_scales", a.k_scales.data, scales(a.k, a.k_scales, keys)},
           {"v_scales", a.v_scales.data, scales(v, a.v_scales, keys)},
           {"out_scales", a.out_scales.data, scales(a.out, a.out_scales, rows_q)},
           {"k_groups", a.k_groups.data, groups_words(a.k, a.k_groups)},
           {"v_groups", a.v_groups.data, groups_words(a.v, a.v_groups)}}};
}

Status validate_apart_from_arrays(std::string_view what, const Tensor& written,
                                  const Arguments& a) {
  // No memory holds larger arrays than this.
  constexpr Wide kMost = Wide{1} << 57;
  for (const NamedArray& array : arrays_of(a)) {
    if (array.data == nullptr || array.numbers <= 0) continue;
    ConstTensor view{array.data, DType::f32, {1, 1, 1, 1}, {0, 0, 0, 1}};
    view.shape[3] = static_cast<std::int64_t>(std::min(array.numbers, kMost));
    OCTAVO_RETURN_IF_ERROR(validate_apart(what, written, array.what, view));
  }
  return {};
}

// Checks pointers and overlaps. Some pointers may be null if there are no rows or heads; otherwise
// `out` must not be.
Status check_memory(const Arguments& a) {
  for (const auto& [what, tensor] :
       {std::pair<std::string_view, Tensor>{"out", a.out}, {"lse", a.lse}}) {
    if (what == "lse" && a.lse.data == nullptr) continue;
    OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap(what, tensor));
    for (const auto& [other_what, other] :
         {std::pair<std::string_view, ConstTensor>{"q", a.q}, {"k", a.k}, {"v", a.v}})
      OCTAVO_RETURN_IF_ERROR(validate_apart(what, tensor, other_what, other));
    for (const auto& [other_what, other] :
         {std::pair<std::string_view, ConstTensor>{"bias", a.bias}, {"mask", a.mask}})
      if (other.data != nullptr)
        OCTAVO_RETURN_IF_ERROR(validate_apart(what, tensor, other_what, other));
    OCTAVO_RETURN_IF_ERROR(validate_apart_from_arrays(what, tensor, a));
  }
  if (a.lse.data == nullptr) return {};
  return validate_apart("lse", a.lse, "out", a.out);
}

// out_amax is cleared before anything is read, so it must not overlap any input.
Status check_amax(const Arguments& a, const Problem& p) {
  if (a.out_amax == nullptr) return {};
  const Tensor amax = amax_view(p, a);
  OCTAVO_RETURN_IF_ERROR(validate_tensor("out_amax", amax));
  for (const auto& [what, other] :
       {std::pair<std::string_view, ConstTensor>{"q", a.q}, {"k", a.k}, {"v", a.v}, {"out", a.out}})
    OCTAVO_RETURN_IF_ERROR(validate_apart("out_amax", amax, what, other));
  for (const auto& [what, other] :
       {std::pair<std::string_view, ConstTensor>{"lse", a.lse}, {"bias", a.bias}, {"mask", a.mask}})
    if (other.data != nullptr)
      OCTAVO_RETURN_IF_ERROR(validate_apart("out_amax", amax, what, other));
  return validate_apart_from_arrays("out_amax", amax, a);
}

// Rejects strides beyond the address space, which would overflow when a scale is looked up.
Status check_scale_strides(std::string_view what, const std::array<std::int64_t, 3>& stride,
                           const std::array<std::int64_t, 3>& shape) {
  const std::string argument = fmt::format("{}.stride", what);
  Wide last = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (stride[i] < 0) return invalid(argument, fmt::format("{}", stride[i]), "0 or more");
    last += Wide{std::max<std::int64_t>(shape[i] - 1, 0)} * stride[i];
  }
  if (last < kLargestElements) return {};
  return invalid(argument, fmt::format("({}, {}, {})", stride[0], stride[1], stride[2]),
                 "strides that keep the scales within 2^60 bytes");
}

Status check_scales(std::string_view what, const Arguments& a, const ConstTensor& tensor,
                    const Scales& scales, std::int64_t max_len,
                    std::string_view of_what = "inputs") {
  if (!is_8bit(tensor.dtype)) return {};
  if (scales.data == nullptr)
    return invalid(fmt::format("{}.data", what), "null",
                   fmt::format("an array of scales, for {} of {}", of_what, name(tensor.dtype)));
  if (scales.granularity == Granularity::block && scales.block_rows < 1)
    return invalid(fmt::format("{}.block_rows", what), fmt::format("{}", scales.block_rows),
                   "1 or more");
  if (is_paged(a) && scales.granularity == Granularity::block &&
      scales.block_rows != tensor.shape[2])
    return invalid(fmt::format("{}.block_rows", what), fmt::format("{}", scales.block_rows),
                   fmt::format("the page size, here {}", tensor.shape[2]));
  if (!scales.stride) return {};
  const auto shape = scale_shape(a, tensor, scales, max_len);
  const std::int64_t inner = scales_per_head(shape, scales.granularity, scales.block_rows);
  return check_scale_strides(what, *scales.stride, {shape[0], shape[1], inner});
}

Status check_varlen(const Arguments& a) {
  if ((a.cu_seqlens_q == nullptr) != (a.cu_seqlens_kv == nullptr))
    return invalid(a.cu_seqlens_q == nullptr ? "cu_seqlens_q" : "cu_seqlens_kv", "null",
                   "both arrays, or neither");
  if (!is_varlen(a)) {
    if (a.sequences == 0) return {};
    return invalid("sequences", fmt::format("{} without cu_seqlens", a.sequences), "0");
  }
  if (a.q.shape[0] != 1)
    return invalid("q.shape[0]", fmt::format("{}", a.q.shape[0]), "1 in a varlen batch");
  for (const auto& [what, value] :
       {std::pair<std::string_view, std::int64_t>{"sequences", a.sequences},
        {"max_seqlen_q", a.max_seqlen_q},
        {"max_seqlen_kv", a.max_seqlen_kv}})
    if (value < 0 || value > INT32_MAX)
      return invalid(what, fmt::format("{}", value), "0 to 2147483647");
  return {};
}

Status check_padding(const Arguments& a) {
  if (!is_varlen(a)) return {};
  for (const auto& [what, array] : {std::pair{"seqlens_q", a.seqlens_q},
                                    {"seqlens_kv", a.seqlens_kv},
                                    {"leftpad_q", a.leftpad_q},
                                    {"leftpad_kv", a.leftpad_kv}})
    if (array != nullptr) return invalid(what, "given together with cu_seqlens", "one of the two");
  return {};
}

// Checks the arguments of a paged cache. Call after the tensors have been checked.
Status check_paging(const Arguments& a) {
  if (!is_paged(a)) {
    if (a.pages_per_sequence == 0) return {};
    return invalid("pages_per_sequence", fmt::format("{} without page_table", a.pages_per_sequence),
                   "0");
  }
  for (const auto& [what, array] : {std::pair{"cu_seqlens_q", a.cu_seqlens_q},
                                    {"cu_seqlens_kv", a.cu_seqlens_kv},
                                    {"leftpad_kv", a.leftpad_kv}})
    if (array != nullptr)
      return unsupported(what, "given together with page_table",
                         "seqlens_q, leftpad_q and seqlens_kv with a paged cache");
  if (a.seqlens_kv == nullptr)
    return invalid("seqlens_kv", "null", "an array of lengths, with a page_table");
  const std::int64_t page_size = a.k.shape[2];
  OCTAVO_RETURN_IF_ERROR(validate_page_size("k.shape[2]", page_size));
  if (Wide{a.k.shape[0]} * a.k.shape[1] * page_size >
      Wide{kLargestElements} / std::max<std::int64_t>(a.k.shape[3], 1))
    return invalid("k.shape", shape_text(a.k.shape), "at most 2^58 elements in a cache");
  if (a.pages_per_sequence < 0 || a.pages_per_sequence > kLargestDimension / page_size)
    return invalid(
        "pages_per_sequence", fmt::format("{}", a.pages_per_sequence),
        fmt::format("0 to {} with pages of {} rows", kLargestDimension / page_size, page_size));
  const bool has_rows = a.q.shape[0] > 1;  // otherwise the stride means nothing
  if (has_rows &&
      (a.page_table_stride < a.pages_per_sequence || a.page_table_stride > kLargestDimension))
    return invalid(
        "page_table_stride", fmt::format("{}", a.page_table_stride),
        fmt::format("{}, the pages of a sequence, to {}", a.pages_per_sequence, kLargestDimension));
  for (const auto& [what, tensor] : {std::pair{"bias", a.bias}, {"mask", a.mask}})
    if (tensor.data != nullptr)
      return unsupported(what, "given together with page_table",
                         "causal masks, windows, softcap, ALiBi and sinks with a paged cache");
  return {};
}

// Checks that `tensor` broadcasts to (B, Hq, Sq, Skv).
Status check_score_tensor(std::string_view what, const ConstTensor& tensor, const Arguments& a) {
  OCTAVO_RETURN_IF_ERROR(validate_view(what, tensor));
  if (is_varlen(a))
    return unsupported(what, "given together with cu_seqlens", "dense and padded batches");
  const std::array scores = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.shape[2]};
  for (std::size_t i = 0; i < 4; ++i)
    if (tensor.shape[i] != scores[i] && tensor.shape[i] != 1)
      return invalid(fmt::format("{}.shape", what), shape_text(tensor.shape),
                     fmt::format("{}, each dimension that or 1", shape_text(scores)));
  return {};
}

// Checks one of the two lists of a block mask.
Status check_block_list(std::string_view what, const std::int32_t* num_blocks,
                        const std::int32_t* indices, std::int64_t capacity,
                        std::int64_t kv_blocks) {
  if ((num_blocks == nullptr) != (indices == nullptr))
    return invalid(fmt::format("block_mask.{}", what), "given with one of its arrays",
                   "both arrays, or neither");
  const std::int64_t most = num_blocks == nullptr ? 0 : kv_blocks;
  if (capacity >= 0 && capacity <= most) return {};
  return invalid(fmt::format("block_mask.{} capacity", what), fmt::format("{}", capacity),
                 fmt::format("0 to {}, the blocks of keys", most));
}

Status check_bits(const BlockMask& m) {
  if ((m.bit_indices == nullptr) != (m.bits == nullptr))
    return invalid(m.bits == nullptr ? "block_mask.bits" : "block_mask.bit_indices", "null",
                   "both arrays, or neither");
  if (m.bits == nullptr) return {};
  constexpr std::uintptr_t kAlignment = 16;
  if (reinterpret_cast<std::uintptr_t>(m.bits) % kAlignment != 0)
    return invalid("block_mask.bits", "not aligned", "an address that is a multiple of 16 bytes");
  if (m.kv_indices == nullptr)
    return invalid("block_mask.bits", "given without kv_indices", "bits of partial blocks");
  if (m.bit_blocks >= 1 && m.bit_blocks <= INT32_MAX) return {};
  return invalid("block_mask.bit_blocks", fmt::format("{}", m.bit_blocks), "1 to 2147483647");
}

Status check_block_mask(const Arguments& a) {
  const BlockMask& m = a.block_mask;
  if (m.block_size == 0) return {};
  if (m.block_size != 64 && m.block_size != 128)
    return invalid("block_mask.block_size", fmt::format("{}", m.block_size), "64, 128");
  for (const auto& [what, is, of_q] :
       {std::tuple{"batch", m.batch, a.q.shape[0]}, {"heads", m.heads, a.q.shape[1]}})
    if (is != of_q && is != 1)
      return invalid(fmt::format("block_mask.{}", what), fmt::format("{}", is),
                     fmt::format("{}, that of q, or 1", of_q));
  const auto blocks = [&m](std::int64_t rows) {
    return rows / m.block_size + (rows % m.block_size != 0 ? 1 : 0);
  };
  if (m.q_blocks != blocks(a.q.shape[2]))
    return invalid("block_mask.q_blocks", fmt::format("{}", m.q_blocks),
                   fmt::format("{}, the blocks of {} queries", blocks(a.q.shape[2]), a.q.shape[2]));
  OCTAVO_RETURN_IF_ERROR(check_block_list("kv_indices", m.kv_num_blocks, m.kv_indices,
                                          m.kv_capacity, blocks(a.k.shape[2])));
  OCTAVO_RETURN_IF_ERROR(check_block_list("full_kv_indices", m.full_kv_num_blocks,
                                          m.full_kv_indices, m.full_kv_capacity,
                                          blocks(a.k.shape[2])));
  return check_bits(m);
}

Status check_modifiers(const Arguments& a) {
  if (a.bias.data != nullptr) {
    if (a.bias.dtype > DType::bf16)
      return invalid("bias.dtype", name(a.bias.dtype), "f16, bf16, f32");
    OCTAVO_RETURN_IF_ERROR(check_score_tensor("bias", a.bias, a));
  }
  if (a.mask.data != nullptr) {
    if (a.mask.dtype != DType::boolean) return invalid("mask.dtype", name(a.mask.dtype), "bool");
    OCTAVO_RETURN_IF_ERROR(check_score_tensor("mask", a.mask, a));
  }
  constexpr std::int64_t kLargestStride = std::int64_t{1} << 27;
  if (a.alibi_batch_stride < 0 || a.alibi_batch_stride > kLargestStride)
    return invalid("alibi_batch_stride", fmt::format("{}", a.alibi_batch_stride), "0 to 2^27");
  return check_block_mask(a);
}

// Checks the scales and zeros of an int4 cache.
Status check_groups(std::string_view what, const ConstTensor& tensor, const GroupScales& groups) {
  if (tensor.dtype != DType::int4) return {};
  const auto address = reinterpret_cast<std::uintptr_t>(groups.data);
  if (groups.data == nullptr && tensor.shape[0] > 0 && tensor.shape[1] > 0)
    return invalid(fmt::format("{}.data", what), "null", "scales and zeros, for inputs of int4");
  constexpr std::uintptr_t kAlignment = 16;
  if (address % kAlignment == 0) return {};
  return invalid(fmt::format("{}.data", what), fmt::format("at address 0x{:x}", address),
                 "multiples of 16 bytes");
}

// Makes the problem from arguments whose shapes have been checked.
Problem make_problem(const Arguments& a, const Options& options) {
  Problem p;
  p.batch = sequence_count(a);
  p.heads_q = a.q.shape[1];
  p.heads_kv = a.k.shape[1];
  p.seqlen_q = is_varlen(a) ? a.max_seqlen_q : a.q.shape[2];
  p.seqlen_kv = is_varlen(a) ? a.max_seqlen_kv : rows_kv(a);
  p.head_dim = a.q.shape[3];
  p.head_dim_v = row_channels(v_by_rows(a));
  p.q = a.q.dtype;
  p.k = a.k.dtype;
  p.v = a.v.dtype;
  p.out = a.out.dtype;
  if (is_8bit(p.q)) {
    p.q_scales = a.q_scales.granularity;
    p.q_max_quantized = a.q_scales.max_quantized;
  }
  if (is_8bit(p.k)) {
    p.k_scales = a.k_scales.granularity;
    p.k_max_quantized = a.k_scales.max_quantized;
  }
  if (is_8bit(p.k) && p.k_scales == Granularity::block) p.k_block_rows = a.k_scales.block_rows;
  if (is_8bit(p.v)) p.v_scales = a.v_scales.granularity;
  if (is_8bit(p.out)) p.out_scales = a.out_scales.granularity;
  p.v_layout = a.v_layout;
  p.lse = a.lse.data != nullptr;
  p.out_amax = a.out_amax != nullptr;
  p.varlen = is_varlen(a);
  p.padded = is_padded(a);
  p.paged = is_paged(a);
  if (p.paged) p.page_size = a.k.shape[2];
  if (p.k == DType::int4) p.kv_group = a.k_groups.channels;
  if (a.bias.data != nullptr) p.bias = a.bias.dtype;
  p.mask = a.mask.data != nullptr;
  p.alibi = a.alibi_slopes != nullptr;
  p.sinks = a.sinks != nullptr;
  p.block_mask = a.block_mask.block_size;
  p.draft_tree = a.draft_tree != nullptr;
  p.options = options;
  return p;
}

Status check_softmax_scale(const std::optional<float>& scale) {
  if (!scale || std::isfinite(*scale)) return {};
  return invalid("scale", fmt::format("{}", *scale), "finite numbers");
}

using NamedTensor = std::pair<std::string_view, ConstTensor>;
using OutputTensor = std::pair<std::string_view, Tensor>;

// Checks out and lse, the results of the forward pass.
Status check_forward_results(const BackwardArguments& a) {
  const auto& q = a.q.shape;
  if (std::find(q.begin(), q.end(), 0) != q.end()) return {};
  if (a.out.data == nullptr)
    return invalid("out.data", "null", "a pointer to the output of the forward pass");
  if (a.lse.data == nullptr)
    return invalid("lse.data", "null", "a pointer to the lse of the forward pass");
  return {};
}

Status check_gradients(const BackwardArguments& a) {
  const auto& q = a.q.shape;
  const auto& k = a.k.shape;
  for (const auto& [what, tensor, shape, of] :
       {std::tuple<std::string_view, ConstTensor, const std::array<std::int64_t, 4>&,
                   std::string_view>{"dout", a.dout, q, "(that of q)"},
        {"dq", a.dq, q, "(that of q)"},
        {"dk", a.dk, k, "(that of k)"},
        {"dv", a.dv, k, "(that of v)"}}) {
    OCTAVO_RETURN_IF_ERROR(expect_shape(what, tensor.shape, shape, of));
    if (tensor.dtype != a.q.dtype)
      return invalid(fmt::format("{}.dtype", what), name(tensor.dtype),
                     fmt::format("the dtype of q, here {}", name(a.q.dtype)));
  }
  return {};
}

// Checks the gradients of bias and sinks, if they are requested.
Status check_modifier_gradients(const BackwardArguments& a) {
  if (a.dsinks != nullptr && a.sinks == nullptr)
    return invalid("dsinks", "given without sinks", "null without sinks");
  if (a.dbias.data == nullptr) return {};
  if (a.bias.data == nullptr) return invalid("dbias", "given without bias", "null without bias");
  OCTAVO_RETURN_IF_ERROR(validate_tensor("dbias", a.dbias));
  OCTAVO_RETURN_IF_ERROR(expect_shape("dbias", a.dbias.shape, a.bias.shape, "(that of bias)"));
  if (a.dbias.dtype != a.bias.dtype && a.dbias.dtype != DType::f32)
    return invalid("dbias.dtype", name(a.dbias.dtype),
                   fmt::format("f32, or the dtype of bias, here {}", name(a.bias.dtype)));
  return {};
}

Status check_gradient_memory(const BackwardArguments& a) {
  const Arguments forward = forward_arguments(a);
  const std::int64_t heads = a.q.shape[1];
  const Tensor dsinks = Tensor::bhsd(a.dsinks, DType::f32, 1, 1, 1, heads);
  const std::array outputs = {OutputTensor{"dq", a.dq}, OutputTensor{"dk", a.dk},
                              OutputTensor{"dv", a.dv}, OutputTensor{"dbias", a.dbias},
                              OutputTensor{"dsinks", dsinks}};
  const std::array inputs = {NamedTensor{"q", a.q},       NamedTensor{"k", a.k},
                             NamedTensor{"v", a.v},       NamedTensor{"out", a.out},
                             NamedTensor{"lse", a.lse},   NamedTensor{"dout", a.dout},
                             NamedTensor{"bias", a.bias}, NamedTensor{"mask", a.mask}};
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    const auto& [what, tensor] = *output;
    if (tensor.data == nullptr) continue;
    OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap(what, tensor));
    for (const auto& [other_what, other] : inputs)
      if (other.data != nullptr)
        OCTAVO_RETURN_IF_ERROR(validate_apart(what, tensor, other_what, other));
    OCTAVO_RETURN_IF_ERROR(validate_apart_from_arrays(what, tensor, forward));
    for (auto other = outputs.begin(); other != output; ++other)
      if (other->second.data != nullptr)
        OCTAVO_RETURN_IF_ERROR(validate_apart(what, tensor, other->first, other->second));
  }
  return {};
}

}  // namespace

Result<Problem> problem_of(const Arguments& a, const Options& options) {
  return without_exceptions([&]() -> Result<Problem> {
    for (const auto& [what, tensor] : {NamedTensor{"q", a.q}, NamedTensor{"k", a.k},
                                       NamedTensor{"v", a.v}, NamedTensor{"out", a.out}})
      OCTAVO_RETURN_IF_ERROR(tensor.dtype == DType::int4 ? validate_view(what, tensor)
                                                         : validate_tensor(what, tensor));
    if (a.lse.data != nullptr) OCTAVO_RETURN_IF_ERROR(validate_tensor("lse", a.lse));
    OCTAVO_RETURN_IF_ERROR(check_shapes(a));
    if (a.lse.data != nullptr) OCTAVO_RETURN_IF_ERROR(check_lse(a));
    OCTAVO_RETURN_IF_ERROR(check_varlen(a));
    OCTAVO_RETURN_IF_ERROR(check_padding(a));
    OCTAVO_RETURN_IF_ERROR(check_paging(a));
    OCTAVO_RETURN_IF_ERROR(check_modifiers(a));
    OCTAVO_RETURN_IF_ERROR(check_transposed_v(a));
    const Problem p = make_problem(a, options);
    OCTAVO_RETURN_IF_ERROR(validate(p));
    OCTAVO_RETURN_IF_ERROR(check_softmax_scale(a.scale));
    OCTAVO_RETURN_IF_ERROR(check_scales("q_scales", a, a.q, a.q_scales, p.seqlen_q));
    OCTAVO_RETURN_IF_ERROR(check_scales("k_scales", a, a.k, a.k_scales, p.seqlen_kv));
    OCTAVO_RETURN_IF_ERROR(check_scales("v_scales", a, v_by_rows(a), a.v_scales, p.seqlen_kv));
    OCTAVO_RETURN_IF_ERROR(
        check_scales("out_scales", a, a.out, a.out_scales, p.seqlen_q, "an output"));
    OCTAVO_RETURN_IF_ERROR(check_groups("k_groups", a.k, a.k_groups));
    OCTAVO_RETURN_IF_ERROR(check_groups("v_groups", a.v, a.v_groups));
    if (p.kv_group != 0 && a.v_groups.channels != p.kv_group)
      return invalid("v_groups.channels", fmt::format("{}", a.v_groups.channels),
                     fmt::format("those of k_groups, here {}", p.kv_group));
    OCTAVO_RETURN_IF_ERROR(check_memory(a));
    OCTAVO_RETURN_IF_ERROR(check_amax(a, p));
    return p;
  });
}

Result<Problem> problem_of(const BackwardArguments& a, const Options& options) {
  return without_exceptions([&]() -> Result<Problem> {
    OCTAVO_RETURN_IF_ERROR(validate_tensor("q", a.q));
    OCTAVO_RETURN_IF_ERROR(check_forward_results(a));
    for (const auto& [what, tensor] :
         {NamedTensor{"k", a.k}, NamedTensor{"v", a.v}, NamedTensor{"out", a.out},
          NamedTensor{"lse", a.lse}, NamedTensor{"dout", a.dout}, NamedTensor{"dq", a.dq},
          NamedTensor{"dk", a.dk}, NamedTensor{"dv", a.dv}})
      OCTAVO_RETURN_IF_ERROR(validate_tensor(what, tensor));
    const Arguments forward = forward_arguments(a);
    OCTAVO_RETURN_IF_ERROR(check_shapes(forward));
    OCTAVO_RETURN_IF_ERROR(check_lse(forward));
    OCTAVO_RETURN_IF_ERROR(check_varlen(forward));
    OCTAVO_RETURN_IF_ERROR(check_padding(forward));
    OCTAVO_RETURN_IF_ERROR(check_modifiers(forward));
    Problem p = make_problem(forward, options);
    p.lse = true;  // even without rows, when its pointer may be null
    OCTAVO_RETURN_IF_ERROR(validate_backward(p));
    OCTAVO_RETURN_IF_ERROR(check_gradients(a));
    OCTAVO_RETURN_IF_ERROR(check_modifier_gradients(a));
    OCTAVO_RETURN_IF_ERROR(check_softmax_scale(a.scale));
    OCTAVO_RETURN_IF_ERROR(check_gradient_memory(a));
    return p;
  });
}

std::string describe(const Problem& p) {
  std::string types(name(p.q));
  if (p.k != p.q || p.v != p.q) types = fmt::format("{}/{}/{}", name(p.q), name(p.k), name(p.v));
  if (p.out != p.q) types += fmt::format("->{}", name(p.out));
  std::string text = fmt::format("B={} Hq={} Hkv={} Sq={} Skv={} D={}", p.batch, p.heads_q,
                                 p.heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim);
  if (p.head_dim_v != p.head_dim) text += fmt::format(" Dv={}", p.head_dim_v);
  text += ' ' + types;
  const Options& o = p.options;
  if (o.causal != Causal::none) text += fmt::format(" causal={}", name(o.causal));
  if (o.window_left >= 0 || o.window_right >= 0)
    text += fmt::format(" window={},{}", o.window_left, o.window_right);
  if (o.precision != Precision::native) text += fmt::format(" precision={}", name(o.precision));
  if (p.v_layout == VLayout::transposed) text += " v_layout=transposed";
  if (p.varlen) text += " varlen";
  if (p.padded) text += " padded";
  if (p.paged) text += fmt::format(" page_size={}", p.page_size);
  if (p.kv_group != 0) text += fmt::format(" kv_group={}", p.kv_group);
  if (o.softcap != 0) text += fmt::format(" softcap={}", o.softcap);
  if (p.bias) text += fmt::format(" bias={}", name(*p.bias));
  if (p.alibi) text += " alibi";
  if (p.mask) text += " mask";
  if (p.sinks) text += " sinks";
  if (p.block_mask != 0) text += fmt::format(" block_mask={}", p.block_mask);
  if (p.draft_tree) text += " draft_tree";
  if (p.out_scales == Granularity::head) text += " out_scales=head";
  if (p.lse) text += " lse";
  if (p.out_amax) text += " out_amax";
  return text;
}

}  // namespace octavo
