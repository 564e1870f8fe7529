// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "attention/pages.h"
#include "base/error.h"
#include "device/decode/combine.cuh"
#include "gpu/decode/decode.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/tile_order.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

cuda::LaunchAttribute cluster_of(unsigned ctas) {
  cuda::LaunchAttribute cluster;
  cluster.id = cuda::LaunchAttributeId::cluster_dimension;
  cluster.value.cluster_dim[0] = ctas;
  cluster.value.cluster_dim[1] = cluster.value.cluster_dim[2] = 1;
  return cluster;
}

std::int64_t row_tiles(const Problem& p, const DecodeConfig& c) {
  return div_up<std::int64_t>(p.seqlen_q * (p.heads_q / p.heads_kv), c.block_m);
}

std::int64_t work_tiles(const Problem& p, const DecodeConfig& c) {
  return p.batch * p.heads_kv * row_tiles(p, c);
}

// The number of KV tiles of a work tile at the longest lengths.
std::int64_t kv_tiles(const Problem& p, const DecodeConfig& c) {
  return div_up<std::int64_t>(std::max<std::int64_t>(p.seqlen_kv, 1), decode::tile_keys(c));
}

// Each work tile has one cluster. Its size is the largest at which all clusters run at once, and at
// least 2.
int log2_cluster(const LoadedDecode& kernel, const Problem& p) {
  if (!kernel.config.clusters) return 0;
  const std::int64_t tiles = work_tiles(p, kernel.config);
  int log2 = 1;
  for (int i = 2; i < static_cast<int>(std::size(kernel.clusters)); ++i)
    if (tiles <= kernel.clusters[i] && tiles << i <= sms_of_grid(kernel.sms, p.options)) log2 = i;
  return log2;
}

// The number of CTAs. If they divide the KV tiles of all work tiles, it is at most the number of KV
// tiles at the longest lengths.
std::int64_t ctas_of(const LoadedDecode& kernel, const Problem& p) {
  if (kernel.config.clusters) return work_tiles(p, kernel.config) << log2_cluster(kernel, p);
  const std::int64_t resident = kernel.ctas_per_sm * sms_of_grid(kernel.sms, p.options);
  return std::min(resident, work_tiles(p, kernel.config) * kv_tiles(p, kernel.config));
}

u64 page_bytes(const ConstTensor& t) { return static_cast<u64>(t.stride[0]) * size_bytes(t.dtype); }

int most_parts(const Problem& p, const DecodeConfig& c) {
  return decode::most_parts(static_cast<int>(kv_tiles(p, c)));
}

// The number of CTAs of the combine kernel. Clusters need none. With batch_invariant or few work
// tiles there is one for each row of each work tile; otherwise one for each boundary between CTAs.
std::int64_t combine_ctas(const decode::Params& p, const Problem& run_problem,
                          const DecodeConfig& c) {
  if (c.clusters) return 0;
  if (c.batch_invariant && p.most_parts == 1) return 0;
  return p.combine_by_row ? work_tiles(run_problem, c) * p.combine_rows : p.ctas - 1;
}

// How many clusters of `ctas` CTAs run at once.
Result<int> clusters_at_once(const Gpu& gpu, const LoadedDecode& kernel, unsigned ctas) {
  cuda::LaunchConfig launch;
  launch.grid[0] = ctas;
  launch.block[0] = static_cast<unsigned>(decode::threads(kernel.config));
  launch.smem_bytes = static_cast<unsigned>(decode::smem_bytes(kernel.config));
  cuda::LaunchAttribute cluster = cluster_of(ctas);
  launch.attributes = &cluster;
  launch.attribute_count = 1;
  int clusters = 0;
  OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->cluster_occupancy(&clusters, kernel.function, &launch),
                 "cuOccupancyMaxActiveClusters");
  return clusters;
}

bool by_key(const ConstTensor& tensor, const Scales& scales) {
  return is_8bit(tensor.dtype) &&
         (scales.granularity == Granularity::row || scales.granularity == Granularity::block);
}

}  // namespace

Result<LoadedDecode> load_decode(const Gpu& gpu, const DecodeConfig& config) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  constexpr CubinPolicy kPolicy{.allow_spills = true};
  const bool ptx = code_for(gpu.info.arch).ptx;
  const KernelSource source = kernel_source(config, ptx);
  const Result<cuda::Function> function =
      load_function(gpu, source, decode::smem_bytes(config), kPolicy);
  if (!function.ok()) return function.status();
  LoadedDecode kernel{config, *function};
  if (!config.clusters) {
    const Result<cuda::Function> combine = load_function(
        gpu, combine_source(config, ptx), decode::combine_smem_bytes(config), kPolicy);
    if (!combine.ok()) return combine.status();
    kernel.combine = *combine;
  }
  kernel.note = cache_note(gpu, source, kPolicy);
  int per_sm = 0;
  OCTAVO_GPU_TRY(*gpu.driver,
                 gpu.driver->occupancy(&per_sm, kernel.function, decode::threads(config),
                                       decode::smem_bytes(config)),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  kernel.sms = gpu.info.sms;
  kernel.ctas_per_sm = std::max(per_sm, 1);
  for (unsigned i = 1; config.clusters && i < std::size(kernel.clusters); ++i) {
    const Result<int> clusters = clusters_at_once(gpu, kernel, 1U << i);
    if (!clusters.ok()) return clusters.status();
    kernel.clusters[i] = *clusters;
  }
  return kernel;
}

