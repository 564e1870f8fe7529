// SPDX-License-Identifier: Apache-2.0
// The timed problems, and the times: rows of the table by problems, in memory and as a file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "config/sm90_shipped.h"
#include "octavo/octavo.hpp"

namespace octavo::search_sm90 {

inline constexpr int kHeadDims[] = {64, 96, 128, 192, 256};

using Rows = std::vector<sm90::TableRow>;

// The rows that a problem can choose from: the same head_dim, elements, and way from scores to P.
// The order is that of the table.
struct Group {
  int head_dim = 0;
  Element element = Element::f16;  // f16, e4m3 or int8
  ScoreType scores = ScoreType::f32;
  auto operator<=>(const Group&) const = default;
};
inline Group group_of(const Sm90ForwardConfig& c) { return {c.head_dim, c.element, c.scores}; }
// The configuration that is timed: 8-bit K has the scales of Octavo's own quantizer.
Sm90ForwardConfig timed_config(const Sm90ForwardConfig& config);
// Whether a configuration is feasible and, for FP8, has columns of ones: sums of P before rounding
// would leave outputs 7e-4 too small. Excludes configurations whose times here contradict
// comparisons, or that spill with scales other than those it is timed with.
bool is_wanted(const Sm90ForwardConfig& config);

// The rows of a group to time, without estimates.
Rows candidates(const Group& group);

// The problems that rows are fitted to, up to a length, and then those that they are not.
std::vector<Problem> problems_of(int head_dim, std::int64_t longest);
bool is_unseen(const Problem& problem);

// Of batch 1; for problems that are not timed.
Problem problem_of(std::int64_t heads, std::int64_t length, Causal causal, int head_dim);

struct Timed {
  Rows rows;
  std::vector<Problem> problems;
  std::vector<std::vector<double>> us;  // by row, by problem
};
double best_of(const Timed& timed, std::size_t problem);
bool same_config(const sm90::TableRow& a, const sm90::TableRow& b);

// A file has one line for every row and problem; of two lines for the same pair the better counts.
extern const char* const kColumns;
std::string csv_of(const Timed& timed);
Result<std::map<Group, Timed>> read_times(const char* path);

// `known`, if not null: times on record; configurations that it has are timed again only if they
// are in the table.
Status measure(Element element, std::span<const int> head_dims, const char* path,
               const char* known);
// Times again, from the times on record, the rows near the best of a problem and those of the
// table, alternating and under a sustained load. The others keep their distance from them.
Status measure_again(Element element, std::span<const int> head_dims, const char* known,
                     const char* path);
// Times every candidate in FP16 at one shape, and prints how far the table's choice is from the
// best of them.
Status compare_choice(const Problem& problem);
Status fit_table(const char* times, const char* header);

}  // namespace octavo::search_sm90
