// SPDX-License-Identifier: Apache-2.0
#include "attention/validate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "attention/mask.h"
#include "attention/operand.h"
#include "attention/sequence.h"
#include "base/error.h"
#include "numeric/formats.h"

namespace octavo {
namespace {

bool known_granularity(Granularity granularity) {
  return std::find(kAllGranularities.begin(), kAllGranularities.end(), granularity) !=
         kAllGranularities.end();
}

std::string number(std::int64_t n) { return fmt::format("{}", n); }

__extension__ using Wide = __int128;

Status validate_sizes(const Problem& p) {
  const auto non_negative = [](std::string_view what, std::int64_t n) {
    return n < 0 || n > kLargestDimension ? invalid(what, number(n), "0 to 2147483647") : Status();
  };
  OCTAVO_RETURN_IF_ERROR(non_negative("batch", p.batch));
  OCTAVO_RETURN_IF_ERROR(non_negative("heads_q", p.heads_q));
  OCTAVO_RETURN_IF_ERROR(non_negative("heads_kv", p.heads_kv));
  OCTAVO_RETURN_IF_ERROR(non_negative("seqlen_q", p.seqlen_q));
  OCTAVO_RETURN_IF_ERROR(non_negative("seqlen_kv", p.seqlen_kv));
  for (const auto& [what, columns] :
       {std::pair{"head_dim", p.head_dim}, {"head_dim_v", p.head_dim_v}})
    if (columns < 1 || columns > kLargestDimension)
      return invalid(what, number(columns), "1 to 2147483647");
  if (p.heads_q > 0 && (p.heads_kv == 0 || p.heads_q % p.heads_kv != 0))
    return invalid("heads_kv", number(p.heads_kv),
                   fmt::format("divisors of heads_q, here {}", p.heads_q));
  const auto too_many = [&p](std::int64_t heads, std::int64_t rows) {
    return Wide{p.batch} * heads * rows >
           Wide{kLargestElements} / std::max(p.head_dim, p.head_dim_v);
  };
  if (too_many(p.heads_q, p.seqlen_q) || too_many(p.heads_kv, p.seqlen_kv))
    return invalid("problem", describe(p), "at most 2^58 elements in each tensor");
  return {};
}

Status validate_modifiers(const Problem& p) {
  if (p.bias && *p.bias > DType::bf16)
    return invalid("bias dtype", name(*p.bias), "f16, bf16, f32");
  if (p.varlen && p.padded) return invalid("padded", "set together with varlen", "one of the two");
  if (p.varlen && (p.bias || p.mask))
    return unsupported(p.bias ? "bias" : "mask", "given together with cu_seqlens",
                       "dense and padded batches");
  if (p.block_mask != 0 && p.block_mask != 64 && p.block_mask != 128)
    return invalid("block_mask.block_size", number(p.block_mask), "64, 128, 0 for none");
  if (p.block_mask != 0 && (p.varlen || p.padded || p.paged))
    return unsupported("block_mask",
                       fmt::format("given together with {}", p.varlen  ? "cu_seqlens"
                                                             : p.paged ? "page_table"
                                                                       : "padding"),
                       "batches of sequences of one length");
  if (p.draft_tree && (p.varlen || p.block_mask != 0))
    return unsupported(
        "draft_tree", fmt::format("given together with {}", p.varlen ? "cu_seqlens" : "block_mask"),
        "dense and padded batches and paged caches");
  if (p.draft_tree && p.seqlen_q > kDraftTreeQueries)
    return invalid("draft_tree", fmt::format("given with {} queries of a sequence", p.seqlen_q),
                   fmt::format("1 to {} queries", kDraftTreeQueries));
  // Smoothing shifts all scores of a row alike. That does not change the softmax, but it changes
  // the tanh of a softcap.
  if (p.options.softcap != 0 && p.options.quantization.smooth_k)
    return unsupported("smooth_k", fmt::format("on with softcap {}", p.options.softcap),
                       "smooth_k without softcap");
  const bool in_8_bits = is_8bit(p.q) || is_8bit(p.k) || is_8bit(p.v) || is_8bit(p.out) ||
                         p.options.precision > Precision::bf16;
  if (p.padded && !p.paged && in_8_bits)
    return unsupported("problem", describe(p),
                       "padded batches of f32, f16 and bf16, in precision native, fp16 or bf16");
  return {};
}

// K and V are read as the cache holds them.
Status validate_paging(const Problem& p) {
  if (!p.paged) {
    if (p.page_size == 0) return {};
    return invalid("page_size", fmt::format("{} without a paged cache", p.page_size), "0");
  }
  OCTAVO_RETURN_IF_ERROR(validate_page_size("page_size", p.page_size));
  if (p.seqlen_kv % p.page_size != 0)
    return invalid("seqlen_kv", number(p.seqlen_kv),
                   fmt::format("multiples of page_size, here {}", p.page_size));
  const auto refuse = [](std::string_view what, std::string_view value, std::string_view instead) {
    return unsupported(what, fmt::format("{} with a paged cache", value), instead);
  };
  if (p.varlen) return refuse("cu_seqlens", "given", "seqlens_q and seqlens_kv");
  if (p.bias || p.mask)
    return refuse(p.bias ? "bias" : "mask", "given",
                  "causal masks, windows, softcap, ALiBi and sinks");
  if (p.v_layout != VLayout::rows) return refuse("v_layout", name(p.v_layout), "rows");
  for (const auto& [what, dtype] : {std::pair{"q dtype", p.q}, {"out dtype", p.out}})
    if (is_8bit(dtype)) return refuse(what, name(dtype), "f32, f16, bf16");
  if (p.options.causal == Causal::top_left)
    return refuse("causal", name(p.options.causal), "none, bottom_right");
  const OperandFormats formats = operand_formats(p);
  if (p.options.precision == Precision::automatic || formats.q.rounded || formats.k.rounded ||
      formats.v.rounded)
    return refuse("precision", name(p.options.precision),
                  "native: the cache is not converted to another type");
  for (const auto& [what, dtype, granularity] :
       {std::tuple{"k_scales.granularity", p.k, p.k_scales},
        {"v_scales.granularity", p.v, p.v_scales}})
    if (is_8bit(dtype) && granularity == Granularity::channel)
      return refuse(what, name(granularity), "tensor, head, row, block of page_size rows");
  if (is_8bit(p.k) && p.k_scales == Granularity::block && p.k_block_rows != p.page_size)
    return invalid("k_scales.block_rows", number(p.k_block_rows),
                   fmt::format("the page size, here {}", p.page_size));
  return {};
}

// int4 is a type of K and V in a paged cache only, and of both or neither.
Status validate_int4(const Problem& p) {
  const bool is_int4 = p.k == DType::int4;
  if (is_int4 != (p.v == DType::int4))
    return invalid("v dtype", name(p.v), fmt::format("that of k, here {}", name(p.k)));
  if (!is_int4) {
    if (p.kv_group == 0) return {};
    return invalid("kv_group", fmt::format("{} without int4 k and v", p.kv_group), "0");
  }
  if (!p.paged) return unsupported("k dtype", "int4 without page_table", "int4 in a paged cache");
  OCTAVO_RETURN_IF_ERROR(validate_int4_group("k_groups.channels", p.kv_group, p.head_dim));
  return validate_int4_group("v_groups.channels", p.kv_group, p.head_dim_v);
}

Status validate_types(const Problem& p) {
  for (const auto& [what, dtype] :
       {std::pair{"q dtype", p.q}, {"k dtype", p.k}, {"v dtype", p.v}, {"out dtype", p.out}})
    if (!known_dtype(dtype) && !(dtype == DType::int4 && (what[0] == 'k' || what[0] == 'v')))
      return invalid(what, fmt::format("code {}", static_cast<int>(dtype)),
                     "f32, f16, bf16, e4m3, e5m2, int8, sim8");
  OCTAVO_RETURN_IF_ERROR(validate_int4(p));
  if (p.out == DType::sim8)
    return invalid("out dtype", name(p.out), "f32, f16, bf16, e4m3, e5m2, int8");
  if (p.v_layout > VLayout::transposed)
    return invalid("v_layout", fmt::format("code {}", static_cast<int>(p.v_layout)),
                   "rows, transposed");
  if (p.v_layout == VLayout::transposed && !is_8bit(p.v))
    return invalid("v_layout", fmt::format("transposed with v of {}", name(p.v)),
                   "rows; transposed for v of e4m3, e5m2, int8, sim8");
  for (const auto& [what, granularity] : {std::pair{"q_scales.granularity", p.q_scales},
                                          {"k_scales.granularity", p.k_scales},
                                          {"v_scales.granularity", p.v_scales}})
    if (!known_granularity(granularity))
      return invalid(what, fmt::format("code {}", static_cast<int>(granularity)),
                     "tensor, head, block, row, channel");
  const bool known = known_granularity(p.out_scales);
  if (is_8bit(p.out) ? p.out_scales > Granularity::head : p.out_scales != Granularity::tensor)
    return invalid("out_scales.granularity",
                   fmt::format("{} with out of {}",
                               known ? std::string(name(p.out_scales))
                                     : fmt::format("code {}", static_cast<int>(p.out_scales)),
                               name(p.out)),
                   is_8bit(p.out) ? "tensor, head" : "tensor");
  return {};
}

Status validate_max_quantizeds(const Problem& p) {
  for (const auto& [what, dtype, bound] :
       {std::tuple{"q_scales.max_quantized", p.q, p.q_max_quantized},
        {"k_scales.max_quantized", p.k, p.k_max_quantized}})
    if (is_8bit(dtype) && !(bound >= 0 && bound <= largest(dtype)))
      return invalid(
          what, fmt::format("{}", bound),
          fmt::format("0 (not known) to {}, the largest of {}", largest(dtype), name(dtype)));
  return {};
}

Status validate_mask(const Options& o) {
  if (o.causal > Causal::bottom_right)
    return invalid("causal", fmt::format("code {}", static_cast<int>(o.causal)),
                   "none, top_left, bottom_right");
  if (o.window_left < -1) return invalid("window_left", number(o.window_left), "-1 (none) or more");
  if (o.window_right < -1)
    return invalid("window_right", number(o.window_right), "-1 (none) or more");
  if (!(std::isfinite(o.softcap) && o.softcap >= 0))
    return invalid("softcap", fmt::format("{}", o.softcap), "0 (none) or positive finite numbers");
  return {};
}

// The number of SMs is checked later, when the GPU is known.
Status validate_sm_margin(const Options& o) {
  if (o.sm_margin >= 0) return {};
  return invalid("sm_margin", number(o.sm_margin), "0 (none) to the SMs of the GPU less one");
}

Status validate_max_error(const Problem& p) {
  const float e = p.options.max_error;
  if (p.options.precision != Precision::automatic) {
    if (e == 0) return {};
    return invalid("max_error", fmt::format("{} with precision {}", e, name(p.options.precision)),
                   "precision auto, or none");
  }
  if (!(std::isfinite(e) && e > 0))
    return invalid("max_error", fmt::format("{}", e),
                   "positive finite numbers, with precision auto");
  if (is_8bit(p.q) || is_8bit(p.k) || is_8bit(p.v))
    return invalid("precision",
                   fmt::format("auto with inputs {}, {}, {}", name(p.q), name(p.k), name(p.v)),
                   "f32, f16, bf16 inputs; 8-bit inputs have no choice of precision");
  return {};
}

Status validate_precision(const Problem& p) {
  const Options& o = p.options;
  const Quantization& z = o.quantization;
  if (o.precision > Precision::automatic)
    return invalid("precision", fmt::format("code {}", static_cast<int>(o.precision)),
                   "native, fp16, bf16, fp8, fp8_mixed, fp8_fast, int8, int8_mixed, sim8, auto");
  OCTAVO_RETURN_IF_ERROR(validate_max_error(p));
  for (const auto& [what, granularity] :
       {std::pair{"quantization.qk", z.qk}, {"quantization.v", z.v}})
    if (granularity && !known_granularity(*granularity))
      return invalid(what, fmt::format("code {}", static_cast<int>(*granularity)),
                     "tensor, head, block, row, channel");
  if (z.rule > ScaleRule::least_squares)
    return invalid("quantization.rule", fmt::format("code {}", static_cast<int>(z.rule)),
                   "amax, least_squares");
  if (z.block_rows < 1)
    return invalid("quantization.block_rows", number(z.block_rows), "1 or more");

  // Smoothing and rotation change Q and K, so the library must quantize both.
  const OperandFormats formats = operand_formats(p);
  const bool ours = formats.q.scales_of_ours() && formats.k.scales_of_ours();
  for (const auto& [what, on] : {std::pair{"smooth_k", z.smooth_k}, {"hadamard", z.hadamard}})
    if (on && !ours)
      return invalid(what,
                     fmt::format("on with precision {} and inputs {}, {}", name(o.precision),
                                 name(p.q), name(p.k)),
                     "an 8-bit precision from f32, f16 or bf16 inputs");
  return {};
}

Status validate_padding(std::string_view seqlens_name, const std::int32_t* seqlens,
                        std::string_view leftpad_name, const std::int32_t* leftpad,
                        std::int64_t batch, std::int64_t rows) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t begin = leftpad == nullptr ? 0 : leftpad[b];
    if (begin < 0 || begin > rows)
      return invalid(fmt::format("{}[{}]", leftpad_name, b), number(begin),
                     fmt::format("0 to {}, the rows of the tensor", rows));
    if (seqlens != nullptr && (seqlens[b] < 0 || seqlens[b] > rows - begin))
      return invalid(fmt::format("{}[{}]", seqlens_name, b), number(seqlens[b]),
                     fmt::format("0 to {}, the rows behind the padding", rows - begin));
  }
  return {};
}

