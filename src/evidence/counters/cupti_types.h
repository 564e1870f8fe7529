// SPDX-License-Identifier: Apache-2.0
// The few types of CUPTI that Octavo uses, declared here so that neither the build nor a user needs
// its headers. tests/evidence compares them with those headers if they are installed.
//
// Every call takes one struct that begins with its size in CUPTI's header: up to the end of its
// last member, without trailing padding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/driver/driver_types.h"

namespace octavo::cupti {

using Code = int;  // CUptiResult
inline constexpr Code kSuccess = 0;
inline constexpr Code kInsufficientPrivileges = 35;
inline constexpr Code kVirtualInsufficientPrivileges = 40;

using Host = struct HostObject*;
using Profiler = struct ProfilerObject*;
inline constexpr int kRangeProfiler = 0;  // CUpti_ProfilerType
inline constexpr int kAutoRange = 1;      // CUpti_ProfilerRange: every kernel is a range
inline constexpr int kKernelReplay = 2;   // CUpti_ProfilerReplayMode

struct Initialize {
  std::size_t bytes = 16;
  void* reserved = nullptr;
};

struct ChipName {
  std::size_t bytes = 32;
  void* reserved = nullptr;
  std::size_t device = 0;
  const char* name = nullptr;  // out
};

struct CounterAvailability {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  cuda::Context context = nullptr;
  std::size_t image_bytes = 0;  // in and out
  std::uint8_t* image = nullptr;
};

struct HostInitialize {
  std::size_t bytes = 48;
  void* reserved = nullptr;
  int type = kRangeProfiler;
  const char* chip = nullptr;
  const std::uint8_t* availability = nullptr;
  Host host = nullptr;  // out
};

struct HostDeinitialize {
  std::size_t bytes = 24;
  void* reserved = nullptr;
  Host host = nullptr;
};

struct ConfigAddMetrics {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  Host host = nullptr;
  const char** names = nullptr;
  std::size_t count = 0;
};

struct ConfigImageSize {
  std::size_t bytes = 32;
  void* reserved = nullptr;
  Host host = nullptr;
  std::size_t image_bytes = 0;  // out
};

struct ConfigImage {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  Host host = nullptr;
  std::size_t image_bytes = 0;
  std::uint8_t* image = nullptr;
};

struct NumberOfPasses {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  std::size_t image_bytes = 0;
  std::uint8_t* image = nullptr;
  std::size_t passes = 0;  // out
};

struct Evaluate {
  std::size_t bytes = 72;
  void* reserved = nullptr;
  Host host = nullptr;
  const std::uint8_t* image = nullptr;
  std::size_t image_bytes = 0;
  std::size_t range = 0;
  const char** names = nullptr;
  std::size_t count = 0;
  double* values = nullptr;  // out
};

struct Enable {
  std::size_t bytes = 32;
  void* reserved = nullptr;
  cuda::Context context = nullptr;
  Profiler profiler = nullptr;  // out
};

// The parameters of Disable and Start.
struct OfProfiler {
  std::size_t bytes = 24;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
};

struct SetConfig {
  std::size_t bytes = 90;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
  std::size_t config_bytes = 0;
  const std::uint8_t* config = nullptr;
  std::size_t data_bytes = 0;
  std::uint8_t* data = nullptr;
  int range = kAutoRange;
  int replay = kKernelReplay;
  std::size_t max_ranges = 0;
  std::uint16_t nesting_levels = 1;
  std::uint16_t min_nesting_level = 1;
  std::size_t pass = 0;
  std::uint16_t target_nesting_level = 0;
};

struct Stop {
  std::size_t bytes = 41;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
  std::size_t pass = 0;                  // out
  std::size_t target_nesting_level = 0;  // out
  std::uint8_t all_submitted = 0;        // out
};

struct Decode {
  std::size_t bytes = 32;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
  std::size_t dropped = 0;  // out
};

struct DataSize {
  std::size_t bytes = 64;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
  const char** names = nullptr;
  std::size_t count = 0;
  std::size_t max_ranges = 0;
  std::uint32_t max_nodes = 0;
  std::size_t data_bytes = 0;  // out
};

struct DataInitialize {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  Profiler profiler = nullptr;
  std::size_t data_bytes = 0;
  std::uint8_t* data = nullptr;
};

struct DataInfo {
  std::size_t bytes = 40;
  void* reserved = nullptr;
  const std::uint8_t* data = nullptr;
  std::size_t data_bytes = 0;
  std::size_t ranges = 0;  // out
};

}  // namespace octavo::cupti
