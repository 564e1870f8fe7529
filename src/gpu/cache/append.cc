// SPDX-License-Identifier: Apache-2.0
#include "gpu/cache/append.h"

#include <algorithm>

#include "base/error.h"
#include "gpu/forward/forward_params.h"
#include "gpu/jit/load_function.h"
#include "numeric/formats.h"

namespace octavo {
namespace {

append::Side side_of(const ConstTensor& from, const Tensor& to, float* scales) {
  return {from.data, strides_of(from), to.data, strides_of(to), scales};
}

bool is_aligned(const ConstTensor& t) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(t.data);
  for (int i = 0; i < 3; ++i)
    if (t.shape[i] > 1) bits |= static_cast<std::uint64_t>(t.stride[i]) * size_bytes(t.dtype);
  return bits % 16 == 0;
}

}  // namespace

Status check_gpu_cache(const KvCacheOptions& o, const GpuInfo& gpu) {
  const bool fp8 = o.dtype == DType::e4m3 || o.dtype == DType::e5m2;
  if (o.dtype == DType::f32 || (fp8 && gpu.arch < 89))
    return unsupported("dtype", fmt::format("{} on sm_{}", name(o.dtype), gpu.arch),
                       "f16, bf16, int8, int4, and from sm_89 on e4m3, e5m2 on a GPU");
  const std::int64_t chunk =
      o.dtype == DType::int4 ? 32 : static_cast<std::int64_t>(16 / size_bytes(o.dtype));
  if (o.head_dim % chunk != 0 || o.head_dim > 256)
    return unsupported(
        "head_dim", fmt::format("{}", o.head_dim),
        fmt::format("multiples of {} up to 256 for {} on a GPU", chunk, name(o.dtype)));
  return {};
}

AppendConfig choose_append(const AppendCall& call, const GpuInfo& gpu) {
  AppendConfig c;
  c.arch = code_for(gpu.arch).arch;
  c.from = element_of(call.k.dtype);
  c.to = element_of(call.cache.k.dtype);
  const std::int64_t head_dim = call.k.shape[3];
  c.group = static_cast<int>(call.cache.k_groups.channels);
  c.columns = head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
  c.load_bytes = is_aligned(call.k) && is_aligned(call.v) ? 16 : element_bytes(c.from);
  return c;
}

append::Params append_params(const AppendCall& call) {
  const auto size = [&call](int i) { return static_cast<i32>(call.k.shape[i]); };
  append::Params p;
  p.k = side_of(call.k, call.cache.k, call.cache.k_scales);
  p.v = side_of(call.v, call.cache.v, call.cache.v_scales);
  p.batch = size(0);
  p.heads = size(1);
  p.tokens = size(2);
  p.head_dim = size(3);
  p.rows = p.batch * p.heads * p.tokens;
  p.by_tokens = divider(p.tokens);
  p.by_heads = divider(p.heads);
  p.table = call.batch.page_table;
  p.table_stride = call.batch.page_table_stride;
  p.page_size = static_cast<i32>(call.cache.k.shape[2]);
  p.by_page_size = divider(p.page_size);
  p.lengths = call.batch.lengths;
  p.capacities = call.batch.capacities;
  p.arrivals = call.batch.arrivals;
  p.cos = call.rotary.cos;
  p.sin = call.rotary.sin;
  if (p.cos != nullptr) {
    p.positions = static_cast<i32>(std::min<std::int64_t>(call.rotary.positions, INT32_MAX));
    p.pairs = static_cast<i32>(call.rotary.pairs);
    p.interleaved = call.rotary.interleaved ? 1 : 0;
  }
  if (is_8bit(call.cache.k.dtype)) p.max_quantized = largest(call.cache.k.dtype);
  p.k_groups = call.cache.k_groups.data;
  p.v_groups = call.cache.v_groups.data;
  return p;
}

Result<cuda::Function> LoadedAppends::function(const AppendConfig& config) {
  for (const auto& [known, function] : loaded_)
    if (known == config) return function;
  const CurrentContext current(gpu_);
  if (!current.status().ok()) return current.status();
  const Result<cuda::Function> made =
      load_function(gpu_, kernel_source(config, code_for(gpu_.info.arch).ptx), 0);
  if (made.ok()) loaded_.emplace_back(config, *made);
  return made;
}

Status LoadedAppends::launch(const AppendCall& call, Stream stream) {
  const std::int64_t rows = call.k.shape[0] * call.k.shape[1] * call.k.shape[2];
  if (rows > INT32_MAX / 2)
    return unsupported("k.shape", fmt::format("of {} rows", rows),
                       "at most 2^30 new rows of all heads on a GPU");
  AppendConfig config = choose_append(call, gpu_.info);
  if (gpu_.is_emulated()) config = gpu_.kernels->nearest(config, call.k.shape[3]).value_or(config);
  const Result<cuda::Function> kernel = function(config);
  if (!kernel.ok()) return kernel.status();
  return launch_append(gpu_, config, *kernel, call, stream);
}

Status launch_append(const Gpu& gpu, const AppendConfig& config, cuda::Function function,
                     const AppendCall& call, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  append::Params params = append_params(call);
  void* arguments[] = {&params};
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(div_up(params.rows, append::rows_of_cta(config)));
  launch.block[0] = append::kThreads;
  launch.stream = static_cast<cuda::StreamHandle>(stream);
  if (gpu.is_emulated()) gpu.kernels->announce(call);
  OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->launch_kernel(&launch, function, arguments, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

}  // namespace octavo
