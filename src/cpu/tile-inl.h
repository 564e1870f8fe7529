// SIMD: the two products of a tile and the softmax between them. Included once per instruction set.
//
// Sizeless vectors (SVE) cannot be elements of an array, which is why the accumulators of the
// products are named variables and their repetition is left to local macros.
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

// c[r][.] (r < kRows) = c[r][.] * rescale[.] + sum over k < depth of a(r, k) * b[k][.], where
// a(r, k) = a[r * row_stride + k * k_stride] and one of the strides is 1. All of k in order. With
// a rescale the sum is added up from zero, and only then to c: what c has grown to does not round
// every term. Without one (null) the sum goes on from c, or from zero when `fresh`: cutting the
// depth into parts does not change a bit.
template <int kRows, int kVectors, bool kRowsAdjacent>
HWY_INLINE void tile(const float* HWY_RESTRICT a, std::int64_t pitch, std::int64_t depth,
                     const float* HWY_RESTRICT b, const float* HWY_RESTRICT rescale, bool fresh,
                     float* HWY_RESTRICT c) {
  const D32 d;
  const std::int64_t n = lanes();
  const std::int64_t width = kVectors * n;
  const std::int64_t row_stride = kRowsAdjacent ? 1 : pitch;
  const std::int64_t k_stride = kRowsAdjacent ? pitch : 1;
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

#define OCTAVO_LOAD(r, x0, x1, x2)                                       \
  if constexpr (kRows > r) {                                             \
    x0 = hn::Load(d, c + r * width);                                     \
    if constexpr (kVectors > 1) x1 = hn::Load(d, c + r * width + n);     \
    if constexpr (kVectors > 2) x2 = hn::Load(d, c + r * width + 2 * n); \
  }
#define OCTAVO_ADD_RESCALED(r, x0, x1, x2)                                                   \
  if constexpr (kRows > r) {                                                                 \
    x0 = hn::MulAdd(hn::Load(d, c + r * width), b0, x0);                                     \
    if constexpr (kVectors > 1) x1 = hn::MulAdd(hn::Load(d, c + r * width + n), b1, x1);     \
    if constexpr (kVectors > 2) x2 = hn::MulAdd(hn::Load(d, c + r * width + 2 * n), b2, x2); \
  }
#define OCTAVO_MULTIPLY_ADD(r, x0, x1, x2)                        \
  if constexpr (kRows > r) {                                      \
    const V element = hn::Set(d, ak[r * row_stride]);             \
    x0 = hn::MulAdd(element, b0, x0);                             \
    if constexpr (kVectors > 1) x1 = hn::MulAdd(element, b1, x1); \
    if constexpr (kVectors > 2) x2 = hn::MulAdd(element, b2, x2); \
  }
#define OCTAVO_STORE(r, x0, x1, x2)                                      \
  if constexpr (kRows > r) {                                             \
    hn::Store(x0, d, c + r * width);                                     \
    if constexpr (kVectors > 1) hn::Store(x1, d, c + r * width + n);     \
    if constexpr (kVectors > 2) hn::Store(x2, d, c + r * width + 2 * n); \
  }
#define OCTAVO_PANEL(source)                                                       \
  const V b0 = hn::Load(d, source);                                                \
  const V b1 = kVectors > 1 ? hn::Load(d, (source) + (kVectors > 1 ? n : 0)) : b0; \
  const V b2 = kVectors > 2 ? hn::Load(d, (source) + (kVectors > 2 ? 2 * n : 0)) : b0;

  if (rescale == nullptr && !fresh) {
    OCTAVO_ROWS(OCTAVO_LOAD)
  }
  const float* HWY_RESTRICT ak = a;
  const float* HWY_RESTRICT bk = b;
#if HWY_COMPILER_GCC_ACTUAL
#pragma GCC unroll 4
#endif
  for (std::int64_t k = 0; k < depth; ++k) {
    OCTAVO_PANEL(bk)
    OCTAVO_ROWS(OCTAVO_MULTIPLY_ADD)
    ak += k_stride;
    bk += width;
  }
  if (rescale != nullptr) {
    OCTAVO_PANEL(rescale)
    OCTAVO_ROWS(OCTAVO_ADD_RESCALED)
  }
  OCTAVO_ROWS(OCTAVO_STORE)

#undef OCTAVO_PANEL
#undef OCTAVO_STORE
#undef OCTAVO_MULTIPLY_ADD
#undef OCTAVO_ADD_RESCALED
#undef OCTAVO_LOAD
#undef OCTAVO_ROWS
}

