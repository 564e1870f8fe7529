// SPDX-License-Identifier: Apache-2.0
// The counters, the chip's metrics for them, and the passes that count them. Needs no GPU.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One value of the report, and its candidate metrics: the first that the chip has is used.
struct Counter {
  std::string_view key;
  std::string_view unit;
  std::string_view group;  // counters of one group are counted in the same pass
  std::vector<std::string_view> metrics;
};
const std::vector<Counter>& counters_table();

struct ResolvedCounter {
  const Counter* counter = nullptr;
  std::string metric;  // empty: this chip has none of them
};
// `knows` tells whether the chip has a metric.
std::vector<ResolvedCounter> resolve_counters(const std::function<bool(const std::string&)>& knows);

// Metrics that are counted together.
struct CounterBatch {
  std::vector<std::string> metrics;
  std::size_t passes = 1;
};
// The number of passes that a chip needs for these metrics.
using CountPasses = std::function<Result<std::size_t>(const std::vector<std::string>&)>;

// First-fit into batches of one pass and at most kMostOfAPass metrics each; groups stay together. A
// group that does not fit in one pass is a batch of its own.
inline constexpr std::size_t kMostOfAPass = 11;
Result<std::vector<CounterBatch>> plan_counters(const std::vector<ResolvedCounter>& counters,
                                                const CountPasses& passes);

// Values derived from counted ones: ratios, and peaks at the measured clock. A missing value, or a
// ratio to zero, yields none.
using CounterValues = std::map<std::string, double, std::less<>>;
void derive_counters(CounterValues& values);
// Keys and units of the derived values.
const std::vector<std::pair<std::string_view, std::string_view>>& derived_counters();

}  // namespace octavo::evidence
