// SPDX-License-Identifier: Apache-2.0
#include "gpu/quantize/launch_quantize.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "gpu/forward/forward_params.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

// At most this many partial maxima per head, so that reducing them stays cheap.
constexpr std::int64_t kMostChunks = 32;
// At most this many partial maxima of K or V in a launch with Q, whose CTAs help to fill the chip.
// With fewer maxima the second launch has less to reduce.
constexpr std::int64_t kSharedChunks = 256;

// The rows of a CTA in the first pass: just enough tiles per head to fill the chip.
std::int64_t amax_tile_rows(const Conversion& x, std::int64_t ctas, std::int64_t at_once) {
  const std::int64_t chunks =
      std::clamp<std::int64_t>(ctas / (x.sequences * x.heads), 1, kMostChunks);
  return round_up(std::max<std::int64_t>(div_up(x.longest, chunks), 1), at_once);
}

std::int64_t code_tile_rows(const Conversion& x, const QuantizeConfig& c) {
  if (c.transposed) return quantizer::kValueKeys;
  if (c.group == ScaleGroup::block)
    return std::min(x.block_rows, std::max<std::int64_t>(x.longest, 1));
  return 4 * quantizer::rows_at_once(c);
}

// Divides the rows of every head into tiles and returns the number of CTAs.
std::int64_t set_tiles(const Conversion& x, std::int64_t tile_rows, QuantizeParams& p) {
  p.tile_rows = static_cast<i32>(tile_rows);
  p.tiles = static_cast<i32>(std::max<std::int64_t>(div_up(x.longest, tile_rows), 1));
  p.by_tiles = divider(p.tiles);
  p.by_heads = divider(p.heads);
  return x.sequences * x.heads * p.tiles;
}

}  // namespace

void set_grid(const Conversion& x, QuantizeLaunch& launch) {
  const QuantizeConfig& c = launch.config;
  QuantizeParams& p = launch.params.q;
  const std::int64_t at_once = quantizer::rows_at_once(c);
  if (c.mean_pass > 0) {
    const std::int64_t rows = c.mean_pass == 1 ? quantizer::kMeanRows * at_once : x.longest;
    launch.blocks = set_tiles(x, std::max<std::int64_t>(rows, 1), p);
    return;
  }
  const bool by_tensor = c.group == ScaleGroup::tensor;
  const std::int64_t tile_rows = !c.amax_pass ? code_tile_rows(x, c)
                                 : by_tensor  ? 4 * at_once
                                              : amax_tile_rows(x, kChunks, at_once);
  launch.blocks = set_tiles(x, tile_rows, p);
  if (!c.amax_pass) return;
  if (by_tensor) launch.blocks = std::min(launch.blocks, kTensorBlocks);
  p.partials = static_cast<i32>(by_tensor ? launch.blocks : p.tiles);
}

void set_grid(const Conversions& x, QuantizeLaunch& launch) {
  const QuantizeConfig& c = launch.config;
  OperandsParams& p = launch.params;
  const bool of_heads = c.group == ScaleGroup::head;
  const std::int64_t rows = quantizer::operand_rows(c);
  launch.cluster = 1;
  if (c.one_pass)
    for (launch.cluster = 2; launch.cluster * quantizer::kValueKeys < x.v.longest;)
      launch.cluster *= 2;
  // An operand whose CTAs share scales: a cluster holds a head, or the first pass writes partial
  // maxima, or the second pass quantizes tiles of `rows_at_once` rows.
  const auto shared = [&](const Conversion& operand, std::int64_t rows_at_once,
                          QuantizeParams& params) {
    std::int64_t tile_rows = rows_at_once;
    if (c.one_pass) tile_rows = quantizer::kValueKeys;
    if (c.amax_pass) tile_rows = amax_tile_rows(operand, kSharedChunks, rows_at_once);
    std::int64_t blocks = set_tiles(operand, tile_rows, params);
    if (c.one_pass) {  // one tile per CTA, some of which may be empty
      params.tiles = launch.cluster;
      params.by_tiles = divider(params.tiles);
      blocks = operand.sequences * operand.heads * launch.cluster;
    }
    if (c.amax_pass) params.partials = params.tiles;
    return blocks;
  };
  const bool only_rest = !c.one_pass && !c.amax_pass;
  const std::int64_t q_blocks = only_rest ? 0 : set_tiles(x.q, rows, p.q);
  const std::int64_t k_blocks = of_heads    ? shared(x.k, rows, p.k)
                                : only_rest ? 0
                                            : set_tiles(x.k, rows, p.k);
  const std::int64_t v_blocks = shared(x.v, quantizer::kValueKeys, p.v);
  p.q_blocks = static_cast<i32>(q_blocks);
  p.k_blocks = static_cast<i32>(k_blocks);
  p.v_blocks = static_cast<i32>(v_blocks);
  launch.blocks = round_up<std::int64_t>(q_blocks + k_blocks + v_blocks, launch.cluster);
}

