// record_conformance FILE: runs every conformance set on the first GPU and writes what came out,
// for the emulator to be held against (tests/emulator). Needs an sm_90 GPU.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <thread>

#include "emulator/conformance.h"
#include "gpu/context.h"
#include "gpu/kernel_store.h"

namespace octavo {
namespace {

using emulator::ConformanceSet;
using emulator::GoldenSet;
using emulator::MapType;

KernelSource source_of(const ConformanceSet& set) {
  return {.include = set.include, .name_expression = set.expression, .arch = 90, .ptx = false};
}

// NVRTC takes seconds over the headers of wgmma: all cores share the kernels.
bool compile_all(const std::vector<ConformanceSet>& sets) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> good = true;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i)
    workers.emplace_back([&] {
      for (std::size_t n = next++; n < sets.size(); n = next++)
        if (const auto made = kernel_store().get(source_of(sets[n]), {.allow_spills = true});
            !made.ok()) {
          fmt::print(stderr, "{}: {}\n", sets[n].name, made.status().message());
          good = false;
        }
    });
  for (std::thread& worker : workers) worker.join();
  return good;
}

class DeviceWords {
 public:
  DeviceWords(const Driver& driver, const std::vector<std::uint32_t>& words) : driver_(driver) {
    status_ = driver.mem_alloc(&pointer_, words.size() * 4 + 16);
    if (status_ == cuda::kSuccess)
      status_ = driver.memcpy_htod(pointer_, words.data(), words.size() * 4);
  }
  ~DeviceWords() { (void)driver_.mem_free(pointer_); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;
  cuda::Error status() const { return status_; }
  cuda::DevicePointer address() const { return pointer_; }

 private:
  const Driver& driver_;
  cuda::DevicePointer pointer_ = 0;
  cuda::Error status_ = cuda::kSuccess;
};

Status encode_map(const Driver& d, const ConformanceSet& set, cuda::DevicePointer address,
                  ptx::TensorMap& map) {
  using Type = cuda::TensorMapType;
  const auto type_of = [](MapType type) {
    switch (type) {
      case MapType::u8:
        return Type::u8;
      case MapType::u16:
        return Type::u16;
      case MapType::u32:
        return Type::u32;
      case MapType::f16:
        return Type::f16;
      case MapType::bf16:
        return Type::bf16;
      case MapType::f32:
        break;
    }
    return Type::f32;
  };
  const auto swizzle = set.map.swizzle_bytes == 128  ? cuda::TensorMapSwizzle::bytes_128
                       : set.map.swizzle_bytes == 64 ? cuda::TensorMapSwizzle::bytes_64
                       : set.map.swizzle_bytes == 32 ? cuda::TensorMapSwizzle::bytes_32
                                                     : cuda::TensorMapSwizzle::none;
  std::uint64_t shape[5];
  std::uint32_t box[5], ones[5] = {1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < 5; ++i) {
    shape[i] = set.map.shape[i];
    box[i] = set.map.box[i];
  }
  cuda::TensorMap encoded;
  OCTAVO_GPU_TRY(
      d,
      d.tensor_map_encode_tiled(
          &encoded, type_of(set.map.type), set.map.rank, reinterpret_cast<void*>(address), shape,
          set.map.stride_bytes.data(), box, ones, cuda::TensorMapInterleave::none, swizzle,
          cuda::TensorMapL2Promotion::none, cuda::TensorMapFill::zeros),
      "cuTensorMapEncodeTiled");
  for (std::size_t i = 0; i < 16; ++i) map.opaque[i] = encoded.opaque[i];
  return {};
}

Status record(const Gpu& gpu, const ConformanceSet& set, GoldenSet& golden) {
  const Driver& d = *gpu.driver;
  const auto kernel = kernel_store().get(source_of(set), {.allow_spills = true});
  if (!kernel.ok()) return kernel.status();
  cuda::Module module = nullptr;
  cuda::Function function = nullptr;
  const CompiledKernel& compiled = (*kernel)->kernel;
  OCTAVO_GPU_TRY(d, d.module_load_data_ex(&module, compiled.image.data(), 0, nullptr, nullptr),
                 "cuModuleLoadDataEx");
  OCTAVO_GPU_TRY(d, d.module_get_function(&function, module, compiled.lowered_name.c_str()),
                 "cuModuleGetFunction");
  std::vector<std::uint32_t> output(set.output_words, emulator::kUntouched);
  const DeviceWords in(d, set.input), out(d, output);
  OCTAVO_GPU_TRY(d, in.status(), "input");
  OCTAVO_GPU_TRY(d, out.status(), "output");
  conformance::Params params = set.params;
  params.in = reinterpret_cast<const u32*>(in.address());
  params.out = reinterpret_cast<u32*>(out.address());
  if (set.map_of != ConformanceSet::MapOf::none) {
    const bool of_input = set.map_of == ConformanceSet::MapOf::input;
    const Status encoded = encode_map(d, set, (of_input ? in : out).address(), params.map);
    if (!encoded.ok()) return encoded;
  }
  cuda::LaunchAttribute cluster;
  cluster.id = cuda::LaunchAttributeId::cluster_dimension;
  cluster.value.cluster_dim[0] = static_cast<unsigned>(set.cluster);
  cluster.value.cluster_dim[1] = cluster.value.cluster_dim[2] = 1;
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(set.cluster);
  launch.block[0] = static_cast<unsigned>(set.threads);
  launch.smem_bytes = set.smem_bytes;
  if (set.cluster > 1) {
    launch.attributes = &cluster;
    launch.attribute_count = 1;
  }
  void* arguments[] = {&params};
  OCTAVO_GPU_TRY(d, d.launch_kernel(&launch, function, arguments, nullptr), "cuLaunchKernelEx");
  OCTAVO_GPU_TRY(d, d.context_synchronize(), "cuCtxSynchronize");
  OCTAVO_GPU_TRY(d, d.memcpy_dtoh(output.data(), out.address(), output.size() * 4), "cuMemcpyDtoH");
  OCTAVO_GPU_TRY(d, d.module_unload(module), "cuModuleUnload");
  golden = {set.name, emulator::digest(set.input), std::move(output)};
  return {};
}

int run(const char* path) {
  const std::vector<ConformanceSet> sets = emulator::conformance_sets();
  if (!compile_all(sets)) return 1;
  const Result<const Gpu*> gpu = open_gpu(0);
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.status().message());
    return 1;
  }
  const CurrentContext current(**gpu);
  std::vector<GoldenSet> recorded;
  for (const ConformanceSet& set : sets) {
    GoldenSet golden;
    const Status status = record(**gpu, set, golden);
    if (!status.ok()) {
      fmt::print(stderr, "{}: {}\n", set.name, status.message());
      return 1;
    }
    fmt::print("{}: {} words\n", set.name, golden.output.size());
    recorded.push_back(std::move(golden));
  }
  std::ofstream file(path, std::ios::binary);
  const std::string bytes = emulator::to_bytes(recorded, (*gpu)->info.name);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: record_conformance FILE\n");
    return 2;
  }
  return octavo::run(argv[1]);
}
