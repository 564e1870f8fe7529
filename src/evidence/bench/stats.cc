// SPDX-License-Identifier: Apache-2.0
#include "evidence/bench/stats.h"

#include <algorithm>
#include <random>

namespace octavo::evidence {
namespace {

double resampled_median(const std::vector<double>& samples, std::mt19937_64& random) {
  std::vector<double> drawn(samples.size());
  // Not a standard distribution: those differ between libraries, and the interval with them.
  for (double& x : drawn) x = samples[random() % samples.size()];
  return quantile(std::move(drawn), 0.5);
}

}  // namespace

double quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double at = q * static_cast<double>(samples.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, samples.size() - 1);
  return samples[low] + (at - static_cast<double>(low)) * (samples[high] - samples[low]);
}

Interval ratio_interval(const std::vector<double>& a, const std::vector<double>& b,
                        std::uint64_t seed) {
  constexpr int kResamples = 1000;
  std::mt19937_64 random(seed);
  std::vector<double> ratios(kResamples);
  for (double& ratio : ratios) {
    const double of_a =
        resampled_median(a, random);  // evaluated first, so that the seed determines the order
    ratio = of_a / resampled_median(b, random);
  }
  return {quantile(ratios, 0.025), quantile(ratios, 0.975)};
}

}  // namespace octavo::evidence
