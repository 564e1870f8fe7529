// SPDX-License-Identifier: Apache-2.0
#include "gpu/backward/sm90_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "device/backward/row_stats.cuh"
#include "device/sm90/backward/finish_dq.cuh"
#include "gpu/driver/tensor_map.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

namespace bwd = sm90::backward;

std::int64_t head_tiles(const Problem& p, std::int64_t tokens_q, int block_m) {
  if (p.varlen) return tokens_q / block_m + p.batch;
  return div_up<std::int64_t>(p.seqlen_q, block_m) * p.batch;
}

// A head with more tiles adds dQ in the order of the keys instead of cyclically. Half of those that
// the SMs hold, as CTAs of other kernels may occupy some of them for a while.
i32 max_cyclic_tiles(int sms, int ctas_of_tile) { return sms / ctas_of_tile / 2; }

// Whether even tiles of half as many keys would not be more than the SMs, nor those of a head too
// many for the cyclic order. The answer depends on batch and heads, so it is no with
// batch_invariant.
bool has_few_keys(const Problem& p, int block_n, int sms) {
  const std::int64_t of_head = div_up<std::int64_t>(p.seqlen_kv, block_n);
  return !p.options.batch_invariant && 2 * of_head * p.heads_kv * p.batch <= sms &&
         2 * of_head <= max_cyclic_tiles(sms, 1);
}

// With two partial sums of dQ a tile waits only for half of the others, but the workspace is larger
// and sm90_finish_dq has more to read. This pays where blocks take little time, and where a head
// has too many tiles for one circle but not for two. The second reason depends on the longest
// sequence of the batch, so it is ignored with batch_invariant.
int dq_sums(const Problem& p, const Sm90BackwardConfig& c, int sms) {
  if (c.head_dim > 128) return 1;
  if (c.head_dim == 64 || c.block_n == sm90::kRows) return 2;
  if (p.options.batch_invariant) return 1;
  const bool has_mask =
      p.options.causal != Causal::none || p.options.window_left >= 0 || p.options.window_right >= 0;
  const std::int64_t tiles = div_up<std::int64_t>(p.seqlen_kv, c.block_n);
  const i32 of_circle = max_cyclic_tiles(sms, 1);
  return !has_mask && tiles > of_circle && tiles <= 2 * of_circle ? 2 : 1;
}

Status set_tensor_maps(const Driver& driver, const BackwardArguments& a,
                       const Sm90BackwardConfig& c, Sm90BackwardParams& p) {
  const int columns = bwd::head_panels(c).columns;
  OCTAVO_RETURN_IF_ERROR(encode_again(driver, row_boxes(a.q, c.block_m, columns), p.q));
  OCTAVO_RETURN_IF_ERROR(encode_again(driver, row_boxes(a.k, bwd::cta_keys(c), columns), p.k));
  OCTAVO_RETURN_IF_ERROR(encode_again(driver, row_boxes(a.v, bwd::cta_keys(c), columns), p.v));
  return encode_again(driver, row_boxes(a.dout, c.block_m, columns), p.dout);
}

}  // namespace

bool sm90_backward_serves(const Problem& problem, const GpuInfo& gpu) {
  return gpu.arch == 90 && gpu.tensor_maps && !problem.bias && !problem.mask &&
         problem.block_mask == 0;
}

bool sm90_backward_reaches(const BackwardArguments& a) {
  if (is_empty(a.q) || is_empty(a.k)) return false;
  return tma_can_address(a.q) && tma_can_address(a.k) && tma_can_address(a.v) &&
         tma_can_address(a.dout) && row_alignment(a) >= 16;
}

ChosenSm90Backward choose_sm90_backward(const Problem& problem, int sms) {
  ChosenSm90Backward chosen;
  const Element element = element_of(problem.q);
  chosen.row_stats = {.arch = 90, .element = element, .padded = problem.padded};
  const int head_dim = static_cast<int>(problem.head_dim);
  Sm90BackwardConfig tiles = bwd::tiles_for(head_dim, element);
  if (has_few_keys(problem, tiles.block_n, sms)) tiles = bwd::small_tiles_for(head_dim, element);
  chosen.config = with_modifiers(tiles, backward_modifiers_of(problem));
  chosen.dq_sums = dq_sums(problem, chosen.config, sms);
  chosen.reason = fmt::format("Hopper kernel, {} keys by {} queries, dQ added in a fixed order",
                              chosen.config.block_n, chosen.config.block_m);
  return chosen;
}

