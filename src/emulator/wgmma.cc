// SPDX-License-Identifier: Apache-2.0
#include "emulator/wgmma.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "emulator/machine.h"
#include "emulator/memory/tensor_map.h"
#include "emulator/ptx/tensor_cores.h"
#include "numeric/formats.h"

namespace octavo::emulator {
namespace {

using ptx::WgmmaType;

// A NaN in every format, and an unlikely result of any computation.
constexpr std::uint32_t kInFlight = 0x7fa5ffa5;
constexpr int kRowsOfWarp = 16;

Number number_of(WgmmaType type) {
  switch (type) {
    case WgmmaType::bf16:
      return Number::bf16;
    case WgmmaType::e4m3:
      return Number::e4m3;
    case WgmmaType::e5m2:
      return Number::e5m2;
    case WgmmaType::s8:
      return Number::s8;
    case WgmmaType::u8:
      return Number::u8;
    default:
      return Number::f16;
  }
}

std::size_t words_of(const ptx::WgmmaShape& shape) {
  return static_cast<std::size_t>(shape.n) / (shape.d == WgmmaType::f16 ? 4 : 2);
}

// The checked offset of 16 bytes of an operand; if they are out of bounds, reports a finding and
// returns 0.
std::uint32_t inside(Warp& warp, std::uint32_t address, Place place) {
  const std::uint32_t offset = address - SharedMemory::kBase;
  const std::uint32_t bytes = warp.cta->shared.bytes();
  if (address >= SharedMemory::kBase && offset < bytes && bytes - offset >= 16) return offset;
  warp.lanes[0]->machine->find(
      Hazard::out_of_bounds, place,
      fmt::format("the matrix descriptor reaches beyond the CTA's {} bytes", bytes),
      fmt::format("shared {:#x}", address), {}, warp.lanes[0]);
  return 0;
}

// Visits the chunks of 16 bytes of one operand: visit(address, index along M or N, k), of a chunk's
// first element. Its other elements follow along K, or along M or N if mn_major.
template <class Visit>
void for_each_chunk(const MatrixDescriptor& d, bool mn_major, std::uint32_t first,
                    std::uint32_t count, std::uint32_t bytes, const Visit& visit) {
  const std::uint32_t elements = 16 / bytes, k_count = 32 / bytes;
  const std::uint32_t index_step = mn_major ? elements : 1, k_step = mn_major ? 1 : elements;
  for (std::uint32_t i = first; i < first + count; i += index_step)
    for (std::uint32_t k = 0; k < k_count; k += k_step)
      visit(mn_major ? mn_major_address(d, i, k) : k_major_address(d, i, k * bytes), i - first, k);
}

// Records that the operand is read from now until the group is waited for.
void note_reads(Warp& warp, const WgmmaOperation& op, std::uint64_t descriptor, bool mn_major,
                std::uint32_t first, std::uint32_t count, Number format) {
  const By by{warp.lanes[0], {warp.wgmma.actor, op.group, op.place}, Proxy::async};
  const auto d = decode_descriptor(descriptor);
  for_each_chunk(d, mn_major, first, count, static_cast<std::uint32_t>(number_bytes(format)),
                 [&](std::uint32_t address, std::uint32_t, std::uint32_t) {
                   warp.cta->shared.read(by, inside(warp, address, op.place), 16);
                 });
}

// Decodes an operand into the places of a tile, index_stride and k_stride apart.
template <class Tile>
void load_operand(Warp& warp, const WgmmaOperation& op, std::uint64_t descriptor, bool mn_major,
                  std::uint32_t first, std::uint32_t count, Number format, Tile& to,
                  std::uint32_t index_stride, std::uint32_t k_stride) {
  const auto bytes = static_cast<std::uint32_t>(number_bytes(format));
  const auto stride = static_cast<int>(mn_major ? index_stride : k_stride);
  for_each_chunk(decode_descriptor(descriptor), mn_major, first, count, bytes,
                 [&](std::uint32_t address, std::uint32_t index, std::uint32_t k) {
                   const std::uint32_t at = index * index_stride + k * k_stride;
                   take_apart(format, warp.cta->shared.at(inside(warp, address, op.place)),
                              static_cast<int>(16 / bytes), to.significand + at, to.exponent + at,
                              stride);
                 });
}

void load_a(Warp& warp, const WgmmaOperation& op, Number format, TileA& a) {
  const int bytes = number_bytes(format), k = 32 / bytes, per_word = 4 / bytes;
  if (op.a_in_registers) {
    for (int lane = 0; lane < kWarpSize; ++lane)
      for (int w = 0; w < 4; ++w) {
        const int at = (lane / 4 + w % 2 * 8) * k + (lane % 4 + w / 2 * 4) * per_word;
        take_apart(format,
                   &op.a_values[static_cast<std::size_t>(lane)][static_cast<std::size_t>(w)],
                   per_word, a.significand + at, a.exponent + at, 1);
      }
  } else {
    const auto first = static_cast<std::uint32_t>(warp.index % 4 * kRowsOfWarp);
    load_operand(warp, op, op.a, op.shape.transpose_a, first, kRowsOfWarp, format, a,
                 static_cast<std::uint32_t>(k), 1);
  }
}

// The word, and the half of it, that holds (row, column) of an 8-column tile in a lane's block.
struct Slot {
  std::size_t lane, word;
  int half;
};
Slot slot_of(WgmmaType d, int tile, int row, int column) {
  const auto lane = static_cast<std::size_t>(row % 8 * 4 + column / 2);
  if (d == WgmmaType::f16) return {lane, static_cast<std::size_t>(tile * 2 + row / 8), column % 2};
  return {lane, static_cast<std::size_t>(tile * 4 + row / 8 * 2 + column % 2), 0};
}

void multiply_tile(Warp& warp, const WgmmaOperation& op, const TileA& a, int tile,
                   WgmmaQueue::Block& block) {
  const Number a_format = number_of(op.shape.a), b_format = number_of(op.shape.b);
  const int k = 32 / number_bytes(a_format);
  TileB b;
  load_operand(warp, op, op.b, op.shape.transpose_b, static_cast<std::uint32_t>(tile * 8),
               kTileColumns, b_format, b, 1, kTileColumns);
  const TileShape shape{kRowsOfWarp, k, a_format, b_format};
  const auto word = [&](int row, int column) -> std::uint32_t& {
    const Slot s = slot_of(op.shape.d, tile, row, column);
    return block.values[s.lane * block.words + s.word];
  };
  const auto for_each = [&](const auto& visit) {
    for (int row = 0; row < kRowsOfWarp; ++row)
      for (int column = 0; column < kTileColumns; ++column)
        visit(row * kTileColumns + column, word(row, column),
              slot_of(op.shape.d, tile, row, column).half);
  };
  if (op.shape.d == WgmmaType::s32) {
    std::uint32_t d[kRowsOfWarp * kTileColumns] = {};
    if (op.accumulate) for_each([&](int i, std::uint32_t w, int) { d[i] = w; });
    multiply(shape, a, b, d);
    for_each([&](int i, std::uint32_t& w, int) { w = d[i]; });
    return;
  }
  float d[kRowsOfWarp * kTileColumns] = {};
  const bool half = op.shape.d == WgmmaType::f16;
  if (op.accumulate)
    for_each([&](int i, std::uint32_t w, int h) {
      if (half)
        d[i] = f32_from_f16(static_cast<std::uint16_t>(w >> h * 16));
      else
        std::memcpy(&d[i], &w, 4);
    });
  multiply(shape, a, b, half ? wgmma_half_rule(a_format) : wgmma_rule(a_format), d);
  for_each([&](int i, std::uint32_t& w, int h) {
    if (half) {
      const std::uint32_t shift = static_cast<std::uint32_t>(h) * 16;
      w = (w & ~(0xffffu << shift)) | static_cast<std::uint32_t>(f16_from_f32(d[i])) << shift;
    } else {
      std::memcpy(&w, &d[i], 4);
    }
  });
}

// Returns the registers to the kernel, if it has not changed them.
void return_registers(Warp& warp, const WgmmaQueue::Block& block) {
  for (std::size_t lane = 0; lane < kWarpSize; ++lane)
    for (std::size_t i = 0; i < block.words; ++i) {
      if (block.registers[lane][i] != kInFlight)
        warp.lanes[0]->machine->find(
            Hazard::register_in_flight, block.place,
            fmt::format("accumulator register {} was changed before the wgmma was waited for", i),
            "", {}, warp.lanes[lane]);
      block.registers[lane][i] = block.values[lane * block.words + i];
    }
}

void compute(Warp& warp, WgmmaOperation& op) {
  if (op.computed) return;
  op.computed = true;
  WgmmaQueue::Block& block = warp.wgmma.accumulators.at(op.lanes[0].d);
  TileA a;
  load_a(warp, op, number_of(op.shape.a), a);
  for (int tile = 0; tile < op.shape.n / 8; ++tile) multiply_tile(warp, op, a, tile, block);
}

void finish(Warp& warp, WgmmaOperation& op) {
  compute(warp, op);
  if (op.a_in_registers)
    for (std::size_t lane = 0; lane < kWarpSize; ++lane)
      if (std::memcmp(op.lanes[lane].a, op.a_values[lane].data(), 16) != 0)
        warp.lanes[0]->machine->find(Hazard::register_in_flight, op.place,
                                     "registers of A were changed before the wgmma was waited for",
                                     "", {}, warp.lanes[lane]);
  WgmmaQueue::Block& block = warp.wgmma.accumulators.at(op.lanes[0].d);
  if (--block.operations > 0) return;
  return_registers(warp, block);
  warp.wgmma.accumulators.erase(op.lanes[0].d);
}

// Finds pinned registers whose values have changed since the last fence.
void check_fence(Warp& warp, const WgmmaOperation& op, bool of_a, std::size_t words) {
  for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
    const void* const first = of_a ? op.lanes[lane].a : op.lanes[lane].d;
    for (const WgmmaQueue::Pinned& pinned : warp.wgmma.pinned[lane]) {
      if (pinned.registers != first || pinned.values.size() != words ||
          std::memcmp(first, pinned.values.data(), words * 4) == 0)
        continue;
      warp.lanes[0]->machine->find(Hazard::wgmma_order, op.place,
                                   "its registers were changed after the last wgmma.fence", "", {},
                                   warp.lanes[lane]);
      return;
    }
  }
}

}  // namespace