// Checks the page table. Entries beyond a sequence's length may hold anything. Call after the
// lengths have been checked.
Status validate_pages(const Arguments& a) {
  const std::int64_t pages = a.k.shape[0], page_size = a.k.shape[2];
  for (std::int64_t b = 0; b < a.q.shape[0]; ++b)
    for (std::int64_t i = 0; i * page_size < sequence(a, b).seqlen_kv; ++i) {
      const std::int32_t page = a.page_table[b * a.page_table_stride + i];
      if (page < 0 || page >= pages)
        return invalid(fmt::format("page_table[{}][{}]", b, i), number(page),
                       pages == 0 ? std::string("none: the cache has no pages")
                                  : fmt::format("0 to {}, the pages of the cache", pages - 1));
    }
  return {};
}

// Checks that the used entries of a list of a block mask ascend and are below `end`.
Status validate_block_list(std::string_view what, const BlockMask& m,
                           const std::int32_t* num_blocks, const std::int32_t* indices,
                           std::int64_t capacity, std::int64_t end) {
  if (num_blocks == nullptr) return {};
  for (std::int64_t row = 0; row < m.batch * m.heads * m.q_blocks; ++row) {
    if (num_blocks[row] < 0 || num_blocks[row] > capacity)
      return invalid(fmt::format("block_mask.{}[{}]", what, row), number(num_blocks[row]),
                     fmt::format("0 to {}, the capacity of its list", capacity));
    for (std::int64_t i = 0; i < num_blocks[row]; ++i) {
      const std::int32_t index = indices[row * capacity + i];
      const std::int64_t least = i == 0 ? 0 : std::int64_t{indices[row * capacity + i - 1]} + 1;
      if (index < least || index >= end)
        return invalid(fmt::format("an index of block_mask.{}[{}]", what, row), number(index),
                       fmt::format("ascending indices, here {} to {}", least, end - 1));
    }
  }
  return {};
}