Result<cuda::Function> LoadedQuantizers::function(const QuantizeConfig& config) {
  const auto load = [&] {
    return load_function(gpu_, kernel_source(config, code_for(gpu_.info.arch).ptx),
                         quantizer::smem_bytes(config));
  };
  if (gpu_.is_emulated()) return load();
  // In a forked child another thread of the parent may hold the lock, so check first.
  OCTAVO_RETURN_IF_ERROR(usable(gpu_));
  const std::lock_guard lock(mutex_);
  for (const auto& [known, function] : loaded_)
    if (known == config) return function;
  const Result<cuda::Function> made = load();
  if (made.ok()) loaded_.emplace_back(config, *made);
  return made;
}

Status LoadedQuantizers::load(const std::vector<QuantizeConfig>& configs) {
  for (const QuantizeConfig& config : configs) OCTAVO_RETURN_IF_ERROR(function(config).status());
  return {};
}

Status LoadedQuantizers::launch(const PreparedCall& call, Stream stream) {
  if (call.count == 0) return {};
  const CurrentContext current(gpu_);
  OCTAVO_RETURN_IF_ERROR(current.status());
  QuantizeLaunches launches;
  OCTAVO_RETURN_IF_ERROR(launches.prepare(*this, call));
  return launches.launch(gpu_, stream);
}

void QuantizeLaunches::set(std::size_t index, cuda::Function function, bool early) {
  const QuantizeLaunch& made = call_.launches[index];
  Launch& launch = launches_[index];
  launch.function = function;
  launch.config = {};
  launch.config.attributes = launch.attributes.data();
  if (made.cluster > 1) {
    cuda::LaunchAttribute& cluster = launch.attributes[launch.config.attribute_count++];
    cluster.id = cuda::LaunchAttributeId::cluster_dimension;
    cluster.value.cluster_dim[0] = static_cast<unsigned>(made.cluster);
    cluster.value.cluster_dim[1] = cluster.value.cluster_dim[2] = 1;
  }
  if (early && quantizer::overlaps(made.config)) {
    cuda::LaunchAttribute& attribute = launch.attributes[launch.config.attribute_count++];
    attribute.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
    attribute.value.programmatic_stream_serialization = 1;
  }
  launch.config.grid[0] = static_cast<unsigned>(made.blocks);
  launch.config.block[0] = static_cast<unsigned>(made.config.threads);
  launch.config.smem_bytes = static_cast<unsigned>(quantizer::smem_bytes(made.config));
}

Status QuantizeLaunches::prepare(LoadedQuantizers& quantizers, const PreparedCall& call) {
  call_ = call;
  for (std::size_t i = 0; i < call.count; ++i) {
    const Result<cuda::Function> loaded = quantizers.function(call.launches[i].config);
    if (!loaded.ok()) return loaded.status();
    // The launches of one call may overlap. The first may overlap earlier work of the stream only
    // with Options::overlap_launch.
    set(i, *loaded, i > 0 || call.overlap_launch);
  }
  return {};
}

void QuantizeLaunches::prepare(cuda::Function function, const QuantizeLaunch& launch, bool early) {
  call_.launches[0] = launch;
  call_.count = 1;
  set(0, function, early);
}

Status QuantizeLaunches::launch(const Gpu& gpu, Stream stream) {
  for (std::size_t i = 0; i < call_.count; ++i) {
    QuantizeLaunch& made = call_.launches[i];
    Launch& launch = launches_[i];
    if (gpu.is_emulated()) gpu.kernels->announce(made);
    launch.config.stream = static_cast<cuda::StreamHandle>(stream);
    void* arguments[] = {made.config.operands ? static_cast<void*>(&made.params) : &made.params.q};
    OCTAVO_GPU_TRY(*gpu.driver,
                   gpu.driver->launch_kernel(&launch.config, launch.function, arguments, nullptr),
                   "cuLaunchKernelEx");
  }
  return {};
}

std::vector<KernelSource> quantizer_sources(const Resolved& resolved, const GpuInfo& gpu,
                                            int alignment) {
  const CodeFor code = code_for(gpu.arch);
  std::vector<KernelSource> sources;
  for (const QuantizeConfig& config : quantizers_of(resolved, code.arch, alignment))
    sources.push_back(kernel_source(config, code.ptx));
  return sources;
}

}  // namespace octavo
