// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "attention/backward_arguments.h"
#include "base/error.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

std::int64_t padded_rows(const Problem& run_problem) {
  return round_up<std::int64_t>(run_problem.seqlen_q, row_stats::kPaddedRows);
}
// The number of entries of each of the two arrays of row statistics.
std::int64_t stats_entries(const Problem& run_problem) {
  return run_problem.batch * run_problem.heads_q * padded_rows(run_problem);
}

}  // namespace

int row_alignment(const BackwardArguments& a) {
  std::uint64_t bits = 16;
  for (const ConstTensor& t :
       {a.q, a.k, a.v, a.out, a.dout, ConstTensor(a.dq), ConstTensor(a.dk), ConstTensor(a.dv)}) {
    bits |= reinterpret_cast<std::uintptr_t>(t.data);
    for (int i = 0; i < 3; ++i)
      if (t.shape[i] > 1) bits |= static_cast<std::uint64_t>(t.stride[i]) * size_bytes(t.dtype);
  }
  return static_cast<int>(bits & (~bits + 1));
}

std::size_t row_stats_bytes(const Problem& run_problem) {
  return static_cast<std::size_t>(stats_entries(run_problem)) * 2 * sizeof(float);
}

std::int64_t row_stats_ctas(const Problem& run_problem) {
  return stats_entries(run_problem) / row_stats::kRowsPerCta;
}

PaddedRowStatsParams row_stats_params(const Problem& run_problem, const BackwardArguments& a,
                                      void* workspace) {
  PaddedRowStatsParams p;
  p.o = a.out.data;
  p.dout = a.dout.data;
  p.lse = static_cast<const float*>(a.lse.data);
  p.o_strides = strides_of(a.out);
  p.dout_strides = strides_of(a.dout);
  p.lse_strides = strides_of(a.lse);
  p.lse_log2 = static_cast<float*>(workspace);
  p.delta = p.lse_log2 + stats_entries(run_problem);
  p.rows = static_cast<i32>(padded_rows(run_problem));
  p.cu_seqlens_q = a.cu_seqlens_q;
  p.tokens_q = static_cast<i32>(a.q.shape[2]);
  p.heads_q = static_cast<i32>(run_problem.heads_q);
  p.seqlen_q = static_cast<i32>(run_problem.seqlen_q);
  p.head_dim = static_cast<i32>(run_problem.head_dim);
  p.padding = {a.seqlens_q, a.seqlens_kv, a.leftpad_q, a.leftpad_kv};
  return p;
}

SinkGradientParams sink_gradient_params(const Problem& run_problem, const BackwardArguments& a,
                                        void* workspace) {
  const RowStatsParams stats = row_stats_params(run_problem, a, workspace);
  SinkGradientParams p;
  p.lse_log2 = stats.lse_log2;
  p.delta = stats.delta;
  p.rows = stats.rows;
  p.heads_q = stats.heads_q;
  p.sequences = static_cast<i32>(run_problem.batch);
  p.sinks = a.sinks;
  p.dsinks = a.dsinks;
  return p;
}

ModifierParams backward_modifier_params(const Problem& run_problem, const BackwardArguments& a,
                                        float scale_log2, bool can_cap) {
  Problem problem = run_problem;
  if (can_cap && problem.options.softcap == 0)
    problem.options.softcap = std::numeric_limits<float>::max();
  return modifier_params(problem, forward_arguments(a), scale_log2);
}

Status launch_sink_gradients(const Gpu& gpu, const BackwardKernel& kernel,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace, Stream stream) {
  if (arguments.dsinks == nullptr) return {};
  return launch_backward(gpu, kernel, run_problem.heads_q, row_stats::kThreads,
                         sink_gradient_params(run_problem, arguments, workspace), stream);
}

std::int64_t sm80_backward_tiles(const Problem& run_problem, const BackwardArguments& a,
                                 const Sm80BackwardConfig& config) {
  if (config.pass == BackwardPass::dbias)
    return a.dbias.shape[0] * a.dbias.shape[1] *
           div_up<std::int64_t>(run_problem.seqlen_q, config.block_m) *
           div_up<std::int64_t>(run_problem.seqlen_kv, config.block_n);
  const bool keys = sm80::owns_keys(config);
  const std::int64_t rows = keys ? run_problem.seqlen_kv : run_problem.seqlen_q;
  return div_up<std::int64_t>(rows, sm80::own_rows(config)) *
         (keys ? run_problem.heads_kv : run_problem.heads_q) * run_problem.batch;
}