// Checks that no block is in both lists of a block mask, as a GPU would visit it twice. Both lists
// must ascend.
Status validate_lists_apart(const BlockMask& m) {
  if (m.kv_num_blocks == nullptr || m.full_kv_num_blocks == nullptr) return {};
  for (std::int64_t row = 0; row < m.batch * m.heads * m.q_blocks; ++row) {
    const std::int32_t* const partial = m.kv_indices + row * m.kv_capacity;
    const std::int32_t* const full = m.full_kv_indices + row * m.full_kv_capacity;
    for (std::int64_t i = 0, j = 0; i < m.kv_num_blocks[row] && j < m.full_kv_num_blocks[row];) {
      if (partial[i] == full[j])
        return invalid(fmt::format("an index of block_mask.full_kv_num_blocks[{}]", row),
                       fmt::format("{}, which kv_indices has too", full[j]), "each block once");
      ++(partial[i] < full[j] ? i : j);
    }
  }
  return {};
}

Status validate_block_mask(const Arguments& a) {
  const BlockMask& m = a.block_mask;
  if (m.block_size == 0) return {};
  const std::int64_t kv_blocks = (a.k.shape[2] + m.block_size - 1) / m.block_size;
  OCTAVO_RETURN_IF_ERROR(validate_block_list("kv_num_blocks", m, m.kv_num_blocks, m.kv_indices,
                                             m.kv_capacity, kv_blocks));
  OCTAVO_RETURN_IF_ERROR(validate_block_list("full_kv_num_blocks", m, m.full_kv_num_blocks,
                                             m.full_kv_indices, m.full_kv_capacity, kv_blocks));
  OCTAVO_RETURN_IF_ERROR(validate_lists_apart(m));
  if (m.bits == nullptr) return {};
  for (std::int64_t row = 0; row < m.batch * m.heads * m.q_blocks; ++row)
    for (std::int64_t i = 0; i < m.kv_num_blocks[row]; ++i) {
      const std::int32_t index = m.bit_indices[row * m.kv_capacity + i];
      if (index < 0 || index >= m.bit_blocks)
        return invalid(fmt::format("block_mask.bit_indices[{}][{}]", row, i), number(index),
                       fmt::format("0 to {}, the entries of bits", m.bit_blocks - 1));
    }
  return {};
}

}  // namespace

