// SPDX-License-Identifier: Apache-2.0
// The sm80 backward pass on the host: which problems it serves, the choice of its configurations,
// parameters, loading and launches.
//
// Launches on one stream: row_stats writes delta and lse_log2 into the workspace, then the
// sm80_backward kernel computes dK and dV, then dQ. The gradients of sinks and of a bias, if they
// are wanted, take a launch each.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/error.h"
#include "config/row_stats.h"
#include "config/sm80_backward.h"
#include "device/backward/params.cuh"
#include "device/backward/row_stats.cuh"
#include "device/backward/sink_gradients.cuh"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "gpu/forward/forward_params.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Checks whether a chip can run a configuration. `arch` and `smem_bytes` are the chip's; a
// configuration for an older chip runs on a newer one.
Status feasible(const Sm80BackwardConfig& config, int arch, int smem_bytes);

// Checks that the kernels compute the gradients of the problem, with any alignment.
Status sm80_backward_serves(const Problem& problem);

// Checks that a GPU can compute the gradient of the bias, if it is wanted: its last two dimensions
// must not broadcast.
Status check_bias_gradient(const BackwardArguments& arguments);

// The launches of a backward pass.
struct ChosenSm80Backward {
  RowStatsConfig row_stats;  // and of the gradients of sinks
  Sm80BackwardConfig dkv, dq;
  std::optional<Sm80BackwardConfig> dbias{};
  std::string reason;
};
// `load_bytes`: the row alignment of the tensors, in bytes.
ChosenSm80Backward choose_sm80_backward(const Problem& problem, const GpuInfo& gpu, int load_bytes);

// Both configurations as text, for explanations.
std::string describe_sm80_backward(const ChosenSm80Backward& chosen);

// A loaded kernel of the backward pass, and the shared memory that it may be launched with.
struct BackwardKernel {
  cuda::Function function = nullptr;
  int smem_bytes = 0;
};

// When a kernel of the backward pass may start: after the previous kernels have ended, or as soon
// as the previous kernel allows it. In the second case it waits for the previous kernel itself
// (griddepcontrol.wait).
enum class Start { after_earlier_kernels, early };

