// SPDX-License-Identifier: Apache-2.0
// Output that needs more than a plain store: 8-bit values, quantized with the caller's scale and
// the roundings of numeric/formats.h, and the amax of O before quantization.
#pragma once

#include "device/core/params.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/quantize/encode.cuh"

namespace octavo {

// The factor that quantizes O. An earlier grid may have written the scale; the caller has already
// waited for that grid.
OCTAVO_DEVICE float inverse_out_scale(const OutputParams& o, i32 sequence, i32 head) {
  const float* const scale = o.scales + sequence * o.scale_batch + head * o.scale_head;
  return ptx::divide_rn(1.0f, ptx::load_written_f32(scale));
}

// Two neighbouring values quantized, in the low sixteen bits.
template <Element kOut>
OCTAVO_DEVICE u32 quantize_pair(float low, float high, float inverse) {
  return quantizer::encode_pair<kOut>(low, high, inverse, inverse);
}

// Values that are not finite are ignored.
OCTAVO_DEVICE float larger_magnitude(float amax, float x) {
  return ptx::max_f32(amax, quantizer::finite_magnitude(x));
}

// The maximum over the 2^kBits lanes that differ in the lowest bits. The whole warp calls it.
template <int kBits>
OCTAVO_DEVICE float largest_of_lanes(float amax) {
  OCTAVO_UNROLL
  for (int bit = 0; bit < kBits; ++bit) amax = ptx::max_f32(amax, ptx::shuffle_xor(amax, 1 << bit));
  return amax;
}

// Raises the stored amax. `amax` is not negative, so an integer atomicMax of its bits works.
OCTAVO_DEVICE void update_amax(const OutputParams& o, i32 sequence, i32 head, float amax) {
  if (amax > 0.0f)
    ptx::atomic_max(o.amax + sequence * o.amax_batch + head * o.amax_head, ptx::bits_of(amax));
}

}  // namespace octavo