Sm90BackwardWorkspace sm90_backward_workspace(const Problem& run_problem, std::int64_t tokens_q,
                                              const ChosenSm90Backward& chosen) {
  constexpr std::size_t kAlignment = 256;
  const Sm90BackwardConfig& c = chosen.config;
  Sm90BackwardWorkspace w;
  w.tiles = head_tiles(run_problem, tokens_q, c.block_m);
  const auto all_tiles = static_cast<std::size_t>(chosen.dq_sums * w.tiles * run_problem.heads_q);
  w.turns = round_up(row_stats_bytes(run_problem), kAlignment);
  w.turn_bytes = all_tiles * static_cast<std::size_t>(bwd::dq_slices(c)) * sizeof(u32);
  w.dq_sum = round_up(w.turns + w.turn_bytes, kAlignment);
  w.total = w.dq_sum + all_tiles * static_cast<std::size_t>(c.block_m * c.head_dim) * sizeof(float);
  return w;
}

ModifiedSm90BackwardParams sm90_backward_params(const Problem& run_problem,
                                                const BackwardArguments& a,
                                                const ChosenSm90Backward& chosen,
                                                const GpuInfo& gpu, void* workspace) {
  ModifiedSm90BackwardParams p{};
  set_backward_params(p, run_problem, a, workspace);
  const Sm90BackwardConfig& c = chosen.config;
  const Sm90BackwardWorkspace parts = sm90_backward_workspace(run_problem, a.q.shape[2], chosen);
  auto* const bytes = static_cast<std::byte*>(workspace);
  p.dq_turn = reinterpret_cast<u32*>(bytes + parts.turns);
  p.dq_sum = reinterpret_cast<float*>(bytes + parts.dq_sum);
  p.dq_tiles = static_cast<i32>(parts.tiles);
  p.dq_sums = chosen.dq_sums;
  p.n_tiles = static_cast<i32>(div_up<std::int64_t>(run_problem.seqlen_kv, c.block_n));
  p.sequences = static_cast<i32>(run_problem.batch);
  // With batch_invariant all heads are in one group, so that the order of a head does not depend
  // on the other heads.
  const i32 all_heads = p.heads_kv * p.sequences;
  p.heads_per_group =
      run_problem.options.batch_invariant
          ? all_heads
          : std::clamp(gpu.sms / (bwd::ctas(c) * std::max(p.n_tiles, 1)), 1, all_heads);
  p.max_cyclic_tiles = max_cyclic_tiles(gpu.sms, bwd::ctas(c));
  if (any(c.modifiers))
    p.modifiers = backward_modifier_params(run_problem, a, p.scale_log2, c.modifiers.softcap);
  return p;
}

Result<LoadedSm90Backward> load_sm90_backward(const Gpu& gpu, const Problem& problem,
                                              const ChosenSm90Backward& chosen) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  LoadedSm90Backward loaded;
  loaded.config = chosen;
  Status status = load_row_kernels(gpu, problem, chosen.row_stats, false, loaded.shared);
  if (status.ok())
    status = load_backward_kernel(gpu, kernel_source(chosen.config), bwd::smem_bytes(chosen.config),
                                  loaded.backward, loaded.shared);
  if (status.ok())
    status = load_backward_kernel(gpu, finish_dq_source(chosen.config),
                                  bwd::finish_smem_bytes(chosen.config), loaded.finish_dq,
                                  loaded.shared);
  if (!status.ok()) return status;
  return loaded;
}

Status launch_sm90_backward(const Gpu& gpu, const LoadedSm90Backward& kernels,
                            const Problem& run_problem, const BackwardArguments& arguments,
                            void* workspace, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const Sm90BackwardConfig& c = kernels.config.config;
  ModifiedSm90BackwardParams p =
      sm90_backward_params(run_problem, arguments, kernels.config, gpu.info, workspace);
  OCTAVO_RETURN_IF_ERROR(set_tensor_maps(*gpu.driver, arguments, c, p));
  PaddedRowStatsParams stats = row_stats_params(run_problem, arguments, workspace);
  stats.counters = p.dq_turn;
  stats.counter_count =
      i64{p.dq_sums} * p.dq_tiles * p.heads_kv * p.heads_per_kv * bwd::dq_slices(c);
  OCTAVO_RETURN_IF_ERROR(
      launch_row_stats(gpu, kernels.shared.row_stats, run_problem, stats, stream));
  const std::int64_t tiles = std::int64_t{p.n_tiles} * p.heads_kv * p.sequences;
  OCTAVO_RETURN_IF_ERROR(launch_backward(gpu, kernels.backward, tiles * bwd::ctas(c),
                                         bwd::threads(c), p, stream, Start::early, bwd::ctas(c)));
  const std::int64_t blocks = div_up<std::int64_t>(run_problem.seqlen_q, c.block_m) *
                              run_problem.heads_q * run_problem.batch;
  OCTAVO_RETURN_IF_ERROR(launch_backward(gpu, kernels.finish_dq, blocks, bwd::kFinishThreads, p,
                                         stream, Start::early));
  return launch_sink_gradients(gpu, kernels.shared.dsinks, run_problem, arguments, workspace,
                               stream);
}

}  // namespace octavo