MatrixDescriptor decode_descriptor(std::uint64_t d) {
  const auto field = [d](int bit) { return static_cast<std::uint32_t>(d >> bit & 0x3fff) * 16; };
  constexpr std::uint32_t kSwizzles[] = {0, 128, 64, 32};
  return {field(0), field(16), field(32), kSwizzles[d >> 62]};
}

std::uint32_t k_major_address(const MatrixDescriptor& d, std::uint32_t index, std::uint32_t byte) {
  if (d.swizzle_bytes == 0)  // 8 rows of 16 bytes at a time
    return d.start + index / 8 * d.stride + byte / 16 * d.leading + index % 8 * 16 + byte % 16;
  return swizzled(d.start + index / 8 * d.stride + index % 8 * d.swizzle_bytes + byte,
                  d.swizzle_bytes);
}

std::uint32_t mn_major_address(const MatrixDescriptor& d, std::uint32_t index, std::uint32_t k) {
  if (d.swizzle_bytes == 0)
    return d.start + index / 8 * d.stride + k / 8 * d.leading + k % 8 * 16 + index % 8 * 2;
  const std::uint32_t columns = d.swizzle_bytes / 2;
  return swizzled(d.start + index / columns * d.leading + k / 8 * d.stride +
                      k % 8 * d.swizzle_bytes + index % columns * 2,
                  d.swizzle_bytes);
}

