// Emulation of device/ptx/rounded.cuh and vector_memory.cuh. The build does not contract to FMA.
#include <cmath>

#include "device/ptx/rounded.cuh"
#include "device/ptx/vector_memory.cuh"
#include "emulator/access.h"

namespace octavo::ptx {

float add_rn(float a, float b) { return a + b; }
float subtract_rn(float a, float b) { return a - b; }
float multiply_rn(float a, float b) { return a * b; }
float absolute(float a) { return std::fabs(a); }
float divide_rn(float a, float b) { return a / b; }

u32 load_global_b32(const void* p, Site site) {
  u32 x = 0;
  emulator::load_global({"ld.global.b32", site}, p, &x, 4);
  return x;
}
void load_global_b64(const void* p, u32& x0, u32& x1, Site site) {
  u32 x[2] = {};
  emulator::load_global({"ld.global.v2.b32", site}, p, x, 8);
  x0 = x[0];
  x1 = x[1];
}
void load_global_b128(const void* p, u32 (&x)[4], Site site) {
  emulator::load_global({"ld.global.v4.b32", site}, p, x, 16);
}

}  // namespace octavo::ptx