// All rows of a product, in strips of kMaxRows and the powers of two below it.
template <int kRows, int kVectors, bool kRowsAdjacent>
void strips(const float* a, std::int64_t pitch, std::int64_t rows, std::int64_t depth,
            const float* b, const float* rescale, bool fresh, float* c) {
  const std::int64_t width = kVectors * lanes();
  std::int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    tile<kRows, kVectors, kRowsAdjacent>(a + r * (kRowsAdjacent ? 1 : pitch), pitch, depth, b,
                                         rescale, fresh, c + r * width);
  if constexpr (kRows > 1) {
    if (r < rows)
      strips<kRows / 2, kVectors, kRowsAdjacent>(a + r * (kRowsAdjacent ? 1 : pitch), pitch,
                                                 rows - r, depth, b, rescale, fresh, c + r * width);
  }
}

template <bool kRowsAdjacent>
void product(std::int64_t vectors, const float* a, std::int64_t pitch, std::int64_t rows,
             std::int64_t depth, const float* b, const float* rescale, bool fresh, float* c) {
  if (vectors == 1)
    strips<kMaxRows, 1, kRowsAdjacent>(a, pitch, rows, depth, b, rescale, fresh, c);
  else if (vectors == 2)
    strips<kMaxRows, 2, kRowsAdjacent>(a, pitch, rows, depth, b, rescale, fresh, c);
  else
    strips<kMaxRows, 3, kRowsAdjacent>(a, pitch, rows, depth, b, rescale, fresh, c);
}

void scores(const float* k, std::int64_t k_pitch, std::int64_t keys, std::int64_t head_dim,
            const float* q, std::int64_t vectors, float* s) {
  const std::int64_t width = vectors * lanes();
  for (std::int64_t c = 0; c < head_dim; c += kDepth)
    product<false>(vectors, k + c, k_pitch, keys, std::min(kDepth, head_dim - c), q + c * width,
                   nullptr, c == 0, s);
}

void accumulate(const float* v, std::int64_t v_pitch, std::int64_t keys, std::int64_t head_dim,
                const float* p, std::int64_t vectors, const float* rescale, float* o) {
  product<true>(vectors, v, v_pitch, head_dim, keys, p, rescale, false, o);
}

// ---------------------------------------------------------------------------------------------
// Softmax

// 2^x for x <= 0 (a little above is harmless), relative error below 2e-7; 2^0 is exactly 1, below
// -126.5 it is exactly 0, and NaN stays NaN. The low bits of the magic sum are round(x) + 127, the
// exponent field of the power; at -127 that is the power 0. On x86 Max keeps a NaN in its second
// operand, which saves an instruction; NEON's returns the number.
HWY_INLINE V exp2_nonpositive(V x) {
  const D32 d;
  const U32 du;
  const V magic = hn::Set(d, 12582912.0f + 127.0f);  // 1.5 * 2^23
  const V least = hn::Set(d, -127.0f);
  const V bounded = HWY_ARCH_X86 ? hn::Max(least, x) : hn::IfThenElse(hn::Lt(x, least), least, x);
  const V shifted = hn::Add(bounded, magic);
  const V f = hn::Sub(bounded, hn::Sub(shifted, magic));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
  // (2^f - 1) / f interpolated at Chebyshev nodes of [-0.5, 0.5]: 9e-9.
  V y = hn::Set(d, 0.000154531634f);
  y = hn::MulAdd(y, f, hn::Set(d, 0.00133908633f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.00961808302f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.0555035695f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.240226507f));
  y = hn::MulAdd(y, f, hn::Set(d, 0.693147182f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  return hn::Mul(y, power);
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

}  // namespace HWY_NAMESPACE
}  // namespace octavo::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