std::size_t decode_workspace_bytes(const LoadedDecode& kernel, const Problem& p) {
  const DecodeConfig& c = kernel.config;
  if (c.clusters) return 0;
  const std::int64_t partials =
      c.batch_invariant ? work_tiles(p, c) * most_parts(p, c) : 2 * ctas_of(kernel, p);
  return static_cast<std::size_t>(partials * decode::partial_floats(c)) * sizeof(float);
}

decode::Params decode_params(const LoadedDecode& kernel, const Problem& run_problem,
                             const Arguments& a, void* workspace) {
  const DecodeConfig& c = kernel.config;
  decode::Params p;
  set_operands(p, run_problem, a);
  p.k_row_bytes = static_cast<u32>(a.k.stride[2] * static_cast<i64>(size_bytes(a.k.dtype)));
  p.v_row_bytes = static_cast<u32>(a.v.stride[2] * static_cast<i64>(size_bytes(a.v.dtype)));
  p.k_scale_per_key = by_key(a.k, a.k_scales);
  p.v_scale_per_key = by_key(a.v, a.v_scales);
  p.by_k_scale_rows = divider(p.k_scales.block_rows);
  p.by_v_scale_rows = divider(p.v_scales.block_rows);
  set_shared_params(p, run_problem, a, c.block_m);
  p.modifiers = modifier_params(run_problem, a, p.scale_log2);
  if (a.page_table != nullptr && a.k.shape[0] == 0) p.seqlen_kv = 0;  // no page can be read
  if (a.page_table != nullptr)
    p.paging = {.table = a.page_table,
                .stride = a.page_table_stride,
                .entries = page_table_extent(a),
                .page_size = static_cast<i32>(a.k.shape[2]),
                .by_page_size = divider(static_cast<i32>(a.k.shape[2])),
                .last_page = static_cast<i32>(std::max<std::int64_t>(a.k.shape[0], 1) - 1),
                .has_whole_blocks = a.k.shape[2] % c.block_n == 0,
                .k_page_bytes = page_bytes(a.k),
                .v_page_bytes = page_bytes(a.v)};
  p.k_groups = static_cast<const u8*>(a.k_groups.data);
  p.v_groups = static_cast<const u8*>(a.v_groups.data);
  if (a.k.dtype == DType::int4) p.groups = static_cast<i32>(run_problem.head_dim / c.group);
  p.draft_tree = a.draft_tree;
  p.by_heads_per_kv = divider(p.heads_per_kv);
  p.row_tiles = static_cast<i32>(row_tiles(run_problem, c));
  p.heads_kv = static_cast<i32>(run_problem.heads_kv);
  p.batch = static_cast<i32>(run_problem.batch);
  p.partials = static_cast<float*>(workspace);
  p.ctas = static_cast<i32>(ctas_of(kernel, run_problem));
  p.log2_cluster = log2_cluster(kernel, run_problem);
  p.by_ctas = divider(p.ctas);
  p.by_row_tiles = divider(p.row_tiles);
  p.by_work_tiles = divider(p.heads_kv * p.row_tiles);
  p.combine_rows = std::min(static_cast<i32>(c.block_m), p.seqlen_q * p.heads_per_kv);
  // If a work tile is cut into many parts, one warp alone would take too long to add them up. With
  // batch_invariant the number of warps must not depend on the batch, as they divide the parts.
  const std::int64_t parts = p.ctas / work_tiles(run_problem, c);
  p.combine_by_row = c.batch_invariant || parts >= 4;
  p.combine_warps =
      !c.batch_invariant && parts > 64 ? decode::kMostCombineWarps : decode::kCombineWarps;
  p.most_parts = most_parts(run_problem, c);
  return p;
}

Status launch_decode(const Gpu& gpu, const LoadedDecode& kernel, const Problem& run_problem,
                     const Arguments& arguments, Workspace workspace, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const DecodeConfig& c = kernel.config;
  decode::Params params = decode_params(kernel, run_problem, arguments, workspace.data);
  void* arguments_of_kernel[] = {&params};
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(params.ctas);
  launch.block[0] = static_cast<unsigned>(decode::threads(c));
  launch.smem_bytes = static_cast<unsigned>(decode::smem_bytes(c));
  launch.stream = static_cast<cuda::StreamHandle>(stream);
  cuda::LaunchAttribute cluster = cluster_of(1U << params.log2_cluster);
  if (c.clusters) {
    launch.attributes = &cluster;
    launch.attribute_count = 1;
  }
  if (gpu.is_emulated()) gpu.kernels->announce_decode(run_problem, arguments, workspace, false);
  OCTAVO_GPU_TRY(*gpu.driver,
                 gpu.driver->launch_kernel(&launch, kernel.function, arguments_of_kernel, nullptr),
                 "cuLaunchKernelEx");
  launch.grid[0] = static_cast<unsigned>(combine_ctas(params, run_problem, c));
  if (launch.grid[0] == 0) return {};
  launch.block[0] = 32 * static_cast<unsigned>(params.combine_warps);
  launch.smem_bytes = static_cast<unsigned>(decode::combine_smem_bytes(c));
  // On sm_90 the two grids overlap: the second is resident before the first ends.
  cuda::LaunchAttribute overlap;
  overlap.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
  overlap.value.programmatic_stream_serialization = 1;
  if (c.arch >= 90) {
    launch.attributes = &overlap;
    launch.attribute_count = 1;
  }
  if (gpu.is_emulated()) gpu.kernels->announce_decode(run_problem, arguments, workspace, true);
  OCTAVO_GPU_TRY(*gpu.driver,
                 gpu.driver->launch_kernel(&launch, kernel.combine, arguments_of_kernel, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

}  // namespace octavo
