#include "gpu/load_function.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "gpu/kernel_store.h"

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

Result<cuda::Function> load(const Gpu& gpu, const KernelSource& source, int dynamic_smem_bytes,
                            const CubinPolicy& policy) {
  const CurrentContext current(gpu);
  if (!current.status().ok()) return current.status();
  const Result<std::shared_ptr<const LoadedKernel>> found = kernel_store().get(source, policy);
  if (!found.ok()) return found.status();
  const CompiledKernel& compiled = (*found)->kernel;
  const Driver& d = *gpu.driver;
  cuda::Module module = nullptr;
  OCTAVO_GPU_TRY(d, d.module_load_data_ex(&module, compiled.image.data(), 0, nullptr, nullptr),
                 "cuModuleLoadDataEx");
  Result<cuda::Function> function =
      take_function(d, module, compiled.lowered_name, dynamic_smem_bytes);
  if (!function.ok()) (void)d.module_unload(module);
  return function;
}

}  // namespace

Result<cuda::Function> load_function(const Gpu& gpu, const KernelSource& source,
                                     int dynamic_smem_bytes, const CubinPolicy& policy) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, cuda::Function>();
  const std::string key =
      fmt::format("{} {} {} {}", gpu.info.index, source.arch, source.ptx, source.name_expression);
  {
    const std::lock_guard lock(mutex);
    if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
  }
  // Outside the lock, as this may compile for seconds: of two threads that load the same kernel
  // one gives its module up, which costs a few kilobytes.
  const Result<cuda::Function> made = load(gpu, source, dynamic_smem_bytes, policy);
  if (!made.ok()) return made;
  const std::lock_guard lock(mutex);
  return loaded.emplace(key, *made).first->second;
}

}  // namespace octavo
