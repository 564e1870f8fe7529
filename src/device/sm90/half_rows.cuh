// What is held of a thread's two rows where scores are in pairs of FP16: limits, scales and offsets
// of both in a register each.
#pragma once

#include "device/ptx/math.cuh"
#include "device/sm90/geometry.cuh"

namespace octavo::sm90 {

template <class G>
struct HalfRows {
  using Rows = typename G::Rows;
  static constexpr Sm90Forward C = G::C;

  static OCTAVO_DEVICE float half_of(u32 pair, int half) {
    float low, high;
    ptx::f32_from_f16x2(low, high, pair);
    return half == 0 ? low : high;
  }
  // P's exponent is fma(s, by, offset) in FP16, with one rounding. The offset is rounded to FP16,
  // and so must the origin be that sums and outputs stand on: what the row counts from is always
  // what its offset says.
  //
  // E4M3 codes are nearly linear in the logarithm: between powers of two the code's value runs
  // along a chord of 2^x. So 8 (x + 7 - 0.057) is P's code, if not its best one, and needs no
  // exponential: the shift halves the largest error.
  static constexpr float kCodeShift = 6.943f;
  static OCTAVO_DEVICE float offset_of(float origin) {
    const float exponent = G::kProbabilityLog2 - origin;
    return C.code_exp ? (exponent + kCodeShift) / G::kExponentUnit : exponent;
  }
  static OCTAVO_DEVICE float origin_of(float offset) {
    return G::kProbabilityLog2 - (C.code_exp ? offset * G::kExponentUnit - kCodeShift : offset);
  }
  // What is held of both rows in FP16, of one of them twice, beside pairs.
  static OCTAVO_DEVICE u32 twice(u32 both, int half) {
    return ptx::permute_bytes(both, 0, half == 0 ? 0x1010 : 0x3232);
  }
  // Beyond this FP16 is too coarse for an origin, and a scale may not be a number there: such a row
  // is remote, and so is one that has seen no key. Its limit is -infinity, so that every block is
  // looked at, and its scores are counted from the largest before anything is multiplied.
  static constexpr float kMost = 512;
  static OCTAVO_DEVICE bool is_remote(const Rows& rows, int half) {
    return half_of(rows.half_limits, half) == -kInfinity;
  }
  static OCTAVO_DEVICE void round_origin(float& origin, float& limit, float scale, float remote) {
    constexpr float kLargestHalf = 65504;
    const float offset = offset_of(origin);
    const float rounded = origin_of(half_of(ptx::f16x2_from_f32(offset, offset), 0));
    const bool near = ptx::abs_f32(rounded) < kMost && scale < kMost;
    origin = near ? rounded : remote;
    limit = near ? ptx::max_f32(limit, -kLargestHalf) : -kInfinity;
  }
  // A limit's last bit says whether its row has many weak keys, which moves it by a thousandth or
  // less.
  static constexpr u32 kWeakBits = 0x00010001;
  static OCTAVO_DEVICE bool has_weak(const Rows& rows) {
    return G::kPolynomial && (rows.half_limits & kWeakBits) != 0;
  }
  // What becomes of both rows where origins move.
  struct Moved {
    float limit[2], offset[2];
    u32 moving = 0, weak = 0;  // halves of all ones, and last bits
    OCTAVO_DEVICE void put(int half, bool moves, float origin, float to, bool has_weak) {
      const bool remote = to == -kInfinity;
      limit[half] = to;
      offset[half] = offset_of(remote ? 0 : origin);
      moving |= moves ? 0xffffu << 16 * half : 0;
      weak |= has_weak && !remote ? 1u << 16 * half : 0;
    }
    OCTAVO_DEVICE void move_into(Rows& rows) const {
      const u32 limits = (ptx::f16x2_from_f32(limit[0], limit[1]) & ~kWeakBits) | weak;
      const u32 offsets = ptx::f16x2_from_f32(offset[0], offset[1]);
      rows.half_limits = (limits & moving) | (rows.half_limits & ~moving);
      rows.half_offsets = (offsets & moving) | (rows.half_offsets & ~moving);
    }
  };
  // Of rows that have seen no key.
  static OCTAVO_DEVICE void init(Rows& rows) {
    const float offset = offset_of(0);
    rows.half_limits = ptx::f16x2_from_f32(-kInfinity, -kInfinity);
    rows.half_offsets = ptx::f16x2_from_f32(offset, offset);
  }
};

}  // namespace octavo::sm90
