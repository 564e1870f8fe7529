// SPDX-License-Identifier: Apache-2.0
// The SIMD products of a tile and the softmax between them, for both passes. Included once per
// instruction set.
//
// Sizeless vectors (SVE) cannot be elements of an array. Therefore the accumulators of the products
// are named variables, and local macros repeat the code for them.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/kernels.h"
#include "cpu/vector-inl.h"

#if defined(OCTAVO_CPU_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef OCTAVO_CPU_TILE_TOGGLE
#undef OCTAVO_CPU_TILE_TOGGLE
#else
#define OCTAVO_CPU_TILE_TOGGLE
#endif

HWY_BEFORE_NAMESPACE();
namespace octavo::cpu {
namespace HWY_NAMESPACE {

// Registers: kMaxRows * kVectors accumulators, kVectors of the panel and one broadcast.
#if HWY_TARGET == HWY_AVX2
constexpr int kMaxRows = 4;  // 12 + 3 + 1 of 16
#else
constexpr int kMaxRows = 8;  // 24 + 3 + 1 of 32
#endif
constexpr int kMaxVectors = 3;
// Depth of a block of Q K^T: 64 x 48 floats of Q^T are 12 KB of a 32 KB L1.
constexpr std::int64_t kDepth = 64;

// ---------------------------------------------------------------------------------------------
// Products

// How the product of a tile is combined with c, its destination.
enum class Target : std::uint8_t {
  overwrite,    // c = sum
  resume,       // continues the sum of c: dividing the depth into parts does not change a bit
  add,          // c = c + sum, where the sum is added up from zero: what c has grown to does not
                // round every term
  add_rescaled  // c = c * rescale + sum, likewise
};

// The operands of a tile or of many, with the distance in floats from a row to the next.
struct TileOperands {
  const float* a;
  std::int64_t a_pitch;
  std::int64_t depth;
  const float* b;
  std::int64_t b_pitch;
  float* c;
  std::int64_t c_pitch;
  const float* rescale;  // of add_rescaled, one factor for each column of c
  Target target;
};

// c[r][.] (r < kRows) gets the sum over k < depth of a(r, k) * b[k][.], where a(r, k) is
// a[r * a_pitch + k], or a[k * a_pitch + r] if rows are adjacent. All of k in order.
template <int kRows, int kVectors, bool kRowsAdjacent>
HWY_INLINE void tile(const TileOperands& o) {
  const D32 d;
  const std::int64_t n = lanes();
  const std::int64_t row_stride = kRowsAdjacent ? 1 : o.a_pitch;
  const std::int64_t k_stride = kRowsAdjacent ? o.a_pitch : 1;
  const std::int64_t depth = o.depth, b_pitch = o.b_pitch, c_pitch = o.c_pitch;
  float* HWY_RESTRICT c = o.c;
  const V zero = hn::Zero(d);
  V c00 = zero, c01 = zero, c02 = zero, c10 = zero, c11 = zero, c12 = zero, c20 = zero, c21 = zero,
    c22 = zero, c30 = zero, c31 = zero, c32 = zero, c40 = zero, c41 = zero, c42 = zero, c50 = zero,
    c51 = zero, c52 = zero, c60 = zero, c61 = zero, c62 = zero, c70 = zero, c71 = zero, c72 = zero;

#define OCTAVO_ROWS(STEP) \
  STEP(0, c00, c01, c02)  \
  STEP(1, c10, c11, c12)  \
  STEP(2, c20, c21, c22)  \
  STEP(3, c30, c31, c32)  \
  STEP(4, c40, c41, c42)  \
  STEP(5, c50, c51, c52)  \
  STEP(6, c60, c61, c62)  \
  STEP(7, c70, c71, c72)

#define OCTAVO_LOAD(r, x0, x1, x2)                                         \
  if constexpr (kRows > r) {                                               \
    x0 = hn::Load(d, c + r * c_pitch);                                     \
    if constexpr (kVectors > 1) x1 = hn::Load(d, c + r * c_pitch + n);     \
    if constexpr (kVectors > 2) x2 = hn::Load(d, c + r * c_pitch + 2 * n); \
  }
#define OCTAVO_ADD_RESCALED(r, x0, x1, x2)                                                     \
  if constexpr (kRows > r) {                                                                   \
    x0 = hn::MulAdd(hn::Load(d, c + r * c_pitch), b0, x0);                                     \
    if constexpr (kVectors > 1) x1 = hn::MulAdd(hn::Load(d, c + r * c_pitch + n), b1, x1);     \
    if constexpr (kVectors > 2) x2 = hn::MulAdd(hn::Load(d, c + r * c_pitch + 2 * n), b2, x2); \
  }
#define OCTAVO_ADD(r, x0, x1, x2)                                                       \
  if constexpr (kRows > r) {                                                            \
    x0 = hn::Add(hn::Load(d, c + r * c_pitch), x0);                                     \
    if constexpr (kVectors > 1) x1 = hn::Add(hn::Load(d, c + r * c_pitch + n), x1);     \
    if constexpr (kVectors > 2) x2 = hn::Add(hn::Load(d, c + r * c_pitch + 2 * n), x2); \
  }
#define OCTAVO_MULTIPLY_ADD(r, x0, x1, x2)                        \
  if constexpr (kRows > r) {                                      \
    const V element = hn::Set(d, ak[r * row_stride]);             \
    x0 = hn::MulAdd(element, b0, x0);                             \
    if constexpr (kVectors > 1) x1 = hn::MulAdd(element, b1, x1); \
    if constexpr (kVectors > 2) x2 = hn::MulAdd(element, b2, x2); \
  }
#define OCTAVO_STORE(r, x0, x1, x2)                                        \
  if constexpr (kRows > r) {                                               \
    hn::Store(x0, d, c + r * c_pitch);                                     \
    if constexpr (kVectors > 1) hn::Store(x1, d, c + r * c_pitch + n);     \
    if constexpr (kVectors > 2) hn::Store(x2, d, c + r * c_pitch + 2 * n); \
  }
#define OCTAVO_PANEL(source)                                                       \
  const V b0 = hn::Load(d, source);                                                \
  const V b1 = kVectors > 1 ? hn::Load(d, (source) + (kVectors > 1 ? n : 0)) : b0; \
  const V b2 = kVectors > 2 ? hn::Load(d, (source) + (kVectors > 2 ? 2 * n : 0)) : b0;

  if (o.target == Target::resume) {
    OCTAVO_ROWS(OCTAVO_LOAD)
  }
  const float* HWY_RESTRICT ak = o.a;
  const float* HWY_RESTRICT bk = o.b;
#if HWY_COMPILER_GCC_ACTUAL
#pragma GCC unroll 4
#endif
  for (std::int64_t k = 0; k < depth; ++k) {
    OCTAVO_PANEL(bk)
    OCTAVO_ROWS(OCTAVO_MULTIPLY_ADD)
    ak += k_stride;
    bk += b_pitch;
  }
  if (o.target == Target::add) {
    OCTAVO_ROWS(OCTAVO_ADD)
  } else if (o.target == Target::add_rescaled) {
    OCTAVO_PANEL(o.rescale)
    OCTAVO_ROWS(OCTAVO_ADD_RESCALED)
  }
  OCTAVO_ROWS(OCTAVO_STORE)

#undef OCTAVO_PANEL
#undef OCTAVO_STORE
#undef OCTAVO_MULTIPLY_ADD
#undef OCTAVO_ADD
#undef OCTAVO_ADD_RESCALED
#undef OCTAVO_LOAD
#undef OCTAVO_ROWS
}

// All rows of a product, in strips of kMaxRows and the powers of two below it.
template <int kRows, int kVectors, bool kRowsAdjacent>
void strips(TileOperands o, std::int64_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    tile<kRows, kVectors, kRowsAdjacent>(o);
    o.a += kRows * (kRowsAdjacent ? 1 : o.a_pitch);
    o.c += kRows * o.c_pitch;
  }
  if constexpr (kRows > 1) {
    if (rows > 0) strips<kRows / 2, kVectors, kRowsAdjacent>(o, rows);
  }
}

// At most kMaxVectors columns of vectors.
template <bool kRowsAdjacent>
void panel_product(std::int64_t vectors, std::int64_t rows, const TileOperands& o) {
  if (vectors == 1)
    strips<kMaxRows, 1, kRowsAdjacent>(o, rows);
  else if (vectors == 2)
    strips<kMaxRows, 2, kRowsAdjacent>(o, rows);
  else
    strips<kMaxRows, 3, kRowsAdjacent>(o, rows);
}

void scores(const float* k, std::int64_t k_pitch, std::int64_t keys, std::int64_t head_dim,
            const float* q, std::int64_t vectors, float* s) {
  const std::int64_t width = vectors * lanes();
  for (std::int64_t c = 0; c < head_dim; c += kDepth)
    panel_product<false>(vectors, keys,
                         {k + c, k_pitch, std::min(kDepth, head_dim - c), q + c * width, width, s,
                          width, nullptr, c == 0 ? Target::overwrite : Target::resume});
}

void accumulate(const float* v, std::int64_t v_pitch, std::int64_t keys, std::int64_t head_dim,
                const float* p, std::int64_t vectors, const float* rescale, float* o) {
  const std::int64_t width = vectors * lanes();
  panel_product<true>(vectors, head_dim,
                      {v, v_pitch, keys, p, width, o, width, rescale, Target::add_rescaled});
}

// A last panel of one vector would load more than it multiplies: four vectors are two and two.
HWY_INLINE std::int64_t next_panel(std::int64_t vectors) {
  return vectors == 4 ? 2 : std::min<std::int64_t>(vectors, kMaxVectors);
}

template <bool kRowsAdjacent>
void wide_product(const Product& p) {
  const std::int64_t n = lanes();
  for (std::int64_t first = 0, step = 0; first < p.vectors; first += step) {
    step = next_panel(p.vectors - first);
    for (std::int64_t k = 0; k < p.depth; k += kDepth) {
      const std::int64_t depth = std::min(kDepth, p.depth - k);
      const Target later = p.add ? Target::add : Target::resume;
      panel_product<kRowsAdjacent>(
          step, p.rows,
          {p.a + k * (kRowsAdjacent ? p.a_pitch : 1), p.a_pitch, depth,
           p.b + k * p.b_pitch + first * n, p.b_pitch, p.c + first * n, p.c_pitch, nullptr,
           k == 0 && !p.add ? Target::overwrite : later});
    }
  }
}

void product(const Product& p) {
  if (p.a_transposed)
    wide_product<true>(p);
  else
    wide_product<false>(p);
}

// ---------------------------------------------------------------------------------------------
// Softmax

// Splits 2^x for x <= 0 into (1 + y f) * power, where power is a power of two, and returns y. The
// low bits of the magic sum are round(x) + 127, the exponent field of the power; for -127 they give
// the power 0. On x86 Max keeps a NaN of its second operand, which saves an instruction; NEON's Max
// returns the number.
HWY_INLINE V split_exp2(V x, V& f, V& power) {
  const D32 d;
  const U32 du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23
  const V least = hn::Set(d, -127.0f);
  const V bounded = HWY_ARCH_X86 ? hn::Max(least, x) : hn::IfThenElse(hn::Lt(x, least), least, x);
  const V shifted = hn::Add(bounded, magic);
  f = hn::Sub(bounded, hn::Sub(shifted, magic));
  power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  // (2^f - 1) / f interpolated at Chebyshev nodes of [-0.5, 0.5]: 9e-9.
  V y = hn::Set(d, 0.000154531634f);
  y = hn::MulAdd(y, f, hn::Set(d, 0.00133908633f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.00961808302f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.0555035695f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.240226507f));
  return hn::MulAdd(y, f, hn::Set(d, 0.693147182f));
}

// 2^x for x <= 0 (a little above is harmless), relative error below 2e-7; 2^0 is exactly 1, below
// -126.5 it is exactly 0, and NaN stays NaN.
HWY_INLINE V exp2_nonpositive(V x) {
  const D32 d;
  V f, power;
  const V y = split_exp2(x, f, power);
  return hn::Mul(hn::MulAdd(y, f, hn::Set(d, 1.0f)), power);
}

// 2^x for any x: from 128 on it is infinite.
HWY_INLINE V exp2_any(V x) {
  const V most = hn::Set(D32(), 128.0f);
  return exp2_nonpositive(HWY_ARCH_X86 ? hn::Min(most, x)
                                       : hn::IfThenElse(hn::Gt(x, most), most, x));
}

// tanh(x) = -expm1(t) / (2 + expm1(t)) with t = -2 |x|, under the sign of x; the relative error is
// below 5e-7 also near 0, because expm1(t) = power * y f + (power - 1), whose parts do not cancel:
// power is 1 near 0, and elsewhere at most 1/2.
HWY_INLINE V tanh(V x) {
  const D32 d;
  V f, power;
  const V minus_two_log2e = hn::Set(d, -2.88539008f);
  const V y = split_exp2(hn::Mul(hn::Abs(x), minus_two_log2e), f, power);
  const V expm1 = hn::MulAdd(power, hn::Mul(y, f), hn::Sub(power, hn::Set(d, 1.0f)));
  return hn::CopySign(hn::Div(expm1, hn::Add(expm1, hn::Set(d, 2.0f))), x);
}

// Makes one pass for each modifier, as the tile is in L1. Keys are hidden last, so that no
// arithmetic follows on a hidden score.
void modify_scores(float* s, std::int64_t keys, std::int64_t vectors, const TileModifiers& m) {
  const D32 d;
  const std::int64_t n = lanes();
  const std::int64_t width = vectors * n;
  if (m.softcap != 0) {
    const V cap = hn::Set(d, m.softcap), one = hn::Set(d, 1.0f);
    for (std::int64_t i = 0; i < keys * width; i += n) {
      const V t = tanh(hn::Div(hn::Load(d, s + i), cap));
      hn::Store(hn::Mul(cap, t), d, s + i);
      if (m.derivative != nullptr) hn::Store(hn::NegMulAdd(t, t, one), d, m.derivative + i);
    }
  }
  if (m.slope != nullptr)
    for (std::int64_t i = 0; i < width; i += n) {
      const V slope = hn::Load(d, m.slope + i), diagonal = hn::Load(d, m.diagonal + i);
      for (std::int64_t k = 0; k < keys; ++k) {
        const V key = hn::Set(d, m.first_key + static_cast<float>(k));
        const V distance = hn::Abs(hn::Sub(diagonal, key));
        float* const at = s + k * width + i;
        hn::Store(hn::NegMulAdd(slope, distance, hn::Load(d, at)), d, at);
      }
    }
  if (m.addition != nullptr) {
    const V minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; i < keys * width; i += n) {
      const V addition = hn::Load(d, m.addition + i);
      const V sum = hn::Add(hn::Load(d, s + i), addition);
      hn::Store(hn::IfThenElse(hn::Eq(addition, minus_inf), minus_inf, sum), d, s + i);
    }
  }
}

