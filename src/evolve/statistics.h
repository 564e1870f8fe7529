// SPDX-License-Identifier: Apache-2.0
// Decides from interleaved times whether a candidate is faster than the kernel it is compared with.
//
// A block is one fresh process, which times both kernels in turn: base, candidate, candidate, base,
// and so on. Both kernels of a round ran at the same temperature and clock, so the logarithm of the
// ratio of their times has no drift; what a process adds to one of them (where its buffers lie)
// differs between blocks.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::evolve {

// The times of one shape in one block, in microseconds: round i of both kernels.
struct Rounds {
  std::vector<double> base_us, candidate_us;
  double clock_mhz = 0;  // the median while they were timed; 0: unknown
};
// One entry for each shape of the task, in its order.
using Block = std::vector<Rounds>;

// Time of the base over time of the candidate: above 1 the candidate is faster.
struct Speedup {
  double value = 1;
  double low = 1, high = 1;  // 95% interval
};

enum class Effect : std::uint8_t { faster, slower, same, undecided };
std::string_view name(Effect effect);

struct Comparison {
  Effect effect = Effect::undecided;
  Speedup speedup;              // geometric mean over the shapes
  std::vector<Speedup> shapes;  // in the order of the task
  std::vector<int> veto;        // shapes that are surely slower by more than 10%
  double resolution = 0;        // half of the interval: the smallest difference that could be shown
  bool vetoed() const;          // on two shapes or more
};

// A candidate is faster if the lower bound of its speedup exceeds 1 by this, slower if the upper
// bound is below 1 by this, and the same if the whole interval is within it.
inline constexpr double kSmallestEffect = 0.005;
inline constexpr double kVetoLoss = 0.10;
inline constexpr int kVetoShapes = 2;

// Empty blocks, times that are not positive numbers, and different numbers of shapes give
// `undecided`. One block: the interval is over its rounds; several: over the blocks, or over all
// rounds, whichever is wider.
Comparison compare(const std::vector<Block>& blocks);

// The 97.5% quantile of Student's t distribution, for a two-sided interval of 95%.
double student_t(int degrees_of_freedom);

std::string percent_text(double speedup);  // 1.0123 -> "+1.23%"
nlohmann::json to_json(const Speedup& speedup);

}  // namespace octavo::evolve
