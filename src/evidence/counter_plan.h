// What is counted, by which of the chip's metrics, and in how many passes. No GPU is asked.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo::evidence {

// One value of the report, and the metrics that have it: the first that a chip knows is taken.
struct Counter {
  std::string_view key;
  std::string_view unit;
  std::string_view group;  // those of one group are counted in the same pass
  std::vector<std::string_view> metrics;
};
const std::vector<Counter>& counters_table();

struct ResolvedCounter {
  const Counter* counter = nullptr;
  std::string metric;  // empty: this chip has none of them
};
// `knows` says whether the chip has a metric.
std::vector<ResolvedCounter> resolve_counters(const std::function<bool(const std::string&)>& knows);

// Metrics that are counted together.
struct CounterBatch {
  std::vector<std::string> metrics;
  std::size_t passes = 1;
};
// In how many passes a chip counts these metrics.
using CountPasses = std::function<Result<std::size_t>(const std::vector<std::string>&)>;

// As few batches as it takes first fit, each of one pass and of at most kMostOfAPass metrics;
// groups stay together. A group that one pass cannot hold is a batch of its own.
inline constexpr std::size_t kMostOfAPass = 11;
Result<std::vector<CounterBatch>> plan_counters(const std::vector<ResolvedCounter>& counters,
                                                const CountPasses& passes);

// What follows from values that were counted: ratios, and peaks by their clock. A value that is not
// there, or a ratio to nothing, gives none.
using CounterValues = std::map<std::string, double, std::less<>>;
void derive_counters(CounterValues& values);
// Their keys and units.
const std::vector<std::pair<std::string_view, std::string_view>>& derived_counters();

}  // namespace octavo::evidence
