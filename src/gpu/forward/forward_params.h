// SPDX-License-Identifier: Apache-2.0
// Converts the API's types to the parameters that all forward kernels share: elements, lengths,
// heads, scale, mask, modifiers of the scores, padding, and the scales and amax of an output.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "attention/operand_scales.h"
#include "config/element.h"
#include "config/shared_parts.h"
#include "device/core/params.cuh"
#include "gpu/driver/driver.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The kernels' Element of the API's DType.
constexpr Element element_of(DType dtype) {
  static_assert(static_cast<int>(DType::f32) == static_cast<int>(Element::f32) &&
                static_cast<int>(DType::f16) == static_cast<int>(Element::f16) &&
                static_cast<int>(DType::bf16) == static_cast<int>(Element::bf16) &&
                static_cast<int>(DType::e4m3) == static_cast<int>(Element::e4m3) &&
                static_cast<int>(DType::e5m2) == static_cast<int>(Element::e5m2) &&
                static_cast<int>(DType::int8) == static_cast<int>(Element::int8) &&
                static_cast<int>(DType::sim8) == static_cast<int>(Element::sim8));
  return static_cast<Element>(static_cast<int>(dtype));
}

// What a kernel must apply. The Hopper forward kernel adds how it reads bias and mask.
inline ModifierConfig modifiers_of(const Problem& p) {
  return {.softcap = p.options.softcap != 0,
          .bias = p.bias.has_value(),
          .alibi = p.alibi,
          .mask = p.mask,
          .sinks = p.sinks,
          .padded = p.padded,
          .block_mask = static_cast<int>(p.block_mask)};
}

// Scales are computed in double; the kernels' own constant is a float.
inline constexpr double kLog2EDouble = 1.4426950408889634;

inline Strides strides_of(const ConstTensor& t) { return {t.stride[0], t.stride[1], t.stride[2]}; }

// Lengths are at most 2^30. Window sizes are clamped likewise, because the compiler may reorder the
// kernel's comparisons on the assumption that no sum overflows.
inline i32 window_limit(std::int64_t window) {
  return static_cast<i32>(window < 0 ? kNoLimit : std::min<std::int64_t>(window, kNoLimit));
}

// Row and block scales are indexed by row, channel scales by channel, and head scales by neither.
inline ScaleParams scale_params(const Arguments& a, const ConstTensor& tensor, const Scales& scales,
                                std::int64_t max_len) {
  if (!is_8bit(tensor.dtype)) return {};
  const OperandScales found = operand_scales(a, tensor, scales, max_len);
  ScaleParams p;
  p.data = scales.data;
  p.by_token = found.by_token ? 1 : 0;
  if (scales.granularity == Granularity::tensor) return p;
  p.batch = found.by_token ? 0 : found.index.stride[0];
  p.head = found.index.stride[1];
  if (scales.granularity == Granularity::head) return p;
  p.stride = static_cast<i32>(found.index.stride[2]);
  if (scales.granularity == Granularity::block)
    p.block_rows = static_cast<i32>(std::min<std::int64_t>(scales.block_rows, INT32_MAX));
  return p;
}

// The operands of kernels that read them by address. set_shared_params() sets O's strides.
inline void set_operands(ForwardParams& p, const Problem& kernel_problem, const Arguments& a) {
  p.q = a.q.data;
  p.k = a.k.data;
  p.v = a.v.data;
  p.o = a.out.data;
  p.q_strides = strides_of(a.q);
  p.k_strides = strides_of(a.k);
  p.v_strides = strides_of(a.v);
  p.q_scales = scale_params(a, a.q, a.q_scales, kernel_problem.seqlen_q);
  p.k_scales = scale_params(a, a.k, a.k_scales, kernel_problem.seqlen_kv);
  p.v_scales = scale_params(a, a.v, a.v_scales, kernel_problem.seqlen_kv);
  p.heads_q = static_cast<i32>(kernel_problem.heads_q);
  p.head_dim = static_cast<i32>(kernel_problem.head_dim);
}

