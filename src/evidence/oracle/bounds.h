// SPDX-License-Identifier: Apache-2.0
// The table of error bounds, and the rule that scales it to a case.
//
// Rounding an operand adds noise to it. Its effect on the output follows from the formula of
// attention, to first order and for independent roundings:
//
//   error of row i  ~  kappa_i * rms(v) * sqrt(2 (nq tau)^2 + nv^2 + np^2)
//
// nq, nv, np: rms noise of Q and K, of V and of P relative to the operand's rms (the table).
// kappa_i = sqrt(sum_j p_ij^2): 1 when one key has all the weight, 1/sqrt(n) when n keys share it
// evenly.
// tau: spread of the scores, scale |q| |k| / sqrt(D): 1 for standard normal inputs.
// docs/tolerances.md derives the rule, and a test compares that page's table with this one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

struct ModeBound {
  std::string_view mode;  // of a precision, or "e4m3 input" for inputs of that format
  DType qk;               // format that Q and K are rounded to; f32: not rounded
  DType v;
  double p_noise;      // of P, if a backend rounds it; the CPU does not
  double mission_max;  // |error| at (1,8,512,64), standard normal, default scales
  double mission_rmse;
  // The type that quantized K and V are decoded to before the products, if a backend rounds there.
  DType decoded = DType::f32;
};
const std::vector<ModeBound>& mode_bounds();
const ModeBound& mode_bound(DType input, Precision precision);
// The same with V of type `v`. The mixed modes use a bf16 V unchanged; so does a call with a 16-bit
// V and 8-bit Q and K. P has V's type.
ModeBound mode_bound(DType input, Precision precision, DType v);
// For a 16-bit Q with quantized K and V, which are dequantized to Q's type.
ModeBound mode_bound_over(DType input, DType kv);

// rms rounding noise of a format relative to the rms of the rounded data. Floating-point formats:
// the same for any data in range. Integers: proportional to the crest factor, amax over rms.
double format_noise(DType format, double crest);

// The quantities that the bounds of a case depend on, measured on its inputs and its oracle.
struct Magnitudes {
  double v_amax = 0;
  double v_rms = 0;
  double out_amax = 0;       // of the oracle
  double score_amax = 0;     // scale * largest |q| * largest |k|: no score exceeds it
  double addition_amax = 0;  // of bias and ALiBi
  double softcap = 0;        // 0: none
  double tau = 0;            // spread of the scores: score_amax / sqrt(D), if D channels contribute
  double tau_peak = 0;       // of the largest scores: tau, or score_amax if one channel dominates
  double qk_crest = 0;
  double v_crest = 0;
  double head_dim = 0;
  double kappa_max = 0;
  double kappa_rms = 0;
  double keys = 0;        // the most that a row sees
  std::int64_t rows = 0;  // rows that see a key
};

struct Bounds {
  double kernel_max = 0;  // against fp64 on the quantized inputs
  double total_max = 0;   // against fp64 on the original inputs
  double total_rmse = 0;
  double kernel_lse = 0;
  double total_lse = 0;
  double fp32 = 0;  // what FP32 arithmetic alone may cost an output; part of the first three
};
Bounds bounds(const ModeBound& mode, DType out, bool p_is_rounded, const Magnitudes& m);

// A short text of a mode's rule, for tables.
std::string bound_text(const ModeBound& mode, DType out);

}  // namespace octavo::evidence
