// SPDX-License-Identifier: Apache-2.0
// The kernels in plain C++: for builds without Highway, for machines without a vector unit that it
// supports, and for comparison in tests. Compilers vectorise the loops over kLanes contiguous
// floats.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "numeric/formats.h"

namespace octavo::cpu {
namespace {

constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kMaxVectors = 3;
constexpr std::int64_t kRows = 4;

// One vector of columns of `rows` rows (at most kRows) of a product. The sum starts from zero and
// is then combined with c: c = c * rescale + sum, or c + sum with `add`.
struct Strip {
  const float* a;
  std::int64_t row_stride, k_stride;
  std::int64_t rows, depth;
  const float* b;
  std::int64_t b_pitch;
  float* c;
  std::int64_t c_pitch;
  const float* rescale;  // or null
  bool add;

  void run() const {
    float sum[kRows][kLanes] = {};
    const auto multiply_add = [&](std::int64_t count) {
      for (std::int64_t k = 0; k < depth; ++k)
        for (std::int64_t r = 0; r < count; ++r) {
          const float element = a[r * row_stride + k * k_stride];
          for (std::int64_t i = 0; i < kLanes; ++i) sum[r][i] += element * b[k * b_pitch + i];
        }
    };
    // With a constant count the sums stay in registers.
    if (rows == kRows)
      multiply_add(kRows);
    else
      multiply_add(rows);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < kLanes; ++i) {
        float& to = c[r * c_pitch + i];
        if (rescale != nullptr) sum[r][i] += to * rescale[i];
        if (add) sum[r][i] += to;
        to = sum[r][i];
      }
  }
};

void all_strips(Strip whole, std::int64_t rows, std::int64_t width) {
  for (std::int64_t r = 0; r < rows; r += kRows)
    for (std::int64_t i = 0; i < width; i += kLanes) {
      Strip strip = whole;
      strip.a += r * whole.row_stride;
      strip.rows = std::min(kRows, rows - r);
      strip.b += i;
      strip.c += r * whole.c_pitch + i;
      if (whole.rescale != nullptr) strip.rescale += i;
      strip.run();
    }
}

void scores(const float* k, std::int64_t k_pitch, std::int64_t keys, std::int64_t head_dim,
            const float* q, std::int64_t vectors, float* s) {
  const std::int64_t width = vectors * kLanes;
  all_strips({k, k_pitch, 1, 0, head_dim, q, width, s, width, nullptr, false}, keys, width);
}

void accumulate(const float* v, std::int64_t v_pitch, std::int64_t keys, std::int64_t head_dim,
                const float* p, std::int64_t vectors, const float* rescale, float* o) {
  const std::int64_t width = vectors * kLanes;
  all_strips({v, 1, v_pitch, 0, keys, p, width, o, width, rescale, false}, head_dim, width);
}

void product(const Product& p) {
  all_strips({p.a, p.a_transposed ? 1 : p.a_pitch, p.a_transposed ? p.a_pitch : 1, 0, p.depth, p.b,
              p.b_pitch, p.c, p.c_pitch, nullptr, p.add},
             p.rows, p.vectors * kLanes);
}

// The same algorithms as in tile-inl.h, which explains them.
struct Power {
  float y, f, power;  // 2^x = (1 + y f) power
};
inline Power split_exp2(float x) {
  constexpr float kMagic = 12582912.0f + 127.0f;
  const float bounded = x < -127.0f ? -127.0f : x;
  const float shifted = bounded + kMagic;
  const float f = bounded - (shifted - kMagic);
  const float power = std::bit_cast<float>(std::bit_cast<std::uint32_t>(shifted) << 23);
  float y = 0.000154531634f;
  y = y * f + 0.00133908633f;
  y = y * f + 0.00961808302f;
  y = y * f + 0.0555035695f;
  y = y * f + 0.240226507f;
  y = y * f + 0.693147182f;
  return {y, f, power};
}

inline float exp2_nonpositive(float x) {
  const Power p = split_exp2(x);
  return (p.y * p.f + 1.0f) * p.power;
}

inline float tanh(float x) {
  const Power p = split_exp2(std::abs(x) * -2.88539008f);
  const float expm1 = p.power * (p.y * p.f) + (p.power - 1.0f);
  return std::copysign(expm1 / (2.0f + expm1), x);
}

void modify_scores(float* s, std::int64_t keys, std::int64_t vectors, const TileModifiers& m) {
  const std::int64_t width = vectors * kLanes;
  if (m.softcap != 0)
    for (std::int64_t i = 0; i < keys * width; ++i) {
      const float t = tanh(s[i] / m.softcap);
      s[i] = m.softcap * t;
      if (m.derivative != nullptr) m.derivative[i] = 1.0f - t * t;
    }
  if (m.slope != nullptr)
    for (std::int64_t k = 0; k < keys; ++k)
      for (std::int64_t i = 0; i < width; ++i)
        s[k * width + i] -=
            m.slope[i] * std::abs(m.diagonal[i] - (m.first_key + static_cast<float>(k)));
  if (m.addition != nullptr)
    for (std::int64_t i = 0; i < keys * width; ++i)
      s[i] = m.addition[i] == -kInfinity ? -kInfinity : s[i] + m.addition[i];
}

void softmax(float* s, std::int64_t keys, std::int64_t vectors, const LaneLimits* limits,
             float* max, float* sum, float* rescale) {
  const std::int64_t width = vectors * kLanes;
  for (std::int64_t first = 0; first < width; first += kLanes) {
    float top[kLanes], shift[kLanes], total[kLanes] = {};
    std::copy_n(max + first, kLanes, top);
    for (std::int64_t k = 0; k < keys; ++k) {
      float* row = s + k * width + first;
      if (limits != nullptr)
        for (std::int64_t i = 0; i < kLanes; ++i)
          if (static_cast<float>(k) < limits->begin[first + i] ||
              static_cast<float>(k) >= limits->end[first + i])
            row[i] = -kInfinity;
      for (std::int64_t i = 0; i < kLanes; ++i) top[i] = top[i] > row[i] ? top[i] : row[i];
    }
    for (std::int64_t i = 0; i < kLanes; ++i) {
      shift[i] = top[i] == -kInfinity ? 0.0f : top[i];
      rescale[first + i] = exp2_nonpositive(max[first + i] - shift[i]);
    }
    for (std::int64_t k = 0; k < keys; ++k)
      for (std::int64_t i = 0; i < kLanes; ++i) {
        float& p = s[k * width + first + i];
        p = exp2_nonpositive(p - shift[i]);
        total[i] += p;
      }
    std::copy_n(top, kLanes, max + first);
    for (std::int64_t i = 0; i < kLanes; ++i)
      sum[first + i] = sum[first + i] * rescale[first + i] + total[i];
  }
}

void softmax_backward(float* s, float* dp, std::int64_t keys, std::int64_t vectors,
                      std::int64_t pitch, const LaneLimits* limits, const float* lse,
                      const float* delta) {
  for (std::int64_t k = 0; k < keys; ++k)
    for (std::int64_t i = 0; i < vectors * kLanes; ++i) {
      const float x = s[k * pitch + i] - lse[i];
      float p = exp2_nonpositive(x > 128.0f ? 128.0f : x);
      float ds = p * (dp[k * pitch + i] - delta[i]);
      if (limits != nullptr &&
          (static_cast<float>(k) < limits->begin[i] || static_cast<float>(k) >= limits->end[i]))
        p = ds = 0;
      s[k * pitch + i] = p;
      dp[k * pitch + i] = ds;
    }
}

void to_f32(DType dtype, const void* source, std::int64_t stride, std::int64_t rows, std::int64_t n,
            float* target, std::int64_t pitch) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < n; ++i)
      target[r * pitch + i] = load_element(dtype, source, r * stride + i);
}

