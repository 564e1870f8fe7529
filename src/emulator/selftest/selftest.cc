// SPDX-License-Identifier: Apache-2.0
#include "emulator/selftest/selftest.h"

#include "emulator/machine.h"
#include "emulator/memory/tensor_map.h"
#include "numeric/fork_safe.h"

namespace octavo::emulator {
namespace {

ptx::TensorMap map_of(const void* data) {
  TensorMapFields map;
  map.data = data;
  map.rank = 2;
  map.shape = {64, 32, 1, 1, 1};
  map.stride_bytes = {128};
  map.box = {64, 8, 1, 1, 1};
  map.swizzle_bytes = 128;
  return encode(map);
}

}  // namespace

const std::vector<SelftestCase>& selftest_cases() {
  static constinit MadeOnce<std::vector<SelftestCase>> cases;
  return cases.get([] {
    std::vector<SelftestCase> all = general_selftest_cases();
    for (const auto& part :
         {global_selftest_cases(), copy_selftest_cases(), warpgroup_selftest_cases()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  });
}

Report run_selftest(const SelftestCase& test, bool right, std::optional<std::uint64_t> seed) {
  // The bytes between the two tensors belong to neither, so an access past the end of one does not
  // reach the other.
  struct alignas(128) Tensors {
    std::uint32_t in[kSelftestWords], between[kSelftestWords], out[kSelftestWords];
  };
  Tensors tensors = {};
  for (std::uint32_t i = 0; i < kSelftestWords; ++i) tensors.in[i] = i;
  const SelftestMemory arguments{tensors.in, tensors.out, map_of(tensors.in), map_of(tensors.out)};
  GlobalMemory memory;
  memory.add_array("in", tensors.in, sizeof tensors.in, GlobalMemory::Use::read);
  memory.add_array("out", tensors.out, sizeof tensors.out, GlobalMemory::Use::write);
  Launch launch;
  launch.kernel = test.what;
  launch.arch = right ? 90 : test.faulty_arch;
  launch.cluster = test.cluster;
  launch.blocks = test.blocks > 0 ? test.blocks : test.cluster;
  launch.threads = test.threads;
  launch.smem_bytes = kSelftestSmemBytes;
  launch.registers = test.registers;
  launch.programmatic = test.programmatic;
  launch.entry = [&] { test.kernel(arguments, right); };
  Settings settings;
  settings.seed = seed;
  Machine machine(launch, memory, settings);
  machine.run();
  return machine.report();
}

}  // namespace octavo::emulator
