// SPDX-License-Identifier: Apache-2.0
// Statistics of samples: quantiles, and a confidence interval for a ratio of medians.
#pragma once

#include <cstdint>
#include <vector>

namespace octavo::evidence {

// By linear interpolation between the two nearest samples. There must be at least one sample.
double quantile(std::vector<double> samples, double q);

struct Interval {
  double low = 0;
  double high = 0;
};
// 95% bootstrap interval of median(a) / median(b), deterministic for the same samples and seed.
Interval ratio_interval(const std::vector<double>& a, const std::vector<double>& b,
                        std::uint64_t seed = 42);

}  // namespace octavo::evidence