Status validate_page_size(std::string_view what, std::int64_t page_size) {
  constexpr std::int64_t kStep = 16, kLargest = 256;
  if (page_size >= kStep && page_size <= kLargest && page_size % kStep == 0) return {};
  return invalid(what, fmt::format("{}, the page size", page_size),
                 fmt::format("multiples of {} up to {}", kStep, kLargest));
}

Status validate_int4_group(std::string_view what, std::int64_t channels, std::int64_t head_dim) {
  if ((channels == 32 || channels == 64) && head_dim % channels == 0) return {};
  return invalid(what, number(channels),
                 fmt::format("32 or 64, a divisor of the head dimension, here {}", head_dim));
}

Status validate_lengths(const Arguments& a) {
  OCTAVO_RETURN_IF_ERROR(validate_padding("seqlens_q", a.seqlens_q, "leftpad_q", a.leftpad_q,
                                          a.q.shape[0], a.q.shape[2]));
  OCTAVO_RETURN_IF_ERROR(validate_padding("seqlens_kv", a.seqlens_kv, "leftpad_kv", a.leftpad_kv,
                                          a.q.shape[0], rows_kv(a)));
  OCTAVO_RETURN_IF_ERROR(validate_block_mask(a));
  if (is_paged(a)) return validate_pages(a);
  if (a.cu_seqlens_q == nullptr || a.cu_seqlens_kv == nullptr) return {};
  for (const auto& [what, cu] :
       {std::pair{"cu_seqlens_q", a.cu_seqlens_q}, {"cu_seqlens_kv", a.cu_seqlens_kv}})
    for (std::int64_t b = 1; b <= a.sequences; ++b)
      if (cu[b] < cu[b - 1])
        return invalid(fmt::format("{}[{}]", what, b), number(cu[b]),
                       fmt::format("{} or more, the entry before it", cu[b - 1]));
  return {};
}

