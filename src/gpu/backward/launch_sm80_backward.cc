#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "base/error.h"
#include "gpu/backward/sm80_backward.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

std::int64_t padded_rows(const Problem& run_problem) {
  return round_up<std::int64_t>(run_problem.seqlen_q, row_stats::kPaddedRows);
}
// Entries of one of the two arrays.
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

RowStatsParams row_stats_params(const Problem& run_problem, const BackwardArguments& a,
                                void* workspace) {
  RowStatsParams p;
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
  return p;
}

std::int64_t sm80_backward_tiles(const Problem& run_problem, const Sm80BackwardConfig& config) {
  const bool keys = sm80::owns_keys(config);
  const std::int64_t rows = keys ? run_problem.seqlen_kv : run_problem.seqlen_q;
  return div_up<std::int64_t>(rows, sm80::own_rows(config)) *
         (keys ? run_problem.heads_kv : run_problem.heads_q) * run_problem.batch;
}

BackwardParams sm80_backward_params(const Problem& run_problem, const BackwardArguments& a,
                                    const Sm80BackwardConfig& config, void* workspace) {
  BackwardParams p;
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
  return p;
}

Result<LoadedSm80Backward> load_sm80_backward(const Gpu& gpu, const ChosenSm80Backward& chosen) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  // The kernels of the table do not spill, which a test asserts. With narrow loads some do: they
  // are slower, but better than an error.
  constexpr CubinPolicy kPolicy{.allow_spills = true};
  const bool ptx = code_for(gpu.info.arch).ptx;
  LoadedSm80Backward loaded;
  loaded.config = chosen;
  const auto load = [&](const auto& config, int smem_bytes, cuda::Function& function) -> Status {
    const KernelSource source = kernel_source(config, ptx);
    const Result<cuda::Function> found = load_function(gpu, source, smem_bytes, kPolicy);
    if (!found.ok()) return found.status();
    function = *found;
    if (loaded.note.empty()) loaded.note = cache_note(gpu, source, kPolicy);
    return {};
  };
  Status status = load(chosen.row_stats, 0, loaded.row_stats);
  if (status.ok()) status = load(chosen.dkv, sm80::smem_bytes(chosen.dkv), loaded.dkv);
  if (status.ok()) status = load(chosen.dq, sm80::smem_bytes(chosen.dq), loaded.dq);
  if (!status.ok()) return status;
  return loaded;
}

Status launch_sm80_backward(const Gpu& gpu, const LoadedSm80Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  OCTAVO_RETURN_IF_ERROR(
      launch_backward(gpu, kernels.row_stats, row_stats_ctas(run_problem), row_stats::kThreads, 0,
                      row_stats_params(run_problem, arguments, workspace), stream));
  const auto launch_pass = [&](cuda::Function function, const Sm80BackwardConfig& config) {
    return launch_backward(gpu, function, sm80_backward_tiles(run_problem, config),
                           sm80::threads(config), sm80::smem_bytes(config),
                           sm80_backward_params(run_problem, arguments, config, workspace), stream);
  };
  OCTAVO_RETURN_IF_ERROR(launch_pass(kernels.dkv, kernels.config.dkv));
  return launch_pass(kernels.dq, kernels.config.dq);
}

}  // namespace octavo
