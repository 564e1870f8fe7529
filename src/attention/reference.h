// SPDX-License-Identifier: Apache-2.0
// The oracle: attention in fp64 with plain loops (octavo/evidence.hpp declares `reference`), its
// gradients, and two references that round as a kernel does.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// As `reference`, but only for the given rows of every head, which are stored contiguously in `out`
// and `lse`. Varlen batches are not supported.
Status reference_of_rows(const Arguments& arguments, const Options& options,
                         const std::vector<std::int64_t>& rows, double* out, double* lse = nullptr);

// Contiguous arrays of the shapes of q, k, v, bias and (Hq) sinks.
struct ReferenceGradients {
  double *dq, *dk, *dv;
  double* dbias = nullptr;   // null: not computed
  double* dsinks = nullptr;  // null: not computed
};

// The gradients of attention in fp64 with plain loops. `out` and `lse` are recomputed from Q, K, V
// and the modifiers, so errors of the forward pass do not enter. Gradients of rows that belong to
// no sequence are zero.
Status reference_backward(const BackwardArguments& arguments, const Options& options,
                          const ReferenceGradients& gradients);

// Unfused attention as a 16-bit library computes it: P and O are rounded to `dtype`, everything
// else is exact. The 16-bit gate compares with it. `rows`: which rows of every head are computed;
// null: all.
Status reference_16bit(const Arguments& arguments, const Options& options, DType dtype, double* out,
                       const std::vector<std::int64_t>* rows = nullptr);

// How a tiled kernel rounds P. The reference that uses it computes in fp64, with an online softmax
// over blocks of keys, and scales and rounds P to its format before the P V product. A kernel must
// agree with it to 2e-3.
struct TiledRounding {
  std::int64_t block_keys = 128;
  bool backwards = false;             // from the last block to the first
  std::optional<DType> p_format{};    // none: P exact
  double p_scale = 1;                 // P is multiplied by this before it is rounded
  bool p_scaled_by_block = false;     // P is relative to the row's largest in the block
  double rescale_threshold_log2 = 0;  // the reference maximum rises only past this
};
Status reference_tiled(const Arguments& arguments, const Options& options,
                       const TiledRounding& rounding, double* out);

}  // namespace octavo