Status validate(const Problem& problem) {
  OCTAVO_RETURN_IF_ERROR(validate_sizes(problem));
  OCTAVO_RETURN_IF_ERROR(validate_types(problem));
  OCTAVO_RETURN_IF_ERROR(validate_max_quantizeds(problem));
  OCTAVO_RETURN_IF_ERROR(validate_mask(problem.options));
  OCTAVO_RETURN_IF_ERROR(validate_sm_margin(problem.options));
  OCTAVO_RETURN_IF_ERROR(validate_precision(problem));
  OCTAVO_RETURN_IF_ERROR(validate_modifiers(problem));
  return validate_paging(problem);
}

Status validate_backward(const Problem& p) {
  OCTAVO_RETURN_IF_ERROR(validate(p));
  if (is_8bit(p.q))
    return unsupported("q dtype", name(p.q), "f32, f16 and bf16 in the backward pass");
  for (const auto& [what, dtype] :
       {std::pair{"k dtype", p.k}, {"v dtype", p.v}, {"out dtype", p.out}})
    if (dtype != p.q)
      return unsupported(what, name(dtype),
                         fmt::format("the dtype of q in the backward pass, here {}", name(p.q)));
  if (p.head_dim_v != p.head_dim)
    return unsupported("head_dim_v", number(p.head_dim_v),
                       fmt::format("head_dim, here {}, in the backward pass", p.head_dim));
  const Precision precision = p.options.precision;
  const bool same_dtype = (precision == Precision::fp16 && p.q == DType::f16) ||
                          (precision == Precision::bf16 && p.q == DType::bf16);
  if (precision != Precision::native && !same_dtype)
    return unsupported("precision", fmt::format("{} with inputs of {}", name(precision), name(p.q)),
                       "native, or fp16 and bf16 with inputs of that dtype, in the backward pass");
  if (p.paged)
    return unsupported("problem", describe(p), "K and V without pages, in the backward pass");
  if (!p.lse) return invalid("lse", "absent", "given in the backward pass");
  if (p.out_amax) return invalid("out_amax", "given", "absent in the backward pass");
  return {};
}

