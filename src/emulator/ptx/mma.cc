// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/mma.cuh: mma.sync on fragments.
#include "device/ptx/mma.cuh"

#include <algorithm>
#include <cstring>

#include "emulator/machine.h"
#include "emulator/ptx/tensor_cores.h"
#include "numeric/formats.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

constexpr int kRows = 16, kColumns = kTileColumns;

template <class Accumulator>
struct MmaLane {
  Accumulator* d;
  const u32* a;
  const u32* b;
  const Accumulator* c;
};
template <class Accumulator>
using MmaLanes = std::array<MmaLane<Accumulator>*, kWarpSize>;

// sm_90 has no FP8 mma.sync: the 8-bit values are converted to FP16 and take two steps of 16, first
// the first two of every four, then the others. The accumulator is added to their sum afterwards,
// and rounded.
constexpr int paired_place(int k) { return k % 4 / 2 * 16 + k / 4 * 2 + k % 2; }

// The layouts documented in mma.cuh: 32-bit word w of lane (g, t) of A holds row g + 8 (w % 2) and
// the 4 bytes at 4t + 16 (w / 2) of the 32 bytes of k; that of B holds column g, bytes 4t + 16 w.
template <class Tile>
void unpack(Number format, bool paired, u32 word, Tile& to, int at, int k, int stride) {
  const int bytes = number_bytes(format), count = paired ? 2 : 4 / bytes;
  for (int i = 0; i < 4 / bytes; i += count) {
    const std::uint32_t bits = word >> i * bytes * 8;
    const int place = at + (paired ? paired_place(k + i) : k + i) * stride;
    take_apart(format, &bits, count, to.significand + place, to.exponent + place, stride);
  }
}

// A warp often multiplies the same A by several B in turn, so the decoded A is kept.
template <class Lanes>
const TileA& gather_a(const Lanes& lanes, Number format, bool paired) {
  struct Last {
    Number format = Number::u8;
    bool paired = false;
    u32 words[kWarpSize][4] = {};
    bool any = false;
    TileA tile;
  };
  static thread_local Last last;
  u32 words[kWarpSize][4];
  for (std::size_t lane = 0; lane < kWarpSize; ++lane)
    std::memcpy(words[lane], lanes[lane]->a, sizeof words[lane]);
  if (last.any && last.format == format && last.paired == paired &&
      std::memcmp(words, last.words, sizeof words) == 0)
    return last.tile;
  last.any = true;
  last.format = format;
  last.paired = paired;
  std::memcpy(last.words, words, sizeof words);
  const int per_word = 4 / number_bytes(format), k = 8 * per_word;
  for (int lane = 0; lane < kWarpSize; ++lane)
    for (int w = 0; w < 4; ++w)
      unpack(format, paired, words[lane][w], last.tile, (lane / 4 + w % 2 * 8) * k,
             (lane % 4 + w / 2 * 4) * per_word, 1);
  return last.tile;
}

template <class Lanes>
void gather_b(const Lanes& lanes, Number format, bool paired, TileB& b) {
  const int per_word = 4 / number_bytes(format);
  for (int lane = 0; lane < kWarpSize; ++lane)
    for (int w = 0; w < 2; ++w)
      unpack(format, paired, lanes[static_cast<std::size_t>(lane)]->b[w], b, lane / 4,
             (lane % 4 + w * 4) * per_word, kTileColumns);
}

template <class Lanes, class D>
void gather_c(const Lanes& lanes, D* d) {
  for (int lane = 0; lane < kWarpSize; ++lane)
    for (int e = 0; e < 4; ++e)
      d[(lane / 4 + e / 2 * 8) * kColumns + lane % 4 * 2 + e % 2] =
          lanes[static_cast<std::size_t>(lane)]->c[e];
}
template <class Lanes, class D>
void scatter_d(const Lanes& lanes, const D* d) {
  for (int lane = 0; lane < kWarpSize; ++lane)
    for (int e = 0; e < 4; ++e)
      lanes[static_cast<std::size_t>(lane)]->d[e] =
          d[(lane / 4 + e / 2 * 8) * kColumns + lane % 4 * 2 + e % 2];
}