BlockMaskedBackwardParams sm80_backward_params(const Problem& run_problem,
                                               const BackwardArguments& a,
                                               const Sm80BackwardConfig& config, void* workspace) {
  BlockMaskedBackwardParams p;
  set_backward_params(p, run_problem, a, workspace);
  p.q = a.q.data;
  p.k = a.k.data;
  p.v = a.v.data;
  p.dout = a.dout.data;
  p.q_strides = strides_of(a.q);
  p.k_strides = strides_of(a.k);
  p.v_strides = strides_of(a.v);
  p.dout_strides = strides_of(a.dout);
  p.heads_q = static_cast<i32>(run_problem.heads_q);
  const std::int64_t rows = sm80::owns_keys(config) ? run_problem.seqlen_kv : run_problem.seqlen_q;
  p.own_tiles = static_cast<i32>(div_up<std::int64_t>(rows, sm80::own_rows(config)));
  p.modifiers = backward_modifier_params(run_problem, a, p.scale_log2, config.modifiers.softcap);
  p.block_mask = block_mask_params(run_problem, forward_arguments(a));
  if (config.pass != BackwardPass::dbias) return p;
  p.dbias = a.dbias.data;
  p.dbias_element = element_of(a.dbias.dtype);
  p.dbias_strides = strides_of(a.dbias);
  p.sequences = static_cast<i32>(run_problem.batch);
  p.bias_batch = static_cast<i32>(a.dbias.shape[0]);
  p.bias_heads = static_cast<i32>(a.dbias.shape[1]);
  p.m_blocks = static_cast<i32>(div_up<std::int64_t>(run_problem.seqlen_q, config.block_m));
  p.n_blocks = static_cast<i32>(div_up<std::int64_t>(run_problem.seqlen_kv, config.block_n));
  return p;
}

Status load_backward_kernel(const Gpu& gpu, const KernelSource& source, int smem_bytes,
                            BackwardKernel& kernel, LoadedBackward& loaded) {
  // Without a block mask the kernels of the tables do not spill, which a test asserts. Some others
  // and some with narrow loads do; a slow kernel is better than an error.
  constexpr CubinPolicy kPolicy{.allow_spills = true};
  const Result<cuda::Function> found = load_function(gpu, source, smem_bytes, kPolicy);
  if (!found.ok()) return found.status();
  kernel = {*found, smem_bytes};
  if (loaded.note.empty()) loaded.note = cache_note(gpu, source, kPolicy);
  return {};
}

Status load_row_kernels(const Gpu& gpu, const Problem& problem, const RowStatsConfig& config,
                        bool ptx, LoadedBackward& loaded) {
  OCTAVO_RETURN_IF_ERROR(
      load_backward_kernel(gpu, kernel_source(config, ptx), 0, loaded.row_stats, loaded));
  if (!problem.sinks) return {};
  return load_backward_kernel(gpu, sink_gradients_source(config, ptx), row_stats::kSinkSmemBytes,
                              loaded.dsinks, loaded);
}

Status launch_row_stats(const Gpu& gpu, const BackwardKernel& kernel, const Problem& run_problem,
                        const PaddedRowStatsParams& params, Stream stream) {
  return launch_backward(gpu, kernel, row_stats_ctas(run_problem), row_stats::kThreads, params,
                         stream);
}

Result<LoadedSm80Backward> load_sm80_backward(const Gpu& gpu, const Problem& problem,
                                              const ChosenSm80Backward& chosen) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  const bool ptx = code_for(gpu.info.arch).ptx;
  LoadedSm80Backward loaded;
  loaded.config = chosen;
  const auto load_pass = [&](const Sm80BackwardConfig& config, BackwardKernel& kernel) {
    return load_backward_kernel(gpu, kernel_source(config, ptx), sm80::smem_bytes(config), kernel,
                                loaded.shared);
  };
  Status status = load_row_kernels(gpu, problem, chosen.row_stats, ptx, loaded.shared);
  if (status.ok()) status = load_pass(chosen.dkv, loaded.dkv);
  if (status.ok()) status = load_pass(chosen.dq, loaded.dq);
  if (status.ok() && chosen.dbias) status = load_pass(*chosen.dbias, loaded.dbias);
  if (!status.ok()) return status;
  return loaded;
}

Status launch_sm80_backward(const Gpu& gpu, const LoadedSm80Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  OCTAVO_RETURN_IF_ERROR(launch_row_stats(gpu, kernels.shared.row_stats, run_problem,
                                          row_stats_params(run_problem, arguments, workspace),
                                          stream));
  const auto launch_pass = [&](const BackwardKernel& kernel, const Sm80BackwardConfig& config) {
    return launch_backward(gpu, kernel, sm80_backward_tiles(run_problem, arguments, config),
                           sm80::threads(config),
                           sm80_backward_params(run_problem, arguments, config, workspace), stream);
  };
  OCTAVO_RETURN_IF_ERROR(launch_pass(kernels.dkv, kernels.config.dkv));
  OCTAVO_RETURN_IF_ERROR(launch_pass(kernels.dq, kernels.config.dq));
  if (arguments.dbias.data != nullptr)
    OCTAVO_RETURN_IF_ERROR(launch_pass(kernels.dbias, *kernels.config.dbias));
  return launch_sink_gradients(gpu, kernels.shared.dsinks, run_problem, arguments, workspace,
                               stream);
}

}  // namespace octavo
