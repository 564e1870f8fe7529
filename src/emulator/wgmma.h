// SPDX-License-Identifier: Apache-2.0
// wgmma: products that run asynchronously until the warp waits for them.
//
// The four warps of a warpgroup execute the same instruction, and each has its own 16 rows of the
// result; the emulator runs them warp by warp. From its start to the wait that covers it, a product
// owns the registers of its accumulator. They hold a pattern meanwhile, so that reading or
// overwriting them is detected.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "device/ptx/wgmma.cuh"
#include "emulator/clock.h"
#include "emulator/report.h"

namespace octavo::emulator {

class SharedMemory;
struct Cta;
struct Warp;

// A decoded matrix descriptor. Offsets are in bytes.
struct MatrixDescriptor {
  std::uint32_t start = 0, leading = 0, stride = 0;
  std::uint32_t swizzle_bytes = 0;
};
MatrixDescriptor decode_descriptor(std::uint64_t descriptor);
// k_major_address: the address of byte `byte` (0 to 31) of K in row `index`. mn_major_address: that
// of element (index, k), for 16-bit elements.
std::uint32_t k_major_address(const MatrixDescriptor& d, std::uint32_t index, std::uint32_t byte);
std::uint32_t mn_major_address(const MatrixDescriptor& d, std::uint32_t index, std::uint32_t k);

// One lane's part of an instruction.
struct WgmmaLane {
  void* d = nullptr;
  const std::uint32_t* a = nullptr;  // four registers; null: a descriptor
};
struct WgmmaOperation {
  ptx::WgmmaShape shape;
  std::uint64_t a = 0, b = 0;
  bool accumulate = false;
  bool a_in_registers = false;
  Place place;
  std::uint32_t group = 0;
  std::array<WgmmaLane, 32> lanes;
  std::array<std::array<std::uint32_t, 4>, 32> a_values{};
  bool computed = false;
};

struct WgmmaQueue {
  Actor actor = kNobody;
  std::uint32_t open = 1;  // the group that new products join
  std::vector<WgmmaOperation> in_flight;
  std::int64_t steps = 0;  // instructions that the warpgroup must execute together
  bool fenced = false;     // since the warp last regained its registers
  // Accumulators in flight, keyed by lane 0's register: the values they hold, one block per lane.
  struct Block {
    std::size_t words = 0;
    std::array<std::uint32_t*, 32> registers{};
    std::vector<std::uint32_t> values;  // [lane][word]
    int operations = 0;
    Place place;
  };
  std::map<const void*, Block> accumulators;
  // Registers that a lane has pinned, and their values at the last fence.
  struct Pinned {
    const std::uint32_t* registers = nullptr;
    std::vector<std::uint32_t> values;
  };
  std::array<std::vector<Pinned>, 32> pinned;
};

// The wgmma instructions, fences, commits and waits that the warps of a warpgroup have executed,
// from the first that some warp has not reached yet.
struct WarpgroupHistory {
  std::int64_t first = 0;
  std::deque<Place> places;
};

// The last lane of a warp to arrive calls it. All four warps must execute the same instructions in
// the same order.
void follow_warpgroup(Warp& warp, Place place);
void start_wgmma(Warp& warp, WgmmaOperation operation);
void fence_wgmma(Warp& warp);
void wait_wgmma(Warp& warp, std::uint32_t pending);
// Computes the oldest product in flight. Its registers are returned only by the wait.
void compute_oldest_wgmma(Warp& warp);
// Each thread calls it for registers that the kernel gives to wgmma or takes back.
void pin_wgmma_registers(const void* first, std::uint32_t bytes, Place place);
// The warp has ended: nothing may be in flight.
void end_wgmma(Warp& warp);
// The CTA has ended: the warps of a warpgroup must have done the same.
void end_warpgroups(Cta& cta);

}  // namespace octavo::emulator