void mma(const char* name, Number a_format, Number b_format, MmaLane<float> lane, Site site) {
  meet({name, site}, lane, [&](Warp& warp, const MmaLanes<float>& lanes) {
    Machine& machine = *warp.lanes[0]->machine;
    machine.measures().count(name);
    machine.measures().count_products(
        emulator::name(b_format), std::int64_t{kRows} * kColumns * (32 / number_bytes(b_format)));
    const bool paired = number_bytes(a_format) == 1 && machine.launch().arch >= 90;
    const TileA& a = gather_a(lanes, a_format, paired);
    TileB b;
    float c[kRows * kColumns], d[kRows * kColumns] = {};
    gather_b(lanes, b_format, paired, b);
    gather_c(lanes, c);
    if (!paired) std::copy(std::begin(c), std::end(c), d);
    multiply({kRows, 32 / number_bytes(a_format), a_format, b_format}, a, b,
             mma_sync_rule(a_format, machine.launch().arch), d);
    if (paired)
      for (int i = 0; i < kRows * kColumns; ++i) d[i] = canonical(d[i] + c[i]);
    scatter_d(lanes, d);
  });
}

void mma(const char* name, Number a_format, Number b_format, MmaLane<i32> lane, Site site) {
  meet({name, site}, lane, [&](Warp& warp, const MmaLanes<i32>& lanes) {
    warp.lanes[0]->machine->measures().count(name);
    warp.lanes[0]->machine->measures().count_products(emulator::name(b_format),
                                                      std::int64_t{kRows} * kColumns * 32);
    const TileA& a = gather_a(lanes, a_format, false);
    TileB b;
    u32 d[kRows * kColumns];
    gather_b(lanes, b_format, false, b);
    gather_c(lanes, d);
    multiply({kRows, 32, a_format, b_format}, a, b, d);
    scatter_d(lanes, d);
  });
}

}  // namespace

void mma_m16n8k16_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4],
                      Site site) {
  mma("mma.m16n8k16.f16", Number::f16, Number::f16, MmaLane<float>{d, a, b, c}, site);
}
// FP16 inputs and outputs: d[0] holds row g, d[1] row g + 8, two columns each.
void mma_m16n8k16_f16_in_f16(u32 (&d)[2], const u32 (&a)[4], const u32 (&b)[2], const u32 (&c)[2],
                             Site site) {
  float wide[4], result[4];
  for (int e = 0; e < 4; ++e) wide[e] = f32_from_f16(static_cast<u16>(c[e / 2] >> e % 2 * 16));
  mma("mma.m16n8k16.f16.f16", Number::f16, Number::f16, MmaLane<float>{result, a, b, wide}, site);
  for (int h = 0; h < 2; ++h)
    d[h] = f16_from_f32(result[h * 2]) | static_cast<u32>(f16_from_f32(result[h * 2 + 1])) << 16;
}
void mma_m16n8k16_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4],
                       Site site) {
  mma("mma.m16n8k16.bf16", Number::bf16, Number::bf16, MmaLane<float>{d, a, b, c}, site);
}
void mma_m16n8k32_e4m3(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4],
                       Site site) {
  mma("mma.m16n8k32.e4m3", Number::e4m3, Number::e4m3, MmaLane<float>{d, a, b, c}, site);
}
void mma_m16n8k32_e5m2(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4],
                       Site site) {
  mma("mma.m16n8k32.e5m2", Number::e5m2, Number::e5m2, MmaLane<float>{d, a, b, c}, site);
}
void mma_m16n8k32_e4m3_e5m2(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2],
                            const float (&c)[4], Site site) {
  mma("mma.m16n8k32.e4m3.e5m2", Number::e4m3, Number::e5m2, MmaLane<float>{d, a, b, c}, site);
}
void mma_m16n8k32_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const i32 (&c)[4],
                     Site site) {
  mma("mma.m16n8k32.s8", Number::s8, Number::s8, MmaLane<i32>{d, a, b, c}, site);
}
void mma_m16n8k32_u8_s8(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], const i32 (&c)[4],
                        Site site) {
  mma("mma.m16n8k32.u8.s8", Number::u8, Number::s8, MmaLane<i32>{d, a, b, c}, site);
}

}  // namespace octavo::ptx
