#include "gpu/quantize/launch_quantize.h"

#include <array>

#include "attention/error.h"
#include "gpu/jit/load_function.h"

namespace octavo {

Result<cuda::Function> LoadedQuantizers::function(const QuantizeConfig& config) {
  // In a forked child another thread of the parent may hold the lock, so check first.
  OCTAVO_RETURN_IF_ERROR(usable(gpu_));
  const std::lock_guard lock(mutex_);
  for (const auto& [known, function] : loaded_)
    if (known == config) return function;
  const Result<cuda::Function> made = load_function(
      gpu_, kernel_source(config, code_for(gpu_.info.arch).ptx), quantizer::smem_bytes(config));
  if (made.ok()) loaded_.emplace_back(config, *made);
  return made;
}

Status LoadedQuantizers::load(const std::vector<QuantizeConfig>& configs) {
  for (const QuantizeConfig& config : configs) OCTAVO_RETURN_IF_ERROR(function(config).status());
  return {};
}

Status LoadedQuantizers::launch(const PreparedCall& call, Stream stream) {
  for (std::size_t i = 0; i < call.count; ++i) {
    const QuantizeConfig& config = call.launches[i].config;
    const Result<cuda::Function> loaded = function(config);
    if (!loaded.ok()) return loaded.status();
    const CurrentContext current(gpu_);
    OCTAVO_RETURN_IF_ERROR(current.status());
    OperandsParams params = call.launches[i].params;
    std::array<cuda::LaunchAttribute, 2> attributes;
    cuda::LaunchConfig launch;
    launch.attributes = attributes.data();
    if (call.launches[i].cluster > 1) {
      cuda::LaunchAttribute& cluster = attributes[launch.attribute_count++];
      cluster.id = cuda::LaunchAttributeId::cluster_dimension;
      cluster.value.cluster_dim[0] = static_cast<unsigned>(call.launches[i].cluster);
      cluster.value.cluster_dim[1] = cluster.value.cluster_dim[2] = 1;
    }
    // The launches of one call may overlap. The first may overlap earlier work of the stream only
    // with Options::overlap_launch.
    if (quantizer::overlaps(config) && (i > 0 || call.problem.options.overlap_launch)) {
      cuda::LaunchAttribute& early = attributes[launch.attribute_count++];
      early.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
      early.value.programmatic_stream_serialization = 1;
    }
    launch.grid[0] = static_cast<unsigned>(call.launches[i].blocks);
    launch.block[0] = static_cast<unsigned>(config.threads);
    launch.smem_bytes = static_cast<unsigned>(quantizer::smem_bytes(config));
    launch.stream = static_cast<cuda::StreamHandle>(stream);
    void* arguments[] = {config.operands ? static_cast<void*>(&params) : &params.q};
    OCTAVO_GPU_TRY(*gpu_.driver, gpu_.driver->launch_kernel(&launch, *loaded, arguments, nullptr),
                   "cuLaunchKernelEx");
  }
  return {};
}

std::vector<KernelSource> quantizer_sources(const Problem& problem, const GpuInfo& gpu,
                                            int alignment, VLayout layout) {
  const CodeFor code = code_for(gpu.arch);
  std::vector<KernelSource> sources;
  for (const QuantizeConfig& config : quantizers_of(problem, code.arch, alignment, layout))
    sources.push_back(kernel_source(config, code.ptx));
  return sources;
}

}  // namespace octavo
