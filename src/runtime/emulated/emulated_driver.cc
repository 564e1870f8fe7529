// SPDX-License-Identifier: Apache-2.0
#include "runtime/emulated/emulated_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "emulator/memory/tensor_map.h"
#include "numeric/fork_safe.h"
#include "octavo/emulator.hpp"

namespace octavo {
namespace {

constexpr cuda::Error kInvalidValue = 1;
constexpr cuda::Error kLaunchFailed = 719;

// The seed of the schedule plus one, or 0 for none: one atomic word needs no lock.
std::atomic<std::uint64_t> schedule = 0;

emulator::Settings current_settings() {
  emulator::Settings settings;
  if (const std::uint64_t seed = schedule; seed != 0) settings.seed = seed - 1;
  return settings;
}

struct ThreadState {
  emulator::GlobalMemory memory;  // of the next launch
  const ExaminedLaunches* examined = nullptr;
  std::string hazards;  // of the last launch that failed
};
ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

cuda::Error name_of_error(cuda::Error error, const char** text) {
  *text = error == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_INVALID_VALUE";
  return cuda::kSuccess;
}
cuda::Error text_of_error(cuda::Error error, const char** text) {
  *text = error == kLaunchFailed ? thread_state().hazards.c_str() : "refused by the emulator";
  return cuda::kSuccess;
}
// All emulated GPUs share this context, which is always current.
cuda::Error current_context(cuda::Context* context) {
  *context = nullptr;
  return cuda::kSuccess;
}

std::optional<emulator::MapType> map_type(cuda::TensorMapType type) {
  switch (type) {
    case cuda::TensorMapType::u8:
      return emulator::MapType::u8;
    case cuda::TensorMapType::u16:
      return emulator::MapType::u16;
    case cuda::TensorMapType::u32:
      return emulator::MapType::u32;
    case cuda::TensorMapType::f16:
      return emulator::MapType::f16;
    case cuda::TensorMapType::f32:
      return emulator::MapType::f32;
    case cuda::TensorMapType::bf16:
      return emulator::MapType::bf16;
    case cuda::TensorMapType::i32:
      break;
  }
  return {};
}

std::optional<std::uint16_t> swizzle_bytes(cuda::TensorMapSwizzle swizzle) {
  switch (swizzle) {
    case cuda::TensorMapSwizzle::none:
      return 0;
    case cuda::TensorMapSwizzle::bytes_32:
      return 32;
    case cuda::TensorMapSwizzle::bytes_64:
      return 64;
    case cuda::TensorMapSwizzle::bytes_128:
      return 128;
  }
  return {};
}

// The fill of elements outside the tensor. True: NaN, which only floating types have.
std::optional<bool> nan_fill(cuda::TensorMapFill fill, emulator::MapType type) {
  using emulator::MapType;
  const bool floating = type == MapType::f16 || type == MapType::bf16 || type == MapType::f32;
  if (fill == cuda::TensorMapFill::zeros) return false;
  if (fill == cuda::TensorMapFill::nan && floating) return true;
  return {};
}

// Promotion loads more of a line into L2 than was requested, and does not affect results.
bool known_promotion(cuda::TensorMapL2Promotion promotion) {
  return promotion >= cuda::TensorMapL2Promotion::none &&
         promotion <= cuda::TensorMapL2Promotion::bytes_256;
}

// Each parameter is honoured or refused. Refused are those that the driver refuses, and those that
// the emulator's copies do not implement (interleaved layouts, strides between elements).
cuda::Error encode_tensor_map(cuda::TensorMap* map, cuda::TensorMapType type, std::uint32_t rank,
                              void* address, const std::uint64_t* shape,
                              const std::uint64_t* stride_bytes, const std::uint32_t* box,
                              const std::uint32_t* element_strides,
                              cuda::TensorMapInterleave interleave, cuda::TensorMapSwizzle swizzle,
                              cuda::TensorMapL2Promotion promotion, cuda::TensorMapFill fill) {
  const std::optional<emulator::MapType> element = map_type(type);
  if (!element || rank < 1 || rank > 5) return kInvalidValue;
  if (map == nullptr || shape == nullptr || box == nullptr || element_strides == nullptr ||
      (rank > 1 && stride_bytes == nullptr))
    return kInvalidValue;
  const std::optional<std::uint16_t> row_bytes = swizzle_bytes(swizzle);
  const std::optional<bool> fills_nan = nan_fill(fill, *element);
  if (!row_bytes || !fills_nan || !known_promotion(promotion) ||
      interleave != cuda::TensorMapInterleave::none)
    return kInvalidValue;
  emulator::TensorMapFields fields;
  fields.data = address;
  fields.type = *element;
  fields.rank = rank;
  fields.swizzle_bytes = *row_bytes;
  fields.nan_fill = *fills_nan;
  for (std::uint32_t i = 0; i < rank; ++i) {
    if (shape[i] > UINT32_MAX || box[i] > 256 || element_strides[i] != 1) return kInvalidValue;
    fields.shape[i] = static_cast<std::uint32_t>(shape[i]);
    fields.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i > 0) fields.stride_bytes[i - 1] = stride_bytes[i - 1];
  }
  if (emulator::refuse(fields) != nullptr) return kInvalidValue;
  const ptx::TensorMap encoded = emulator::encode(fields);
  static_assert(sizeof(ptx::TensorMap) == sizeof(cuda::TensorMap));
  *reinterpret_cast<ptx::TensorMap*>(map) = encoded;
  return cuda::kSuccess;
}

cuda::Error replace_map_address(cuda::TensorMap* map, void* address) {
  auto& encoded = *reinterpret_cast<ptx::TensorMap*>(map);
  emulator::TensorMapFields fields;
  if (!emulator::decode(encoded, fields)) return kInvalidValue;
  fields.data = address;
  if (emulator::refuse(fields) != nullptr) return kInvalidValue;
  encoded = emulator::encode(fields);
  return cuda::kSuccess;
}

cuda::Error set_words(cuda::DevicePointer to, unsigned word, std::size_t words,
                      cuda::StreamHandle /*stream*/) {
  std::fill_n(reinterpret_cast<unsigned*>(to), words, word);
  return cuda::kSuccess;
}

// Device memory is host memory, and work in streams runs immediately.
cuda::Error copy_to_device(cuda::DevicePointer to, const void* from, std::size_t bytes,
                           cuda::StreamHandle /*stream*/) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return cuda::kSuccess;
}
cuda::Error copy_to_host(void* to, cuda::DevicePointer from, std::size_t bytes,
                         cuda::StreamHandle /*stream*/) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return cuda::kSuccess;
}
cuda::Error copy_on_device(cuda::DevicePointer to, cuda::DevicePointer from, std::size_t bytes,
                           cuda::StreamHandle /*stream*/) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return cuda::kSuccess;
}
cuda::Error synchronize_stream(cuda::StreamHandle /*stream*/) { return cuda::kSuccess; }
cuda::Error is_capturing(cuda::StreamHandle /*stream*/, cuda::CaptureStatus* status) {
  *status = cuda::CaptureStatus::none;
  return cuda::kSuccess;
}