void start_wgmma(Warp& warp, WgmmaOperation op) {
  WgmmaQueue& queue = warp.wgmma;
  Machine& machine = *warp.lanes[0]->machine;
  machine.measures().count("wgmma");
  if (queue.actor == kNobody)
    queue.actor = warp.cta->cluster->new_actor(Acts::wgmma, warp.lanes[0]);
  if (!queue.fenced)
    machine.find(Hazard::wgmma_order, op.place,
                 "no wgmma.fence since the warp last had its registers", "", {}, warp.lanes[0]);
  op.group = queue.open;
  const Number a = number_of(op.shape.a), b = number_of(op.shape.b);
  // In the format of B, which is the operand that the kernel was given.
  machine.measures().count_products(
      name(b), std::int64_t{kRowsOfWarp} * op.shape.n * (32 / number_bytes(b)));
  if (!op.a_in_registers)
    note_reads(warp, op, op.a, op.shape.transpose_a,
               static_cast<std::uint32_t>(warp.index % 4 * kRowsOfWarp), kRowsOfWarp, a);
  note_reads(warp, op, op.b, op.shape.transpose_b, 0, static_cast<std::uint32_t>(op.shape.n), b);

  const std::size_t words = words_of(op.shape);
  auto [at, fresh] = queue.accumulators.try_emplace(op.lanes[0].d);
  WgmmaQueue::Block& block = at->second;
  if (fresh) {
    if (op.accumulate) check_fence(warp, op, false, words);
    block.words = words;
    block.values.resize(kWarpSize * words);
    for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
      block.registers[lane] = static_cast<std::uint32_t*>(op.lanes[lane].d);
      std::memcpy(block.values.data() + lane * words, op.lanes[lane].d, words * 4);
      std::fill_n(block.registers[lane], words, kInFlight);
    }
  } else if (block.words != words) {
    machine.stop(Hazard::wgmma_order, op.place,
                 "an accumulator in flight is used with another shape");
  }
  block.place = op.place;
  ++block.operations;
  if (op.a_in_registers) {
    check_fence(warp, op, true, 4);
    for (std::size_t lane = 0; lane < kWarpSize; ++lane)
      std::memcpy(op.a_values[lane].data(), op.lanes[lane].a, 16);
  }
  queue.in_flight.push_back(std::move(op));
}

