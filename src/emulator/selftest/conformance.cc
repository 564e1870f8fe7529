// SPDX-License-Identifier: Apache-2.0
#include "emulator/selftest/conformance.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "emulator/machine.h"

namespace octavo::emulator {
namespace {

// Whether two floats differ by at most `ulps` units in the last place; all NaNs are equal.
bool close(std::uint32_t a, std::uint32_t b, int ulps) {
  if (a == b) return true;
  if (ulps == 0) return false;
  const auto x = std::bit_cast<float>(a), y = std::bit_cast<float>(b);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  if (ulps == kLog2) return std::abs(x - y) <= 0x1p-22f * std::max(1.0f, std::abs(x));
  const auto order = [](std::uint32_t bits) {
    const auto magnitude = static_cast<std::int64_t>(bits & 0x7fffffff);
    return (bits >> 31) != 0 ? -magnitude : magnitude;
  };
  return std::abs(order(a) - order(b)) <= ulps;
}

}  // namespace

ConformanceResult conform(const ConformanceSet& set, const std::optional<GoldenSet>& golden) {
  ConformanceResult result;
  result.name = set.name;
  std::vector<std::uint32_t> input = set.input, output(set.output_words, kUntouched);
  // A tensor map needs 16-byte alignment, which the allocator provides for a vector of words.
  conformance::Params params = set.params;
  params.in = input.data();
  params.out = output.data();
  TensorMapFields map = set.map;
  map.data = set.map_of == ConformanceSet::MapOf::output ? static_cast<const void*>(output.data())
                                                         : input.data();
  params.map = encode(map);
  GlobalMemory memory;
  memory.add_array("in", input.data(), input.size() * 4, GlobalMemory::Use::read);
  memory.add_array("out", output.data(), output.size() * 4, GlobalMemory::Use::write);
  Launch launch;
  launch.kernel = set.name;
  launch.arch = 90;
  launch.blocks = launch.cluster = set.cluster;
  launch.threads = set.threads;
  launch.smem_bytes = set.smem_bytes;
  launch.entry = [&] { set.entry(params); };
  Machine machine(launch, memory, {});
  machine.run();
  if (!machine.report().clean()) {
    result.wrong = 1;
    result.first = machine.report().text();
    return result;
  }
  if (!golden) {
    result.first = "no golden vectors";
    return result;
  }
  if (golden->input_digest != digest(set.input) || golden->output.size() != output.size()) {
    result.wrong = 1;
    result.first = "the golden vectors are for other inputs: record them again";
    return result;
  }
  result.words = static_cast<std::int64_t>(output.size());
  for (std::size_t i = 0; i < output.size(); ++i) {
    if (close(output[i], golden->output[i], set.ulps)) continue;
    if (result.wrong++ == 0)
      result.first = fmt::format("word {} is {:#010x} here and {:#010x} there", i, output[i],
                                 golden->output[i]);
  }
  return result;
}

}  // namespace octavo::emulator
