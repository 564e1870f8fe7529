// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend as one table of functions. The code that calls them (tasks,
// masks, loading) is written once and does not depend on the instruction set.
//
// Vector lanes run over queries. A panel holds `vectors * lanes` queries. Matrices with queries are
// stored transposed, one row of the panel's width for each channel or key:
//
//   Q^T [head_dim][width]   S^T, P^T [keys][width]   O^T [head_dim][width]
//
// So the softmax needs no reduction across lanes, K and V are read as broadcasts of single
// elements, and neither of them is ever transposed. A lane's result does not depend on the other
// lanes or on their number, so a row's bits do not depend on the rest of the batch.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::cpu {

// Rows that the functions below write must be padded to a multiple of this many floats.
inline constexpr std::int64_t kRowPadding = 64;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// The keys of a tile that each lane attends to, counted from the tile's first key. They are floats
// because the lanes compare them with a float counter.
struct LaneLimits {
  const float* begin;
  const float* end;
};

// The modifiers of a tile of scores, which are in log2 units. Null or 0: none.
struct TileModifiers {
  float softcap = 0;
  float* derivative = nullptr;   // [key][lane]: receives the softcap's derivative, if there is one
  const float* slope = nullptr;  // of each lane, as are the diagonals
  const float* diagonal = nullptr;
  float first_key = 0;  // the tile's first key; it and the diagonals count from the same key
  const float* addition = nullptr;  // [key][lane]; -infinity hides the key
};

// c[r][i] = sum over d < depth of a(r, d) * b[d][i] for r < rows and i < vectors * lanes, where
// a(r, d) is a[r * a_pitch + d], or a[d * a_pitch + r] if a is transposed. The rows of b and c are
// b_pitch and c_pitch floats apart, whole vectors. With `add` the sum is added to c; it is computed
// in parts of the depth, each of which begins at zero.
struct Product {
  const float* a;
  std::int64_t a_pitch;
  bool a_transposed;
  const float* b;
  std::int64_t b_pitch;
  float* c;
  std::int64_t c_pitch;
  std::int64_t rows, depth, vectors;
  bool add;
};

struct Kernels {
  const char* name;
  std::int64_t lanes;
  std::int64_t max_vectors;  // of a panel

  // s[key][lane] = sum over c of k[key * k_pitch + c] * q[c][lane], summed in the order of c.
  void (*scores)(const float* k, std::int64_t k_pitch, std::int64_t keys, std::int64_t head_dim,
                 const float* q, std::int64_t vectors, float* s);

  // s becomes softcap * tanh(s / softcap) - slope * |diagonal - key| + addition, or -infinity if
  // the addition is -infinity. As in the softmax, only a comparison decides what is hidden.
  void (*modify_scores)(float* s, std::int64_t keys, std::int64_t vectors,
                        const TileModifiers& modifiers);

  // The online softmax of one tile, in base 2. s becomes p = 2^(s - max), and `max` and `sum` are
  // updated. `rescale` receives the factor for everything that was summed under the old maximum.
  // Here and in `accumulate` the tile is summed by itself and then added: if keys were added one by
  // one to a sum of many keys, each would be rounded to that sum's much coarser last bit. `limits`
  // may be null: every lane sees every key. Only the comparison decides what a lane sees, so a NaN
  // in a hidden key cannot reach it.
  void (*softmax)(float* s, std::int64_t keys, std::int64_t vectors, const LaneLimits* limits,
                  float* max, float* sum, float* rescale);

  // o[c][lane] = o[c][lane] * rescale[lane] + sum over keys of v[key * v_pitch + c] * p[key][lane]
  void (*accumulate)(const float* v, std::int64_t v_pitch, std::int64_t keys, std::int64_t head_dim,
                     const float* p, std::int64_t vectors, const float* rescale, float* o);

  // The backward pass: `product` computes its five products, `softmax_backward` what comes between
  // them. s becomes p = 2^(s - lse), or 0 where `limits` hide the key, and dp becomes ds = p (dp -
  // delta). `lse` is in base 2.
  void (*product)(const Product& product);
  void (*softmax_backward)(float* s, float* dp, std::int64_t keys, std::int64_t vectors,
                           std::int64_t pitch, const LaneLimits* limits, const float* lse,
                           const float* delta);

  // Conversions of rows. `to_f32` reads exactly n elements of each row, of any dtype, without
  // applying a scale; rows are `stride` elements apart in the source and `pitch` floats apart in
  // the result. `from_f32` writes exactly n elements of f32, f16 or bf16. The other functions work
  // in place on a padded row. `round_to` rounds to the nearest value of any dtype but f32, as
  // numeric/formats.h defines it.
  void (*to_f32)(DType dtype, const void* source, std::int64_t stride, std::int64_t rows,
                 std::int64_t n, float* target, std::int64_t pitch);
  void (*from_f32)(DType dtype, const float* row, std::int64_t n, void* target);
  void (*round_to)(DType dtype, float* row, std::int64_t n);
  void (*scale_row)(float* row, float factor, std::int64_t n);
  void (*multiply_row)(float* row, const float* factors, std::int64_t n);

  // Runs independent multiply-adds and returns the number of floating-point operations.
  double (*multiply_adds)(std::int64_t rounds);
};

// The kernels in plain C++, which compilers vectorise for the baseline instruction set. They are
// always present, and tests compare the others with them.
const Kernels& portable_kernels();

// Every table that this machine can run, the best first. The portable one is always included.
std::vector<const Kernels*> available_kernels();

// The table in use: the best one, unless a test chose another.
const Kernels& kernels();
void use_kernels(const Kernels* chosen);  // null: the best

}  // namespace octavo::cpu