// One vector of queries over all keys of the tile.
template <bool kMasked>
HWY_INLINE void softmax_column(float* HWY_RESTRICT s, std::int64_t keys, std::int64_t width,
                               const float* begin, const float* end, float* HWY_RESTRICT max,
                               float* HWY_RESTRICT sum, float* HWY_RESTRICT rescale) {
  const D32 d;
  const V minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  const V old_max = hn::Load(d, max);
  V top0 = old_max, top1 = old_max;
  if constexpr (kMasked) {
    const V first = hn::Load(d, begin), last = hn::Load(d, end);
    for (std::int64_t k = 0; k < keys; ++k) {
      const V index = hn::Set(d, static_cast<float>(k));
      const auto seen = hn::And(hn::Ge(index, first), hn::Lt(index, last));
      const V score = hn::IfThenElse(seen, hn::Load(d, s + k * width), minus_inf);
      hn::Store(score, d, s + k * width);
      top0 = hn::Max(top0, score);
    }
  } else {
    // Two chains, because Max takes four cycles; the order does not change the result.
    std::int64_t k = 0;
    for (; k + 2 <= keys; k += 2) {
      top0 = hn::Max(top0, hn::Load(d, s + k * width));
      top1 = hn::Max(top1, hn::Load(d, s + (k + 1) * width));
    }
    if (k < keys) top0 = hn::Max(top0, hn::Load(d, s + k * width));
  }
  const V new_max = hn::Max(top0, top1);
  // For a lane without keys so far any finite maximum gives p = 2^-inf = 0 instead of NaN.
  const V shift = hn::IfThenZeroElse(hn::Eq(new_max, minus_inf), new_max);
  const V factor = exp2_nonpositive(hn::Sub(old_max, shift));
  V total = hn::Zero(d);  // of this tile; see Kernels::softmax
  for (std::int64_t k = 0; k < keys; ++k) {
    const V p = exp2_nonpositive(hn::Sub(hn::Load(d, s + k * width), shift));
    hn::Store(p, d, s + k * width);
    total = hn::Add(total, p);
  }
  hn::Store(new_max, d, max);
  hn::Store(hn::MulAdd(hn::Load(d, sum), factor, total), d, sum);
  hn::Store(factor, d, rescale);
}

