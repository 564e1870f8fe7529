// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/memory.cuh, prefetch.cuh, stmatrix.cuh and f64.cuh: loads, stores,
// matrices, cp.async.
#include "device/ptx/memory.cuh"

#include <cstring>

#include "device/ptx/f64.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/stmatrix.cuh"
#include "emulator/memory/access.h"

namespace octavo::ptx {

using namespace emulator;

namespace {

template <class T>
T loaded_shared(const char* name, u32 address, Site site) {
  T x;
  load_shared({name, site}, address, &x, sizeof x);
  return x;
}
template <class T>
T loaded_global(const char* name, const void* from, GlobalUse use, Site site) {
  T x;
  load_global({name, site}, from, &x, sizeof x, use);
  return x;
}

struct MatrixLane {
  Thread* thread;
  u32* r;
  u32 address;
};

// Lane 8i + j supplies the address of row j of matrix i.
template <int kMatrices, bool kTransposed>
void load_matrices(const char* name, u32 (&r)[kMatrices], u32 address, Site site) {
  const Place place{name, site};
  MatrixLane lane{&self(), r, address};
  meet(place, lane, [&](Warp& warp, const std::array<MatrixLane*, kWarpSize>& lanes) {
    u16 rows[kMatrices * 8][8] = {};
    u32 addresses[kMatrices * 8];
    SharedMemory& shared = warp.cta->shared;
    for (std::size_t i = 0; i < kMatrices * 8; ++i) {
      Thread& t = *lanes[i]->thread;
      addresses[i] = lanes[i]->address;
      const auto offset = shared_offset(t, place, lanes[i]->address, 16, 16);
      if (!offset) continue;
      shared.read(t.by(place), *offset, 16);
      std::memcpy(rows[i], shared.at(*offset), 16);
    }
    warp.lanes[0]->machine->measures().rows(place, addresses, kMatrices * 8);
    for (std::size_t l = 0; l < kWarpSize; ++l) {
      const std::size_t g = l / 4, t = l % 4 * 2;
      for (std::size_t m = 0; m < kMatrices; ++m) {
        const u32 low = kTransposed ? rows[m * 8 + t][g] : rows[m * 8 + g][t];
        const u32 high = kTransposed ? rows[m * 8 + t + 1][g] : rows[m * 8 + g][t + 1];
        lanes[l]->r[m] = low | high << 16;
      }
    }
  });
}

// The inverse: lane l supplies words (l % 4) * 2 and the next of row l / 4.
struct StoredLane {
  Thread* thread;
  const u32* r;
  u32 address;
};
template <int kMatrices, bool kTransposed>
void store_matrices(const char* name, u32 address, const u32 (&r)[kMatrices], Site site) {
  const Place place{name, site};
  StoredLane lane{&self(), r, address};
  meet(place, lane, [&](Warp& warp, const std::array<StoredLane*, kWarpSize>& lanes) {
    u16 rows[kMatrices * 8][8];
    u32 addresses[kMatrices * 8];
    for (std::size_t l = 0; l < kWarpSize; ++l) {
      const std::size_t g = l / 4, t = l % 4 * 2;
      for (std::size_t m = 0; m < kMatrices; ++m)
        for (std::size_t e = 0; e < 2; ++e)
          (kTransposed ? rows[m * 8 + t + e][g] : rows[m * 8 + g][t + e]) =
              static_cast<u16>(lanes[l]->r[m] >> e * 16);
    }
    SharedMemory& shared = warp.cta->shared;
    for (std::size_t i = 0; i < kMatrices * 8; ++i) {
      Thread& t = *lanes[i]->thread;
      addresses[i] = lanes[i]->address;
      const auto offset = shared_offset(t, place, lanes[i]->address, 16, 16);
      if (!offset) continue;
      shared.write(t.by(place), *offset, 16);
      std::memcpy(shared.at(*offset), rows[i], 16);
    }
    warp.lanes[0]->machine->measures().rows(place, addresses, kMatrices * 8);
  });
}

// Copies the first `existing` bytes; the others become zeros.
void copy_async(const char* name, u32 dst, const void* src, u32 bytes, u32 existing, Site site) {
  Thread& t = self();
  Machine& machine = *t.machine;
  const Place place{name, site};
  const auto offset = shared_offset(t, place, dst, bytes, bytes);
  if (!offset ||
      !global_allowed(place, src, existing, existing > 0 ? bytes : 1, GlobalMemory::Use::read))
    return;
  machine.measures().access(t.warp->measured_as, t.lane, place, true, dst, bytes);
  if (existing > 0)
    machine.measures().access(t.warp->measured_as, t.lane, place, false,
                              reinterpret_cast<std::uintptr_t>(src), existing);
  if (t.copies.actor == kNobody) t.copies.actor = t.cluster().new_actor(Acts::cp_async, &t);
  // The destination is being written from now until a wait.
  const u32 number = t.copies.add({*offset, static_cast<const u8*>(src), bytes, existing});
  if (existing > 0)
    machine.accesses().note({&t, {t.copies.actor, number, place}, Proxy::generic}, GlobalUse::read,
                            src, existing);
  t.cta->shared.write({&t, {t.copies.actor, number, place}, Proxy::generic}, *offset, bytes);
}

void wait_for_copies(u32 pending, Site site) {
  Thread& t = self();
  if (t.machine->mutated({"cp.async.wait_group", site}, t.copies.would_wait(pending))) return;
  if (t.copies.actor == kNobody) return;
  t.known.learn(t.copies.actor, t.copies.wait(pending, t.cta->shared));
}

}  // namespace

u32 shared_base() { return SharedMemory::kBase; }

float load_shared_f32(u32 address, Site site) {
  return loaded_shared<float>("ld.shared.b32", address, site);
}
void store_shared_f32(u32 address, float x, Site site) {
  store_shared({"st.shared.b32", site}, address, &x, 4);
}
void store_shared_b16(u32 address, u16 x, Site site) {
  store_shared({"st.shared.b16", site}, address, &x, 2);
}
void store_shared_b8(u32 address, u8 x, Site site) {
  store_shared({"st.shared.b8", site}, address, &x, 1);
}
void store_shared_b32(u32 address, u32 x, Site site) {
  store_shared({"st.shared.b32", site}, address, &x, 4);
}
void store_shared_b128(u32 address, const u32 (&x)[4], Site site) {
  store_shared({"st.shared.v4.b32", site}, address, x, 16);
}
void load_shared_b128(u32 address, u32 (&x)[4], Site site) {
  load_shared({"ld.shared.v4.b32", site}, address, x, 16);
}
void load_shared_b64(u32 address, u32& x0, u32& x1, Site site) {
  u32 x[2];
  load_shared({"ld.shared.v2.b32", site}, address, x, 8);
  x0 = x[0];
  x1 = x[1];
}

void ldmatrix_x4(u32 (&r)[4], u32 address, Site site) {
  load_matrices<4, false>("ldmatrix.x4", r, address, site);
}
void ldmatrix_x4_trans(u32 (&r)[4], u32 address, Site site) {
  load_matrices<4, true>("ldmatrix.x4.trans", r, address, site);
}
void ldmatrix_x2(u32 (&r)[2], u32 address, Site site) {
  load_matrices<2, false>("ldmatrix.x2", r, address, site);
}
void ldmatrix_x2_trans(u32 (&r)[2], u32 address, Site site) {
  load_matrices<2, true>("ldmatrix.x2.trans", r, address, site);
}

void stmatrix_x4(u32 address, const u32 (&r)[4], Site site) {
  store_matrices<4, false>("stmatrix.x4", address, r, site);
}
void stmatrix_x4_trans(u32 address, const u32 (&r)[4], Site site) {
  store_matrices<4, true>("stmatrix.x4.trans", address, r, site);
}
void stmatrix_x2(u32 address, const u32 (&r)[2], Site site) {
  store_matrices<2, false>("stmatrix.x2", address, r, site);
}

void cp_async_16(u32 dst, const void* src, bool exists, Site site) {
  copy_async("cp.async.cg", dst, src, 16, exists ? 16 : 0, site);
}
void cp_async_16_part(u32 dst, const void* src, u32 bytes, Site site) {
  copy_async("cp.async.cg", dst, src, 16, bytes, site);
}
u64 l2_evict_last() { return 2; }  // the emulator never evicts anything
void cp_async_16_hinted(u32 dst, const void* src, bool exists, u64 /*policy*/, Site site) {
  copy_async("cp.async.cg", dst, src, 16, exists ? 16 : 0, site);
}
template <int kBytes>
void cp_async_narrow(u32 dst, const void* src, bool exists, Site site) {
  copy_async("cp.async.ca", dst, src, kBytes, exists ? kBytes : 0, site);
}
template void cp_async_narrow<4>(u32, const void*, bool, Site);
template void cp_async_narrow<8>(u32, const void*, bool, Site);

void cp_async_commit(Site site) {
  Thread& t = self();
  // An empty group counts among the others, but not if there has never been a copy.
  if (!t.machine->mutated({"cp.async.commit_group", site}, t.copies.last() > 0)) t.copies.commit();
}
template <int kPending>
void cp_async_wait(Site site) {
  wait_for_copies(kPending, site);
}
template void cp_async_wait<0>(Site);
template void cp_async_wait<1>(Site);
template void cp_async_wait<2>(Site);
template void cp_async_wait<3>(Site);
template void cp_async_wait<4>(Site);
template void cp_async_wait<5>(Site);
template void cp_async_wait<6>(Site);
template void cp_async_wait<7>(Site);

u16 load_global_b16(const void* p, Site site) {
  return loaded_global<u16>("ld.global.nc.b16", p, GlobalUse::non_coherent_read, site);
}
u8 load_global_b8(const void* p, Site site) {
  return loaded_global<u8>("ld.global.nc.b8", p, GlobalUse::non_coherent_read, site);
}
float load_global_f32(const float* p, Site site) {
  return loaded_global<float>("ld.global.nc.b32", p, GlobalUse::non_coherent_read, site);
}
i32 load_global_i32(const i32* p, Site site) {
  return loaded_global<i32>("ld.global.nc.b32", p, GlobalUse::non_coherent_read, site);
}
u16 load_coherent_b16(const void* p, Site site) {
  return loaded_global<u16>("ld.global.b16", p, GlobalUse::read, site);
}
u8 load_coherent_b8(const void* p, Site site) {
  return loaded_global<u8>("ld.global.b8", p, GlobalUse::read, site);
}
i32 load_coherent_i32(const i32* p, Site site) {
  return loaded_global<i32>("ld.global.b32", p, GlobalUse::read, site);
}
void prefetch_l2(const void* /*p*/, Site /*site*/) {}
float load_written_f32(const float* p, Site site) {
  return loaded_global<float>("ld.relaxed.gpu.global.f32", p, GlobalUse::strong_read, site);
}
float load_written_f32(const float* p, bool exists, Site site) {
  return exists ? load_written_f32(p, site) : 0.0f;
}

void store_global_b8(void* p, u8 x, Site site) { store_global({"st.global.b8", site}, p, &x, 1); }
void store_global_b16(void* p, u16 x, Site site) {
  store_global({"st.global.b16", site}, p, &x, 2);
}
void store_global_b32(void* p, u32 x, Site site) {
  store_global({"st.global.b32", site}, p, &x, 4);
}
void store_global_b64(void* p, u32 x0, u32 x1, Site site) {
  const u32 x[2] = {x0, x1};
  store_global({"st.global.v2.b32", site}, p, x, 8);
}
void store_global_b128(void* p, const u32 (&x)[4], Site site) {
  store_global({"st.global.v4.b32", site}, p, x, 16);
}
void store_global_f32(float* p, float x, Site site) {
  store_global({"st.global.b32", site}, p, &x, 4);
}
double load_global_f64(const double* p, Site site) {
  return loaded_global<double>("ld.global.f64", p, GlobalUse::read, site);
}
void store_global_f64(double* p, double x, Site site) {
  store_global({"st.global.f64", site}, p, &x, 8);
}

}  // namespace octavo::ptx