// `quantized_step` is the value of one unit of quantized Q and K: 1 except for sim8.
template <class Params>
void set_shared_params(Params& p, const Problem& kernel_problem, const Arguments& a, int block_m,
                       double quantized_step = 1) {
  p.lse = static_cast<float*>(a.lse.data);
  p.o_strides = strides_of(a.out);
  p.lse_strides = strides_of(a.lse);
  p.cu_seqlens_q = a.cu_seqlens_q;
  p.cu_seqlens_kv = a.cu_seqlens_kv;
  p.tokens_q = static_cast<i32>(a.q.shape[2]);
  p.tokens_kv = static_cast<i32>(a.k.shape[2]);
  p.heads_per_kv = static_cast<i32>(kernel_problem.heads_q / kernel_problem.heads_kv);
  p.seqlen_q = static_cast<i32>(kernel_problem.seqlen_q);
  p.seqlen_kv = static_cast<i32>(kernel_problem.seqlen_kv);
  p.head_dim_v = static_cast<i32>(kernel_problem.head_dim_v);
  p.row_tiles = static_cast<i32>(div_up<std::int64_t>(kernel_problem.seqlen_q, block_m));
  p.tiles = static_cast<i32>(p.row_tiles * kernel_problem.heads_q * kernel_problem.batch);

  const double scale =
      a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(kernel_problem.head_dim));
  // A masked score must stay -infinity when the scale is 0.
  constexpr double kSmallestScale = 1e-30;
  p.scale_log2 = static_cast<float>(
      std::max(std::abs(scale) * kLog2EDouble * quantized_step * quantized_step, kSmallestScale));
  p.negate = scale < 0 ? 1 : 0;

  const Options& o = kernel_problem.options;
  p.bottom_right = o.causal == Causal::top_left ? 0 : 1;
  p.window_left = window_limit(o.window_left);
  p.window_right = o.causal == Causal::none ? window_limit(o.window_right) : 0;
}

// A bias or mask. Kernels read two neighbouring columns at once where every pair is aligned.
inline ScoreTensorParams score_tensor_params(const ConstTensor& t) {
  ScoreTensorParams p;
  if (t.data == nullptr) return p;
  p.data = t.data;
  if (t.dtype != DType::boolean) p.element = element_of(t.dtype);
  const auto step = [&t](std::size_t i) { return t.shape[i] == 1 ? 0 : t.stride[i]; };
  p.batch = step(0);
  p.head = step(1);
  p.row = step(2);
  p.column = step(3);
  const bool even = (p.batch | p.head | p.row) % 2 == 0 &&
                    reinterpret_cast<std::uintptr_t>(t.data) % (2 * size_bytes(t.dtype)) == 0;
  p.pairs = p.column == 1 && even ? 1 : 0;
  return p;
}

// The polynomial of a softcap. tanh(x) = x - x^3/3 + 2 x^5/15 - 17 x^7/315, of which the terms
// above x^3 are replaced by their Chebyshev approximation up to the limit, where the error of the
// exponent in log2 units is 2^-11: less than the rounding of P.
inline SoftcapPolynomial softcap_polynomial(double softcap, double scale) {
  constexpr double kLargest = 0.35, kError = 0x1p-11, kSeventh = -17.0 / 315;
  constexpr double kLeast = std::numeric_limits<float>::min();
  SoftcapPolynomial p;
  const double x = scale / softcap;           // of a raw score of 1
  if (softcap == 0 || !(x <= 1e6)) return p;  // powers of it might overflow: only the exact way
  double most = std::min(std::pow(kError * 120 / (softcap * kLog2EDouble), 0.2), kLargest);
  // Without the cubic term, where that would not be a normal float: it is less than 2^-25 here.
  const double slope = scale * kLog2EDouble;
  const bool linear = slope * x * x / 3 < kLeast;
  if (linear) most = std::min(most, 0x1p-12);
  const double square = linear ? 0 : most * most;
  const double fifth = 2.0 / 15 + kSeventh * square * 7 / 4;
  const double third = -1.0 / 3 - kSeventh * square * square * 7 / 8 + fifth * square * 5 / 4;
  const double first =
      1 + kSeventh * square * square * square * 7 / 64 - fifth * square * square * 5 / 16;
  p.c[0] = static_cast<float>(first * slope);
  p.c[1] = linear ? 0.0f : static_cast<float>(third * slope * x * x);
  p.limit = std::isfinite(p.c[1]) ? static_cast<float>(std::min(most / x, 1e18)) : 0.0f;
  return p;
}

