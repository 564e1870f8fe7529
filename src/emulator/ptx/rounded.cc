// SPDX-License-Identifier: Apache-2.0
// Emulation of device/ptx/rounded.cuh and vector_memory.cuh. The build does not contract to FMA.
#include "device/ptx/rounded.cuh"

#include <cmath>

#include "device/ptx/vector_memory.cuh"
#include "emulator/memory/access.h"

namespace octavo::ptx {

float add_rn(float a, float b) { return a + b; }
float subtract_rn(float a, float b) { return a - b; }
float multiply_rn(float a, float b) { return a * b; }
float absolute(float a) { return std::fabs(a); }
float divide_rn(float a, float b) { return a / b; }

namespace {

template <u32 kWords>
void load_words(const char* name, const void* p, u32 (&x)[kWords], emulator::GlobalUse use,
                Site site) {
  emulator::load_global({name, site}, p, x, kWords * 4, use);
}

}  // namespace

u32 load_global_b32(const void* p, Site site) {
  u32 x[1];
  load_words("ld.global.nc.b32", p, x, emulator::GlobalUse::non_coherent_read, site);
  return x[0];
}
void load_global_b64(const void* p, u32& x0, u32& x1, Site site) {
  u32 x[2];
  load_words("ld.global.nc.v2.b32", p, x, emulator::GlobalUse::non_coherent_read, site);
  x0 = x[0];
  x1 = x[1];
}
void load_global_b128(const void* p, u32 (&x)[4], Site site) {
  load_words("ld.global.nc.v4.b32", p, x, emulator::GlobalUse::non_coherent_read, site);
}
u32 load_coherent_b32(const void* p, Site site) {
  u32 x[1];
  load_words("ld.global.b32", p, x, emulator::GlobalUse::read, site);
  return x[0];
}
void load_coherent_b64(const void* p, u32& x0, u32& x1, Site site) {
  u32 x[2];
  load_words("ld.global.v2.b32", p, x, emulator::GlobalUse::read, site);
  x0 = x[0];
  x1 = x[1];
}
void load_coherent_b128(const void* p, u32 (&x)[4], Site site) {
  load_words("ld.global.v4.b32", p, x, emulator::GlobalUse::read, site);
}

}  // namespace octavo::ptx
