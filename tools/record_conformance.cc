// SPDX-License-Identifier: Apache-2.0
// record_conformance FILE: runs every conformance set on the first GPU and writes the outputs,
// which the emulator must reproduce (tests/emulator). Needs an sm_90 GPU.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "emulator/selftest/conformance.h"
#include "gpu/driver/context.h"
#include "gpu/jit/kernel_store.h"

namespace octavo {
namespace {

using emulator::ConformanceSet;
using emulator::GoldenSet;
using emulator::MapType;

KernelSource source_of(const ConformanceSet& set) {
  return {.include = set.include, .name_expression = set.expression, .arch = 90, .ptx = false};
}

// NVRTC takes seconds for the wgmma headers, so the kernels are compiled on all cores.
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

std::string part_name(const std::string& path, std::size_t i) {
  return fmt::format("{}.{}", path, i);
}

bool write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return file.good();
}

// Records sets from `first` on, each into its own file, until one fails.
int record_from(const std::vector<ConformanceSet>& sets, std::size_t first,
                const std::string& path) {
  const Result<const Gpu*> gpu = open_gpu(0);
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.status().message());
    return 1;
  }
  const CurrentContext current(**gpu);
  for (std::size_t i = first; i < sets.size(); ++i) {
    GoldenSet golden;
    const Status status = record(**gpu, sets[i], golden);
    if (!status.ok()) {
      fmt::print(stderr, "{}: {}\n", sets[i].name, status.message());
      return 1;
    }
    if (!write_file(part_name(path, i), emulator::to_bytes({golden}, (*gpu)->info.name))) return 1;
  }
  return 0;
}

// A kernel that faults destroys its process's context, and one that hangs never ends. Child
// processes therefore do the work, and each continues after the last set of the one before.
std::size_t record_in_child(const std::vector<ConformanceSet>& sets, std::size_t first,
                            const std::string& path) {
  constexpr int kPatienceMs = 60'000, kStepMs = 100;
  const pid_t child = fork();
  if (child == 0) _exit(record_from(sets, first, path));
  std::size_t next = first;
  for (int waited = 0; waitpid(child, nullptr, WNOHANG) == 0; waited += kStepMs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kStepMs));
    if (std::filesystem::exists(part_name(path, next))) {
      ++next;
      waited = 0;
    }
    if (waited < kPatienceMs) continue;
    fmt::print(stderr, "{}: no answer\n", sets[next].name);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    break;
  }
  while (next < sets.size() && std::filesystem::exists(part_name(path, next))) ++next;
  return next;
}

// Compiles into the cache, also in a child: a process that has opened the driver cannot use it in
// its children.
bool compile_in_child(const std::vector<ConformanceSet>& sets) {
  const pid_t child = fork();
  if (child == 0) _exit(compile_all(sets) ? 0 : 1);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run(const std::string& path) {
  const std::vector<ConformanceSet> sets = emulator::conformance_sets();
  if (!compile_in_child(sets)) return 1;
  for (std::size_t next = 0; next < sets.size(); ++next) next = record_in_child(sets, next, path);
  std::vector<GoldenSet> recorded;
  std::string device;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    std::ifstream file(part_name(path, i), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    for (GoldenSet& set : emulator::golden_from_bytes(bytes)) recorded.push_back(std::move(set));
    if (device.empty()) device = emulator::golden_device(bytes);
    std::filesystem::remove(part_name(path, i));
  }
  fmt::print("{} of {} sets recorded on {}\n", recorded.size(), sets.size(), device);
  return write_file(path, emulator::to_bytes(recorded, device)) && recorded.size() == sets.size()
             ? 0
             : 1;
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