void from_f32(DType dtype, const float* row, std::int64_t n, void* target) {
  for (std::int64_t i = 0; i < n; ++i) store_element(dtype, target, i, row[i]);
}

void round_to(DType dtype, float* row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (dtype == DType::f16)
      row[i] = f32_from_f16(f16_from_f32(row[i]));
    else if (dtype == DType::bf16)
      row[i] = f32_from_bf16(bf16_from_f32(row[i]));
    else if (is_8bit(dtype))
      row[i] = decode_8bit(dtype, encode_8bit(dtype, row[i]));
  }
}

void scale_row(float* row, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factor;
}

void multiply_row(float* row, const float* factors, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) row[i] *= factors[i];
}

double multiply_adds(std::int64_t rounds) {
  constexpr std::int64_t kChains = 48;
  float x[kChains];
  for (std::int64_t i = 0; i < kChains; ++i) x[i] = 0.01f * static_cast<float>(i);
  for (std::int64_t n = 0; n < rounds; ++n)
    for (std::int64_t i = 0; i < kChains; ++i) x[i] = x[i] * 0.999f + 0.001f;
  volatile float sink = x[0] + x[kChains - 1];
  static_cast<void>(sink);
  return 2.0 * static_cast<double>(kChains * rounds);
}

}  // namespace

const Kernels& portable_kernels() {
  static constexpr Kernels kernels{"portable",       kLanes,       kMaxVectors,  scores,
                                   modify_scores,    softmax,      accumulate,   product,
                                   softmax_backward, to_f32,       from_f32,     round_to,
                                   scale_row,        multiply_row, multiply_adds};
  return kernels;
}

}  // namespace octavo::cpu