// One CTA per SM.
cuda::Error occupancy(int* blocks, cuda::Function /*function*/, int /*threads*/,
                      std::size_t /*smem_bytes*/) {
  *blocks = 1;
  return cuda::kSuccess;
}

// The clusters of 64 SMs.
cuda::Error cluster_occupancy(int* clusters, cuda::Function /*function*/,
                              const cuda::LaunchConfig* config) {
  *clusters = 64 / static_cast<int>(config->attributes[0].value.cluster_dim[0]);
  return cuda::kSuccess;
}

cuda::Error launch_kernel(const cuda::LaunchConfig* config, cuda::Function handle, void** arguments,
                          void** /*extra*/) {
  const auto& function = *reinterpret_cast<const EmulatedFunction*>(handle);
  emulator::Launch launch;
  launch.kernel = function.name;
  launch.arch = function.arch;
  launch.blocks = config->grid[0];
  launch.threads = static_cast<int>(config->block[0]);
  launch.smem_bytes = config->smem_bytes;
  launch.programmatic = function.waits_for_grids;
  launch.registers = function.registers;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const cuda::LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == cuda::LaunchAttributeId::cluster_dimension)
      launch.cluster = static_cast<int>(attribute.value.cluster_dim[0]);
    if (attribute.id == cuda::LaunchAttributeId::programmatic_stream_serialization &&
        attribute.value.programmatic_stream_serialization != 0)
      launch.programmatic = true;
  }
  if (launch.blocks == 0 || launch.blocks % launch.cluster != 0) return kInvalidValue;
  launch.entry = [&] { function.entry(arguments[0]); };
  ThreadState& state = thread_state();
  const emulator::Settings settings =
      state.examined != nullptr ? state.examined->settings() : current_settings();
  const emulator::GlobalMemory announced = std::exchange(state.memory, {});
  const emulator::GlobalMemory& memory = function.memory ? *function.memory : announced;
  emulator::Machine machine(launch, memory, settings);
  machine.run();
  if (state.examined != nullptr) {
    state.examined->examine(machine);
    return cuda::kSuccess;
  }
  const emulator::Report& report = machine.report();
  if (report.clean()) return cuda::kSuccess;
  state.hazards = fmt::format(
      "the emulator found {} hazards ({}):\n{}", report.findings().size(),
      settings.seed ? fmt::format("schedule {}", *settings.seed) : std::string("in turn"),
      report.text());
  return kLaunchFailed;
}