Status validate_run(const Problem& planned, const Problem& run_problem) {
  const auto same = [](std::string_view what, const auto& is, const auto& was,
                       const auto& text) -> Status {
    if (is == was) return {};
    return invalid(what, text(is), fmt::format("{}, for which the plan was made", text(was)));
  };
  const auto dtype_text = [](DType d) { return std::string(name(d)); };
  const auto scales_text = [](Granularity g) { return std::string(name(g)); };
  const auto layout_text = [](VLayout l) { return std::string(name(l)); };
  const auto bool_text = [](bool b) { return std::string(b ? "given" : "absent"); };
  OCTAVO_RETURN_IF_ERROR(same("q dtype", run_problem.q, planned.q, dtype_text));
  OCTAVO_RETURN_IF_ERROR(same("k dtype", run_problem.k, planned.k, dtype_text));
  OCTAVO_RETURN_IF_ERROR(same("v dtype", run_problem.v, planned.v, dtype_text));
  OCTAVO_RETURN_IF_ERROR(same("out dtype", run_problem.out, planned.out, dtype_text));
  OCTAVO_RETURN_IF_ERROR(same("head_dim", run_problem.head_dim, planned.head_dim, number));
  OCTAVO_RETURN_IF_ERROR(same("head_dim_v", run_problem.head_dim_v, planned.head_dim_v, number));
  OCTAVO_RETURN_IF_ERROR(same("q_scales", run_problem.q_scales, planned.q_scales, scales_text));
  OCTAVO_RETURN_IF_ERROR(same("k_scales", run_problem.k_scales, planned.k_scales, scales_text));
  OCTAVO_RETURN_IF_ERROR(same("v_scales", run_problem.v_scales, planned.v_scales, scales_text));
  OCTAVO_RETURN_IF_ERROR(
      same("k_scales.block_rows", run_problem.k_block_rows, planned.k_block_rows, number));
  OCTAVO_RETURN_IF_ERROR(
      same("out_scales", run_problem.out_scales, planned.out_scales, scales_text));
  OCTAVO_RETURN_IF_ERROR(same("v_layout", run_problem.v_layout, planned.v_layout, layout_text));
  // The kernel may rely on the bounds of the plan.
  for (const auto& [what, dtype, is, was] :
       {std::tuple{"q_scales.max_quantized", run_problem.q, run_problem.q_max_quantized,
                   planned.q_max_quantized},
        {"k_scales.max_quantized", run_problem.k, run_problem.k_max_quantized,
         planned.k_max_quantized}})
    if (is_8bit(dtype) && max_quantized(dtype, is) > max_quantized(dtype, was))
      return invalid(what, fmt::format("{}", is),
                     fmt::format("1 to {}, for which the plan was made", was));
  OCTAVO_RETURN_IF_ERROR(same("lse", run_problem.lse, planned.lse, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("out_amax", run_problem.out_amax, planned.out_amax, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("cu_seqlens", run_problem.varlen, planned.varlen, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("seqlens", run_problem.padded, planned.padded, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("page_table", run_problem.paged, planned.paged, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("page_size", run_problem.page_size, planned.page_size, number));
  OCTAVO_RETURN_IF_ERROR(same("k_groups.channels", run_problem.kv_group, planned.kv_group, number));
  OCTAVO_RETURN_IF_ERROR(
      same("bias dtype", run_problem.bias, planned.bias, [](const std::optional<DType>& dtype) {
        return std::string(dtype ? name(*dtype) : "none");
      }));
  OCTAVO_RETURN_IF_ERROR(same("mask", run_problem.mask, planned.mask, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("alibi_slopes", run_problem.alibi, planned.alibi, bool_text));
  OCTAVO_RETURN_IF_ERROR(same("sinks", run_problem.sinks, planned.sinks, bool_text));
  OCTAVO_RETURN_IF_ERROR(
      same("block_mask.block_size", run_problem.block_mask, planned.block_mask, number));
  OCTAVO_RETURN_IF_ERROR(same("draft_tree", run_problem.draft_tree, planned.draft_tree, bool_text));
  if (run_problem.heads_q * planned.heads_kv != planned.heads_q * run_problem.heads_kv)
    return invalid("heads_q / heads_kv",
                   fmt::format("{} / {}", run_problem.heads_q, run_problem.heads_kv),
                   fmt::format("the ratio {} / {}, for which the plan was made", planned.heads_q,
                               planned.heads_kv));
  return {};
}

}  // namespace octavo
