// SPDX-License-Identifier: Apache-2.0
#include "gpu/jit/load_function.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "gpu/jit/kernel_store.h"
#include "numeric/fork_safe.h"

namespace octavo {
namespace {

Result<cuda::Function> take_function(const Driver& d, cuda::Module module, const std::string& name,
                                     int dynamic_smem_bytes) {
  cuda::Function function = nullptr;
  OCTAVO_GPU_TRY(d, d.module_get_function(&function, module, name.c_str()), "cuModuleGetFunction");
  OCTAVO_GPU_TRY(d,
                 d.function_set_attribute(function, cuda::FunctionAttribute::max_dynamic_smem_bytes,
                                          dynamic_smem_bytes),
                 "cuFuncSetAttribute");
  return function;
}

struct LoadedModule {
  cuda::Module module = nullptr;
  std::string lowered_name;
};

Result<LoadedModule> load_module(const Gpu& gpu, KernelSource source, const CubinPolicy& policy) {
  const Result<std::shared_ptr<const LoadedKernel>> found = kernel_store().get(source, policy);
  if (!found.ok()) return found.status();
  const CompiledKernel& compiled = (*found)->kernel;
  const Driver& d = *gpu.driver;
  LoadedModule loaded{nullptr, compiled.lowered_name};
  const cuda::Error error =
      d.module_load_data_ex(&loaded.module, compiled.image.data(), 0, nullptr, nullptr);
  // If the driver or the chip rejects the cubin, its PTX may still work.
  if (!source.ptx && (error == cuda::kInvalidImage || error == cuda::kNoBinaryForGpu)) {
    source.ptx = true;
    Result<LoadedModule> from_ptx = load_module(gpu, source, policy);
    if (from_ptx.ok()) return from_ptx;
  }
  OCTAVO_GPU_TRY(d, error, "cuModuleLoadDataEx");
  return loaded;
}

Result<cuda::Function> load(const Gpu& gpu, const KernelSource& source, int dynamic_smem_bytes,
                            const CubinPolicy& policy) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  const Result<LoadedModule> loaded = load_module(gpu, source, policy);
  if (!loaded.ok()) return loaded.status();
  Result<cuda::Function> function =
      take_function(*gpu.driver, loaded->module, loaded->lowered_name, dynamic_smem_bytes);
  if (!function.ok()) (void)gpu.driver->module_unload(loaded->module);
  return function;
}

struct LoadedFunctions {
  std::mutex mutex;
  std::map<std::string, cuda::Function> by_key;
};

}  // namespace

Result<cuda::Function> load_function(const Gpu& gpu, const KernelSource& source,
                                     int dynamic_smem_bytes, const CubinPolicy& policy) {
  if (gpu.is_emulated()) return gpu.kernels->function(source);
  static constinit PerProcess<LoadedFunctions> of_process;
  LoadedFunctions& loaded = of_process.get();
  const std::string key = fmt::format("{} {} {} {} {}", gpu.info.index, source.arch, source.ptx,
                                      source.name_expression, source_overlay_digest());
  {
    const std::lock_guard lock(loaded.mutex);
    if (const auto found = loaded.by_key.find(key); found != loaded.by_key.end())
      return found->second;
  }
  // Not under the lock, because this may compile for seconds. If two threads load the same kernel,
  // one module is discarded, which costs a few kilobytes.
  const Result<cuda::Function> made = load(gpu, source, dynamic_smem_bytes, policy);
  if (!made.ok()) return made;
  const std::lock_guard lock(loaded.mutex);
  return loaded.by_key.emplace(key, *made).first->second;
}

std::string cache_note(const Gpu& gpu, const KernelSource& source, const CubinPolicy& policy) {
  if (gpu.is_emulated()) return "";
  const Result<std::shared_ptr<const LoadedKernel>> found = kernel_store().get(source, policy);
  return found.ok() ? (*found)->note : "";
}

}  // namespace octavo