void softmax(float* s, std::int64_t keys, std::int64_t vectors, const LaneLimits* limits,
             float* max, float* sum, float* rescale) {
  const std::int64_t n = lanes();
  const std::int64_t width = vectors * n;
  for (std::int64_t i = 0; i < width; i += n) {
    if (limits != nullptr)
      softmax_column<true>(s + i, keys, width, limits->begin + i, limits->end + i, max + i, sum + i,
                           rescale + i);
    else
      softmax_column<false>(s + i, keys, width, nullptr, nullptr, max + i, sum + i, rescale + i);
  }
}

// One vector of queries over all keys of the tile.
template <bool kMasked>
HWY_INLINE void softmax_backward_column(float* HWY_RESTRICT s, float* HWY_RESTRICT dp,
                                        std::int64_t keys, std::int64_t pitch, const float* begin,
                                        const float* end, V lse, V delta) {
  const D32 d;
  const V zero = hn::Zero(d);
  const V first = kMasked ? hn::Load(d, begin) : zero, last = kMasked ? hn::Load(d, end) : zero;
  for (std::int64_t k = 0; k < keys; ++k) {
    V p = exp2_any(hn::Sub(hn::Load(d, s + k * pitch), lse));
    V ds = hn::Mul(p, hn::Sub(hn::Load(d, dp + k * pitch), delta));
    if constexpr (kMasked) {
      const V index = hn::Set(d, static_cast<float>(k));
      const auto seen = hn::And(hn::Ge(index, first), hn::Lt(index, last));
      p = hn::IfThenElseZero(seen, p);
      ds = hn::IfThenElseZero(seen, ds);
    }
    hn::Store(p, d, s + k * pitch);
    hn::Store(ds, d, dp + k * pitch);
  }
}

void softmax_backward(float* s, float* dp, std::int64_t keys, std::int64_t vectors,
                      std::int64_t pitch, const LaneLimits* limits, const float* lse,
                      const float* delta) {
  const D32 d;
  const std::int64_t n = lanes();
  for (std::int64_t i = 0; i < vectors * n; i += n) {
    const V row_lse = hn::Load(d, lse + i), row_delta = hn::Load(d, delta + i);
    if (limits != nullptr)
      softmax_backward_column<true>(s + i, dp + i, keys, pitch, limits->begin + i, limits->end + i,
                                    row_lse, row_delta);
    else
      softmax_backward_column<false>(s + i, dp + i, keys, pitch, nullptr, nullptr, row_lse,
                                     row_delta);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace octavo::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
