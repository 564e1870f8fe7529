// What becomes of O beside a plain store: codes by a scale of the caller's, in the roundings of
// numeric/formats.h, and the largest magnitude before them.
#pragma once

#include "device/core/params.cuh"
#include "device/ptx/atomic.cuh"
#include "device/ptx/memory.cuh"
#include "device/ptx/thread.cuh"
#include "device/quantize/encode.cuh"

namespace octavo {

// What values of O are multiplied by on their way to codes. An earlier grid may have written the
// scale, for which this thread has waited.
OCTAVO_DEVICE float inverse_out_scale(const OutputParams& o, i32 sequence, i32 head) {
  const float* const scale = o.scales + sequence * o.scale_batch + head * o.scale_head;
  return ptx::divide_rn(1.0f, ptx::load_written_f32(scale));
}

// Codes of two neighbours, in the low sixteen bits.
template <Element kOut>
OCTAVO_DEVICE u32 out_codes(float low, float high, float inverse) {
  return quantizer::encode_pair<kOut>(low, high, inverse, inverse);
}

// The larger of both; what is not finite is not looked at.
OCTAVO_DEVICE float larger_magnitude(float amax, float x) {
  return ptx::max_f32(amax, quantizer::finite_magnitude(x));
}

// The largest of lanes that differ in the lowest bits, 2^kBits of them; the whole warp calls it.
template <int kBits>
OCTAVO_DEVICE float largest_of_lanes(float amax) {
  OCTAVO_UNROLL
  for (int bit = 0; bit < kBits; ++bit) amax = ptx::max_f32(amax, ptx::shuffle_xor(amax, 1 << bit));
  return amax;
}

// Not negative, and so in the order of its bits. Whoever comes first, the largest stays.
OCTAVO_DEVICE void gather_amax(const OutputParams& o, i32 sequence, i32 head, float amax) {
  if (amax > 0.0f)
    ptx::atomic_max(o.amax + sequence * o.amax_batch + head * o.amax_head, ptx::bits_of(amax));
}

}  // namespace octavo