void fence_wgmma(Warp& warp) {
  WgmmaQueue& queue = warp.wgmma;
  queue.fenced = true;
  for (auto& lane : queue.pinned)
    for (WgmmaQueue::Pinned& pinned : lane)
      std::memcpy(pinned.values.data(), pinned.registers, pinned.values.size() * 4);
}

void wait_wgmma(Warp& warp, std::uint32_t pending) {
  WgmmaQueue& queue = warp.wgmma;
  const std::uint32_t committed = queue.open - 1;
  const std::uint32_t last = committed > pending ? committed - pending : 0;
  std::size_t done = 0;
  while (done < queue.in_flight.size() && queue.in_flight[done].group <= last)
    finish(warp, queue.in_flight[done++]);
  queue.in_flight.erase(queue.in_flight.begin(),
                        queue.in_flight.begin() + static_cast<std::ptrdiff_t>(done));
  if (done > 0) queue.fenced = false;
  if (queue.actor == kNobody) return;
  for (Thread* lane : warp.lanes) lane->known.learn(queue.actor, last);
}

void compute_oldest_wgmma(Warp& warp) {
  for (WgmmaOperation& op : warp.wgmma.in_flight)
    if (!op.computed) {
      compute(warp, op);
      return;
    }
}

void pin_wgmma_registers(const void* first, std::uint32_t bytes, Place place) {
  Thread& t = self();
  WgmmaQueue& queue = t.warp->wgmma;
  const auto lane = static_cast<std::size_t>(t.lane);
  const auto at = reinterpret_cast<std::uintptr_t>(first);
  for (const auto& [key, block] : queue.accumulators) {
    const auto begin = reinterpret_cast<std::uintptr_t>(block.registers[lane]);
    if (at < begin + block.words * 4 && begin < at + bytes)
      t.machine->find(Hazard::register_in_flight, place,
                      "the accumulator is used before its wgmma was committed and waited for", "",
                      block.place);
  }
  for (const WgmmaQueue::Pinned& pinned : queue.pinned[lane])
    if (pinned.registers == first && pinned.values.size() == bytes / 4) return;
  const auto* const registers = static_cast<const std::uint32_t*>(first);
  queue.pinned[lane].push_back({registers, {registers, registers + bytes / 4}});
}

void end_wgmma(Warp& warp) {
  const WgmmaQueue& queue = warp.wgmma;
  if (!queue.in_flight.empty())
    warp.lanes[0]->machine->find(Hazard::wgmma_order, queue.in_flight[0].place,
                                 "the warp ends before this was waited for", "", {}, warp.lanes[0]);
}

void follow_warpgroup(Warp& warp, Place place) {
  WarpgroupHistory& history = warp.cta->warpgroups[static_cast<std::size_t>(warp.index / 4)];
  const auto at = static_cast<std::size_t>(warp.wgmma.steps++ - history.first);
  if (at == history.places.size())
    history.places.push_back(place);
  else if (!(history.places[at] == place))
    warp.lanes[0]->machine->find(
        Hazard::partial_warp, place,
        "another warp of the warpgroup came to another instruction, and all four must come to the "
        "same",
        "", history.places[at], warp.lanes[0]);
  const std::size_t leader = static_cast<std::size_t>(warp.index / 4 * 4);
  std::int64_t slowest = warp.wgmma.steps;
  for (std::size_t i = leader; i < std::min(leader + 4, warp.cta->warps.size()); ++i)
    slowest = std::min(slowest, warp.cta->warps[i].wgmma.steps);
  for (; history.first < slowest; ++history.first) history.places.pop_front();
}

void end_warpgroups(Cta& cta) {
  for (const Warp& warp : cta.warps) {
    const Warp& leader = cta.warps[static_cast<std::size_t>(warp.index / 4 * 4)];
    if (leader.wgmma.steps == warp.wgmma.steps) continue;
    warp.lanes[0]->machine->find(
        Hazard::partial_warp, {"wgmma", {}},
        fmt::format("warps {} and {} of a warpgroup executed {} and {} instructions of wgmma",
                    leader.index, warp.index, leader.wgmma.steps, warp.wgmma.steps),
        "", {}, warp.lanes[0]);
  }
}

}  // namespace octavo::emulator
