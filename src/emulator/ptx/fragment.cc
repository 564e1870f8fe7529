// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/fragment.cuh.
#include "device/ptx/fragment.cuh"

#include "device/ptx/math.cuh"
#include "emulator/machine.h"
#include "emulator/memory/access.h"
#include "numeric/formats.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

template <class T>
T shuffled_from(T x, u32 from, Site site) {
  struct Lane {
    T value;
    u32 from;
    T result;
  };
  Lane lane{x, from, 0};
  meet({"shfl.sync.idx", site}, lane, [](Warp&, const auto& lanes) {
    for (auto* l : lanes) l->result = lanes[l->from % kWarpSize]->value;
  });
  return lane.result;
}

}  // namespace

float shuffle_from(float x, u32 from, Site site) { return shuffled_from(x, from, site); }
i32 shuffle_from(i32 x, u32 from, Site site) { return shuffled_from(x, from, site); }

u32 transpose_matrix(u32 x, Site site) {
  struct Lane {
    u32 value;
    u32 result;
  };
  Lane lane{x, 0};
  meet({"movmatrix.trans", site}, lane, [](Warp&, const auto& lanes) {
    const auto word = [&lanes](std::size_t row, std::size_t column) {
      return lanes[row * 4 + column / 2]->value >> (column % 2 * 16) & 0xffffu;
    };
    for (std::size_t i = 0; i < kWarpSize; ++i)
      lanes[i]->result = word(i % 4 * 2, i / 4) | word(i % 4 * 2 + 1, i / 4) << 16;
  });
  return lane.result;
}

float load_shared_f16(u32 address, Site site) {
  u16 x = 0;
  load_shared({"ld.shared.b16", site}, address, &x, sizeof x);
  return f32_from_f16(x);
}

void f16x4_from_e4m3x4(u32& low, u32& high, u32 x) {
  low = f16x2_from_e4m3x2(x & 0xffff);
  high = f16x2_from_e4m3x2(x >> 16);
}

}  // namespace octavo::ptx