// Enqueues a kernel of the backward pass, in clusters of `cluster` CTAs. Does nothing if the grid
// has no CTAs.
template <class Params>
Status launch_backward(const Gpu& gpu, const BackwardKernel& kernel, std::int64_t ctas, int threads,
                       const Params& params, Stream stream,
                       Start start = Start::after_earlier_kernels, int cluster = 1) {
  if (ctas == 0) return {};
  constexpr std::int64_t kMostCtas = std::numeric_limits<std::int32_t>::max();
  if (ctas > kMostCtas)
    return unsupported("the grid", fmt::format("{} CTAs", ctas),
                       fmt::format("up to {}", kMostCtas));
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<unsigned>(ctas);
  config.block[0] = static_cast<unsigned>(threads);
  config.smem_bytes = static_cast<unsigned>(kernel.smem_bytes);
  config.stream = static_cast<cuda::StreamHandle>(stream);
  std::array<cuda::LaunchAttribute, 2> attributes;
  config.attributes = attributes.data();
  config.attribute_count = 0;
  if (start == Start::early) {
    cuda::LaunchAttribute& early = attributes[config.attribute_count++];
    early.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
    early.value.programmatic_stream_serialization = 1;
  }
  if (cluster > 1) {
    cuda::LaunchAttribute& in_clusters = attributes[config.attribute_count++];
    in_clusters.id = cuda::LaunchAttributeId::cluster_dimension;
    in_clusters.value.cluster_dim[0] = static_cast<unsigned>(cluster);
    in_clusters.value.cluster_dim[1] = in_clusters.value.cluster_dim[2] = 1;
  }
  void* arguments[] = {const_cast<Params*>(&params)};  // the driver only reads it
  OCTAVO_GPU_TRY(*gpu.driver,
                 gpu.driver->launch_kernel(&config, kernel.function, arguments, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

// The largest power of two, up to 16, that divides the address of every row of every tensor.
int row_alignment(const BackwardArguments& arguments);

// The bytes of the row statistics: two floats for each padded query row of each head.
std::size_t row_stats_bytes(const Problem& run_problem);

// `workspace` holds row_stats_bytes() bytes at a multiple of 16. These parameters serve every
// backward kernel that reads row statistics.
PaddedRowStatsParams row_stats_params(const Problem& run_problem,
                                      const BackwardArguments& arguments, void* workspace);
// The parameters of the kernel that computes the gradients of sinks from the row statistics, with
// one CTA for each query head.
SinkGradientParams sink_gradient_params(const Problem& run_problem,
                                        const BackwardArguments& arguments, void* workspace);
// The number of CTAs of row_stats; 0 if there are no queries.
std::int64_t row_stats_ctas(const Problem& run_problem);

// Sets the parameters that the backward kernels of both families share.
template <class Params>
void set_backward_params(Params& p, const Problem& run_problem, const BackwardArguments& a,
                         void* workspace) {
  const RowStatsParams stats = row_stats_params(run_problem, a, workspace);
  p.lse_log2 = stats.lse_log2;
  p.delta = stats.delta;
  p.stats_rows = stats.rows;
  p.dq = a.dq.data;
  p.dk = a.dk.data;
  p.dv = a.dv.data;
  p.dq_strides = strides_of(a.dq);
  p.dk_strides = strides_of(a.dk);
  p.dv_strides = strides_of(a.dv);
  p.cu_seqlens_q = a.cu_seqlens_q;
  p.cu_seqlens_kv = a.cu_seqlens_kv;
  p.tokens_q = static_cast<i32>(a.q.shape[2]);
  p.tokens_kv = static_cast<i32>(a.k.shape[2]);
  p.heads_kv = static_cast<i32>(run_problem.heads_kv);
  p.heads_per_kv = static_cast<i32>(run_problem.heads_q / run_problem.heads_kv);
  p.seqlen_q = static_cast<i32>(run_problem.seqlen_q);
  p.seqlen_kv = static_cast<i32>(run_problem.seqlen_kv);
  p.head_dim = static_cast<i32>(run_problem.head_dim);

  const double scale =
      a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(run_problem.head_dim));
  p.scale = static_cast<float>(scale);
  p.scale_log2 = static_cast<float>(scale * kLog2EDouble);

  const Options& o = run_problem.options;
  p.bottom_right = o.causal == Causal::top_left ? 0 : 1;
  p.window_left = window_limit(o.window_left);
  p.window_right = o.causal == Causal::none ? window_limit(o.window_right) : 0;
}

// The modifiers that a backward kernel must apply. Sinks need none: the LSE includes them.
inline ModifierConfig backward_modifiers_of(const Problem& problem) {
  ModifierConfig m = modifiers_of(problem);
  m.sinks = false;
  return m;
}

// The modifier parameters. If the problem has no softcap, they hold one that changes no score, for
// kernels that always apply one.
ModifierParams backward_modifier_params(const Problem& run_problem,
                                        const BackwardArguments& arguments, float scale_log2,
                                        bool can_cap);

// The parameters of a backward kernel. Each kernel reads only the base struct that its
// configuration needs: BackwardParams without modifiers.
BlockMaskedBackwardParams sm80_backward_params(const Problem& run_problem,
                                               const BackwardArguments& arguments,
                                               const Sm80BackwardConfig& config, void* workspace);

// The number of CTAs of one pass; 0 if there is nothing to write.
std::int64_t sm80_backward_tiles(const Problem& run_problem, const BackwardArguments& arguments,
                                 const Sm80BackwardConfig& config);

// Enqueues the kernel of sink_gradients.cuh, if the gradients of sinks are wanted.
Status launch_sink_gradients(const Gpu& gpu, const BackwardKernel& kernel,
                             const Problem& run_problem, const BackwardArguments& arguments,
                             void* workspace, Stream stream);

// Loaded kernels that both families use.
struct LoadedBackward {
  BackwardKernel row_stats;
  BackwardKernel dsinks;  // null without sinks
  std::string note{};     // a problem with the kernel cache
};
// Loads one kernel of a backward pass, which may spill.
Status load_backward_kernel(const Gpu& gpu, const KernelSource& source, int smem_bytes,
                            BackwardKernel& kernel, LoadedBackward& loaded);
// Loads the kernels that both families use. `problem` says whether gradients of sinks are computed.
Status load_row_kernels(const Gpu& gpu, const Problem& problem, const RowStatsConfig& config,
                        bool ptx, LoadedBackward& loaded);
Status launch_row_stats(const Gpu& gpu, const BackwardKernel& kernel, const Problem& run_problem,
                        const PaddedRowStatsParams& params, Stream stream);

struct LoadedSm80Backward {
  ChosenSm80Backward config;
  LoadedBackward shared;
  BackwardKernel dkv;
  BackwardKernel dq;
  BackwardKernel dbias;  // null without a bias
};
Result<LoadedSm80Backward> load_sm80_backward(const Gpu& gpu, const Problem& problem,
                                              const ChosenSm80Backward& chosen);

// `run_problem` must be validated and supported by the kernels.
Status launch_sm80_backward(const Gpu& gpu, const LoadedSm80Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream);

}  // namespace octavo
