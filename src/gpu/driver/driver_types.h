// SPDX-License-Identifier: Apache-2.0
// The few types of the CUDA driver interface that Octavo uses, declared here so that neither the
// build nor a user needs the toolkit. tests/gpu compares them with cuda.h if it is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo::cuda {

using Error = int;  // CUresult
inline constexpr Error kSuccess = 0;
inline constexpr Error kOutOfMemory = 2;
inline constexpr Error kNoDevice = 100;
inline constexpr Error kInvalidImage = 200;
inline constexpr Error kNoBinaryForGpu = 209;
inline constexpr Error kNotReady = 600;

using DeviceOrdinal = int;            // CUdevice
using DevicePointer = std::uint64_t;  // CUdeviceptr
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using StreamHandle = struct StreamObject*;
using Event = struct EventObject*;
using Graph = struct GraphObject*;
using GraphExec = struct GraphExecObject*;

enum class DeviceAttribute : int {
  clock_khz = 13,
  sms = 16,
  l2_bytes = 38,
  major = 75,
  minor = 76,
  smem_per_block_optin = 97,
  max_persisting_l2_bytes = 108,
};

enum class FunctionAttribute : int {
  max_threads = 0,
  static_smem_bytes = 1,
  local_bytes = 3,
  registers = 4,
  ptx_version = 5,
  binary_version = 6,
  max_dynamic_smem_bytes = 8,
  preferred_smem_carveout = 9,
};

enum class PointerAttribute : int { memory_type = 2, device_ordinal = 9 };
enum class CaptureMode : int { global = 0, thread_local_mode = 1, relaxed = 2 };
enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class Limit : int { persisting_l2_bytes = 6 };
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

struct AccessPolicyWindow {
  void* base = nullptr;
  std::size_t bytes = 0;
  float hit_ratio = 0;
  int hit_property = 0;   // 0 normal, 1 streaming, 2 persisting
  int miss_property = 0;  // 0 normal, 1 streaming
};

enum class LaunchAttributeId : int {
  access_policy_window = 1,
  cooperative = 2,
  cluster_dimension = 4,
  programmatic_stream_serialization = 6,
};

struct LaunchAttribute {
  LaunchAttributeId id{};
  int reserved = 0;
  union Value {
    char pad[64];
    AccessPolicyWindow access_policy_window;
    int cooperative;
    unsigned cluster_dim[3];
    int programmatic_stream_serialization;
    Value() : pad{} {}
  } value;
};

struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned smem_bytes = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

struct alignas(128) TensorMap {
  std::uint64_t opaque[16] = {};
};
enum class TensorMapType : int { u8 = 0, u16 = 1, u32 = 2, i32 = 3, f16 = 6, f32 = 7, bf16 = 9 };
enum class TensorMapInterleave : int { none = 0, bytes_16 = 1, bytes_32 = 2 };
enum class TensorMapSwizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };
enum class TensorMapL2Promotion : int { none = 0, bytes_64 = 1, bytes_128 = 2, bytes_256 = 3 };
enum class TensorMapFill : int { zeros = 0, nan = 1 };

}  // namespace octavo::cuda