void* symbol(std::string_view name) {
  if (name == "cuGetErrorName") return reinterpret_cast<void*>(&name_of_error);
  if (name == "cuGetErrorString") return reinterpret_cast<void*>(&text_of_error);
  if (name == "cuCtxGetCurrent") return reinterpret_cast<void*>(&current_context);
  if (name == "cuMemsetD32Async") return reinterpret_cast<void*>(&set_words);
  if (name == "cuMemcpyHtoDAsync_v2") return reinterpret_cast<void*>(&copy_to_device);
  if (name == "cuMemcpyDtoHAsync_v2") return reinterpret_cast<void*>(&copy_to_host);
  if (name == "cuMemcpyDtoDAsync_v2") return reinterpret_cast<void*>(&copy_on_device);
  if (name == "cuStreamSynchronize") return reinterpret_cast<void*>(&synchronize_stream);
  if (name == "cuStreamIsCapturing") return reinterpret_cast<void*>(&is_capturing);
  if (name == "cuOccupancyMaxActiveBlocksPerMultiprocessor")
    return reinterpret_cast<void*>(&occupancy);
  if (name == "cuOccupancyMaxActiveClusters") return reinterpret_cast<void*>(&cluster_occupancy);
  if (name == "cuLaunchKernelEx") return reinterpret_cast<void*>(&launch_kernel);
  if (name == "cuTensorMapEncodeTiled") return reinterpret_cast<void*>(&encode_tensor_map);
  if (name == "cuTensorMapReplaceAddress") return reinterpret_cast<void*>(&replace_map_address);
  return nullptr;
}

}  // namespace

const Driver& emulated_driver() {
  static constinit MadeOnce<Driver> made;
  return made.get([] {
    SymbolLoader loader([](const char* name) { return symbol(name); });
    return Driver(loader);
  });
}

void set_emulated_memory(emulator::GlobalMemory memory) {
  thread_state().memory = std::move(memory);
}

ExaminedLaunches::ExaminedLaunches(const emulator::Settings& settings, const EmulatorThen& then)
    : settings_(settings), then_(then), outer_(std::exchange(thread_state().examined, this)) {}
ExaminedLaunches::~ExaminedLaunches() { thread_state().examined = outer_; }

void set_emulator_schedule(std::optional<std::uint64_t> seed) { schedule = seed ? *seed + 1 : 0; }

}  // namespace octavo
