// SPDX-License-Identifier: Apache-2.0
#include "evolve/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "evidence/bench/stats.h"

namespace octavo::evolve {
namespace {

struct Interval {
  double mean = 0, half = 0;
};

// The interval of the mean of independent values.
Interval t_interval(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double x : values) mean += x / n;
  for (const double x : values) squares += (x - mean) * (x - mean);
  if (values.size() < 2) return {mean, HUGE_VAL};
  const double deviation = std::sqrt(squares / (n - 1));
  return {mean, student_t(static_cast<int>(values.size()) - 1) * deviation / std::sqrt(n)};
}

bool is_complete(const std::vector<Block>& blocks) {
  if (blocks.empty() || blocks[0].empty()) return false;
  const auto positive = [](double us) { return std::isfinite(us) && us > 0; };
  for (const Block& block : blocks) {
    if (block.size() != blocks[0].size()) return false;
    for (const Rounds& rounds : block) {
      if (rounds.base_us.empty() || rounds.base_us.size() != rounds.candidate_us.size())
        return false;
      if (!std::all_of(rounds.base_us.begin(), rounds.base_us.end(), positive) ||
          !std::all_of(rounds.candidate_us.begin(), rounds.candidate_us.end(), positive))
        return false;
    }
  }
  return true;
}

// A round that another process disturbed is far from the others. Values farther from the median
// than five times the median deviation are moved to that distance; with normal noise that is none.
std::vector<double> without_outliers(std::vector<double> values) {
  const double median = evidence::quantile(values, 0.5);
  std::vector<double> distances;
  for (const double x : values) distances.push_back(std::abs(x - median));
  const double reach = 5 * 1.4826 * evidence::quantile(distances, 0.5);
  for (double& x : values) x = std::clamp(x, median - reach, median + reach);
  return values;
}

// log(base / candidate) of each round.
std::vector<double> log_ratios(const Rounds& rounds) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < rounds.base_us.size(); ++i)
    ratios.push_back(std::log(rounds.base_us[i] / rounds.candidate_us[i]));
  return without_outliers(std::move(ratios));
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

// values[block][round], each a logarithm.
Speedup speedup_of(const std::vector<std::vector<double>>& values) {
  std::vector<double> all, means;
  for (const std::vector<double>& block : values) {
    all.insert(all.end(), block.begin(), block.end());
    means.push_back(mean_of(block));
  }
  Interval interval = t_interval(all);
  if (values.size() > 1) {
    const Interval over_blocks = t_interval(means);
    interval = {over_blocks.mean, std::max(over_blocks.half, interval.half)};
  }
  return {std::exp(interval.mean), std::exp(interval.mean - interval.half),
          std::exp(interval.mean + interval.half)};
}

Effect effect_of(const Speedup& speedup) {
  if (speedup.low > 1 + kSmallestEffect) return Effect::faster;
  if (speedup.high < 1 - kSmallestEffect) return Effect::slower;
  if (speedup.low > 1 - kSmallestEffect && speedup.high < 1 + kSmallestEffect) return Effect::same;
  return Effect::undecided;
}

}  // namespace

std::string_view name(Effect effect) {
  constexpr std::array<std::string_view, 4> kNames = {"faster", "slower", "same", "undecided"};
  return kNames.at(static_cast<std::size_t>(effect));
}

bool Comparison::vetoed() const { return static_cast<int>(veto.size()) >= kVetoShapes; }

double student_t(int degrees_of_freedom) {
  constexpr std::array<double, 30> kTable = {
      12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
      2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
      2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  if (degrees_of_freedom < 1) return HUGE_VAL;
  if (degrees_of_freedom <= 30) return kTable.at(static_cast<std::size_t>(degrees_of_freedom) - 1);
  // The Cornish-Fisher expansion around the normal quantile, to four digits.
  constexpr double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z;
  const auto n = static_cast<double>(degrees_of_freedom);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

std::string percent_text(double speedup) { return fmt::format("{:+.2f}%", (speedup - 1) * 100); }

nlohmann::json to_json(const Speedup& s) {
  return {{"value", s.value}, {"low", s.low}, {"high", s.high}};
}

Comparison compare(const std::vector<Block>& blocks) {
  Comparison result;
  if (!is_complete(blocks)) return result;
  const std::size_t shapes = blocks[0].size();
  // ratios[shape][block][round]
  std::vector<std::vector<std::vector<double>>> ratios(shapes);
  std::vector<std::vector<double>> means;
  for (const Block& block : blocks) {
    std::size_t rounds = SIZE_MAX;
    for (const Rounds& r : block) rounds = std::min(rounds, r.base_us.size());
    std::vector<double> mean(rounds, 0.0);
    for (std::size_t shape = 0; shape < shapes; ++shape) {
      ratios[shape].push_back(log_ratios(block[shape]));
      for (std::size_t i = 0; i < rounds; ++i)
        mean[i] += ratios[shape].back()[i] / static_cast<double>(shapes);
    }
    means.push_back(std::move(mean));
  }
  for (std::size_t shape = 0; shape < shapes; ++shape) {
    result.shapes.push_back(speedup_of(ratios[shape]));
    if (result.shapes.back().high < 1 / (1 + kVetoLoss))
      result.veto.push_back(static_cast<int>(shape));
  }
  result.speedup = speedup_of(means);
  result.resolution = (result.speedup.high - result.speedup.low) / 2;
  result.effect = effect_of(result.speedup);
  return result;
}

}  // namespace octavo::evolve