// What kernels with modifiers of the scores or padding take in addition.
// `scale_log2` is the one of the kernel's other parameters.
inline ModifierParams modifier_params(const Problem& kernel_problem, const Arguments& a,
                                      double scale_log2) {
  ModifierParams p;
  if (kernel_problem.options.softcap != 0) {
    // Beyond this range neither the limit nor its inverse changes a result, but they would
    // overflow.
    const double softcap_log2 =
        std::clamp(static_cast<double>(kernel_problem.options.softcap) * kLog2EDouble, 1e-30, 1e30);
    p.scores.softcap_log2 = static_cast<float>(softcap_log2);
    p.scores.inverse_softcap_log2 = static_cast<float>(1 / softcap_log2);
  }
  p.scores.softcap_series =
      softcap_polynomial(p.scores.softcap_log2 / kLog2EDouble, scale_log2 / kLog2EDouble);
  p.scores.bias = score_tensor_params(a.bias);
  p.scores.mask = score_tensor_params(a.mask);
  p.scores.alibi_slopes = a.alibi_slopes;
  p.scores.alibi_batch_stride = a.alibi_batch_stride;
  p.scores.sinks = a.sinks;
  p.padding = {a.seqlens_q, a.seqlens_kv, a.leftpad_q, a.leftpad_kv};
  return p;
}

inline BlockMaskParams block_mask_params(const Problem& kernel_problem, const Arguments& a) {
  const BlockMask& m = a.block_mask;
  if (m.block_size == 0) return {};
  BlockMaskParams p;
  p.partial = {m.kv_num_blocks, m.kv_indices, static_cast<i32>(m.kv_capacity)};
  p.full = {m.full_kv_num_blocks, m.full_kv_indices, static_cast<i32>(m.full_kv_capacity)};
  p.bit_indices = m.bit_indices;
  p.bits = m.bits;
  p.bit_blocks = static_cast<i32>(m.bit_blocks);
  p.kv_blocks = static_cast<i32>(div_up(kernel_problem.seqlen_kv, m.block_size));
  p.head = m.heads == 1 ? 0 : m.q_blocks;
  p.batch = m.batch == 1 ? 0 : m.heads * m.q_blocks;
  return p;
}

// The scales of an 8-bit output and out_amax.
inline OutputParams output_params(const Problem& kernel_problem, const Arguments& a) {
  OutputParams p;
  const ScaleParams scales = scale_params(a, a.out, a.out_scales, kernel_problem.seqlen_q);
  p.scales = scales.data;
  p.scale_batch = scales.batch;
  p.scale_head = scales.head;
  p.amax = a.out_amax;
  if (kernel_problem.out_scales == Granularity::head) {
    p.amax_batch = kernel_problem.heads_q;
    p.amax_head = 1;
  }
  return p;
}

// Clears out_amax in the stream before a kernel that updates it. A graph capture records it too.
inline Status clear_amax(const Driver& driver, float* amax, std::int64_t floats, Stream stream) {
  if (floats == 0) return {};
  OCTAVO_GPU_TRY(driver,
                 driver.memset_d32_async(reinterpret_cast<cuda::DevicePointer>(amax), 0,
                                         static_cast<std::size_t>(floats),
                                         static_cast<cuda::StreamHandle>(stream)),
                 "cuMemsetD32Async");
  return {};
}

}  // namespace octavo
