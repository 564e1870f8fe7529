// SPDX-License-Identifier: Apache-2.0
// Errors of a result relative to fp64, and the named sizes.
#include <cmath>

#include "numeric/fork_safe.h"
#include "numeric/formats.h"
#include "octavo/evidence.hpp"

namespace octavo {

ErrorStats compare(const ConstTensor& out, const double* reference) {
  ErrorStats stats;
  double error_squares = 0, reference_squares = 0, out_squares = 0, products = 0;
  std::int64_t values = 0;
  const double* expected = reference;
  for (std::int64_t b = 0; b < out.shape[0]; ++b)
    for (std::int64_t h = 0; h < out.shape[1]; ++h)
      for (std::int64_t s = 0; s < out.shape[2]; ++s)
        for (std::int64_t d = 0; d < out.shape[3]; ++d) {
          const double e = *expected++;
          const std::int64_t index =
              b * out.stride[0] + h * out.stride[1] + s * out.stride[2] + d * out.stride[3];
          const double x = load_element(out.dtype, out.data, index);
          if (!std::isfinite(e)) continue;
          if (!std::isfinite(x)) {
            ++stats.not_finite;
            continue;
          }
          ++values;
          stats.max_abs = std::max(stats.max_abs, std::abs(x - e));
          error_squares += (x - e) * (x - e);
          reference_squares += e * e;
          out_squares += x * x;
          products += x * e;
        }
  if (values == 0) return stats;
  stats.rmse = std::sqrt(error_squares / static_cast<double>(values));
  // The cosine of two zero tensors is 1; if only one is zero, it is 0.
  const double norms = std::sqrt(reference_squares) * std::sqrt(out_squares);
  if (norms > 0) {
    stats.cosine = products / norms;
  } else {
    stats.cosine = error_squares > 0 ? 0 : 1;
  }
  const double reference_rms = std::sqrt(reference_squares / static_cast<double>(values));
  stats.relative_rmse = reference_rms > 0 ? stats.rmse / reference_rms : stats.rmse;
  return stats;
}

const std::vector<Preset>& presets() {
  static constinit MadeOnce<std::vector<Preset>> made;
  return made.get([] {
    return std::vector<Preset>{
        {"mission", 1, 8, 512, 64}, {"small", 2, 8, 512, 64},   {"long", 2, 8, 2048, 64},
        {"wide", 2, 8, 512, 128},   {"stress", 4, 8, 2048, 64},
    };
  });
}

}  // namespace octavo
