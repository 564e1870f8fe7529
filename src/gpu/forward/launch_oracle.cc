// SPDX-License-Identifier: Apache-2.0
#include "gpu/forward/launch_oracle.h"

#include <algorithm>
#include <cmath>

#include "attention/operand_scales.h"
#include "base/error.h"
#include "gpu/forward/forward_params.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

constexpr std::int64_t kWarpsOfCta = oracle::kThreads / 32;

oracle::Operand operand(const Arguments& a, const ConstTensor& t, const Scales& scales,
                        std::int64_t max_len) {
  oracle::Operand x;
  x.data = t.data;
  x.element = element_of(t.dtype);
  x.batch = t.stride[0];
  x.head = t.stride[1];
  x.row = t.stride[2];
  if (!is_8bit(t.dtype)) return x;
  const OperandScales found = operand_scales(a, t, scales, max_len);
  x.scales = scales.data;
  if (scales.granularity == Granularity::tensor) return x;
  x.scale_by_token = found.by_token ? 1 : 0;
  x.scale_batch = found.by_token ? 0 : found.index.stride[0];
  x.scale_head = found.index.stride[1];
  const std::int64_t inner = found.index.stride[2];
  if (scales.granularity == Granularity::channel) x.scale_column = inner;
  if (scales.granularity == Granularity::row || scales.granularity == Granularity::block)
    x.scale_row = inner;
  if (scales.granularity == Granularity::block) x.block_rows = scales.block_rows;
  return x;
}

oracle::ScoreTensor score_tensor(const ConstTensor& t) {
  oracle::ScoreTensor x;
  if (t.data == nullptr) return x;
  const ScoreTensorParams p = score_tensor_params(t);
  x.data = p.data;
  x.element = p.element;
  x.batch = p.batch;
  x.head = p.head;
  x.row = p.row;
  x.column = p.column;
  return x;
}

oracle::BlockMask block_mask(const BlockMask& m) {
  oracle::BlockMask x;
  if (m.block_size == 0) return x;
  x.size = m.block_size;
  x.partial = {m.kv_num_blocks, m.kv_indices, m.kv_capacity};
  x.full = {m.full_kv_num_blocks, m.full_kv_indices, m.full_kv_capacity};
  x.bit_indices = m.bit_indices;
  x.bits = m.bits;
  x.head = m.heads == 1 ? 0 : m.q_blocks;
  x.batch = m.batch == 1 ? 0 : m.heads * m.q_blocks;
  return x;
}

}  // namespace

std::int64_t oracle_warps(std::int64_t rows, std::int64_t seqlen_kv) {
  constexpr std::int64_t kMostWarps = 8192;
  constexpr std::int64_t kMostScores = std::int64_t{32} << 20;
  const std::int64_t fitting = kMostScores / std::max<std::int64_t>(seqlen_kv, 1);
  const std::int64_t warps = std::min({rows, kMostWarps, fitting});
  return std::max<std::int64_t>(div_up(warps, kWarpsOfCta), 1) * kWarpsOfCta;
}

oracle::Params oracle_params(const Problem& run_problem, const Arguments& a,
                             std::optional<DType> rounding, const std::int32_t* rows,
                             std::int64_t row_count, const OracleOutputs& outputs) {
  oracle::Params p;
  p.q = operand(a, a.q, a.q_scales, run_problem.seqlen_q);
  p.k = operand(a, a.k, a.k_scales, run_problem.seqlen_kv);
  p.v = operand(a, a.v, a.v_scales, run_problem.seqlen_kv);
  p.cu_seqlens_q = a.cu_seqlens_q;
  p.cu_seqlens_kv = a.cu_seqlens_kv;
  p.padding_q = {a.seqlens_q, a.leftpad_q};
  p.padding_kv = {a.seqlens_kv, a.leftpad_kv};
  p.tokens_q = a.q.shape[2];
  p.tokens_kv = a.k.shape[2];
  p.sequences = run_problem.batch;
  p.heads_q = run_problem.heads_q;
  p.heads_per_kv = run_problem.heads_q / run_problem.heads_kv;
  p.seqlen_q = run_problem.seqlen_q;
  p.seqlen_kv = run_problem.seqlen_kv;
  p.head_dim = run_problem.head_dim;
  p.head_dim_v = run_problem.head_dim_v;
  p.scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(run_problem.head_dim));
  const Options& mask = run_problem.options;
  p.causal = mask.causal == Causal::none ? 0 : 1;
  p.bottom_right = mask.causal == Causal::top_left ? 0 : 1;
  p.window_left = mask.window_left;
  p.window_right = mask.window_right;
  p.softcap = mask.softcap;
  p.bias = score_tensor(a.bias);
  p.mask = score_tensor(a.mask);
  p.alibi_slopes = a.alibi_slopes;
  p.alibi_batch_stride = a.alibi_batch_stride;
  p.sinks = a.sinks;
  p.block_mask = block_mask(a.block_mask);
  p.rounding = element_of(rounding.value_or(DType::f32));
  p.rows = rows;
  p.row_count = row_count;
  p.out = outputs.out;
  p.lse = outputs.lse;
  p.scores = outputs.scores;
  p.warps = outputs.warps;
  return p;
}

KernelSource oracle_source(int arch) {
  const CodeFor code = code_for(arch);
  return {.include = "device/oracle/oracle.cuh",
          .name_expression = "oracle::oracle_forward",
          .arch = code.arch,
          .ptx = code.ptx};
}

Status launch_oracle(const Gpu& gpu, const oracle::Params& params) {
  const Result<cuda::Function> function = load_function(gpu, oracle_source(gpu.info.arch), 0);
  if (!function.ok()) return function.status();
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(params.warps / kWarpsOfCta);
  launch.block[0] = oracle::kThreads;
  oracle::Params copy = params;
  void* arguments[] = {&copy};
  OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->launch_kernel(&launch, *function, arguments, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

}  // namespace octavo
