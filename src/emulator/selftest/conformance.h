// SPDX-License-Identifier: Apache-2.0
// Conformance: compares results of instructions in the emulator with results recorded on a GPU, the
// golden vectors.
//
// A set is a kernel of device/conformance with inputs derived from its name. Its outputs, recorded
// on a GPU by tools/record_conformance.cc, are stored in tests/emulator/conformance.golden.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/conformance/params.cuh"
#include "emulator/memory/tensor_map.h"

namespace octavo::emulator {

inline constexpr int kLog2 = -1;  // 2^-22, absolute near 1

struct ConformanceSet {
  std::string name;        // "mma.m16n8k16.f16"
  std::string include;     // the header of its kernel
  std::string expression;  // the kernel, as C++ spells it in namespace octavo
  void (*entry)(const conformance::Params&) = nullptr;
  int threads = 128;
  int cluster = 1;
  std::uint32_t smem_bytes = 0;
  conformance::Params params;        // without pointers and tensor map
  std::vector<std::uint32_t> input;  // words
  std::size_t output_words = 0;
  enum class MapOf : std::uint8_t { none, input, output };
  MapOf map_of = MapOf::none;
  TensorMapFields map;
  int ulps = 0;  // allowed difference of an approximate function; kLog2 selects its own rule
};
std::vector<ConformanceSet> conformance_sets();

// The content of outputs before the kernel runs: 1.0 in FP16, twice.
inline constexpr std::uint32_t kUntouched = 0x3c003c00;

struct GoldenSet {
  std::string name;
  std::uint64_t input_digest = 0;
  std::vector<std::uint32_t> output;
};
std::uint64_t digest(const std::vector<std::uint32_t>& words);
// The file: a line of text that describes it, then the sets, little-endian.
std::string to_bytes(const std::vector<GoldenSet>& sets, const std::string& device);
// Reads such a file; empty if the bytes are something else.
std::vector<GoldenSet> golden_from_bytes(const std::string& bytes);
// The GPU that the file was recorded on.
std::string golden_device(const std::string& bytes);

struct ConformanceResult {
  std::string name;
  std::int64_t words = 0;
  std::int64_t wrong = 0;
  std::string first;  // the first difference, or why nothing was compared
};
// Runs the set in the emulator and compares.
ConformanceResult conform(const ConformanceSet& set, const std::optional<GoldenSet>& golden);

}  // namespace octavo::emulator
