// What is timed, and the times: rows of the table against problems, in memory and as a file.
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

// Rows among which a problem has a choice: of its columns, its elements, and one way from scores to
// P. The order is that of the table.
struct Group {
  int head_dim = 0;
  Element element = Element::f16;  // f16, e4m3 or int8
  ScoreType scores = ScoreType::f32;
  auto operator<=>(const Group&) const = default;
};
inline Group group_of(const Sm90ForwardConfig& c) { return {c.head_dim, c.element, c.scores}; }
// As it is timed: 8-bit K has the scales that our own quantizer gives it.
Sm90ForwardConfig timed_config(const Sm90ForwardConfig& config);
// Whether a configuration fits, and in FP8 has room for the ones: sums of P as it was before it was
// rounded would leave outputs 7e-4 too small. Nor one whose times here others contradict, or that
// spills with scales other than those it is timed with.
bool is_wanted(const Sm90ForwardConfig& config);

// The rows of a group that are timed, without estimates.
Rows candidates(const Group& group);

// Those that rows are fitted to, up to a length, and then those that they are not.
std::vector<Problem> problems_of(int head_dim, std::int64_t longest);
bool is_unseen(const Problem& problem);

// Of one batch; for problems that nobody times.
Problem problem_of(std::int64_t heads, std::int64_t length, Causal causal, int head_dim);

struct Timed {
  Rows rows;
  std::vector<Problem> problems;
  std::vector<std::vector<double>> us;  // by row, by problem
};
double best_of(const Timed& timed, std::size_t problem);
bool same_config(const sm90::TableRow& a, const sm90::TableRow& b);

// A file has one line for every row and problem; of what stands there twice the better counts.
extern const char* const kColumns;
std::string csv_of(const Timed& timed);
Result<std::map<Group, Timed>> read_times(const char* path);

// `known`, if not null: times on record; of configurations that are there only those in the table
// are timed again.
Status measure(Element element, std::span<const int> head_dims, const char* path,
               const char* known);
// Of times on record: rows near the best of a problem, and the table's, once more, each in turn and
// under a load that lasts. The others keep their distance from them.
Status measure_again(Element element, std::span<const int> head_dims, const char* known,
                     const char* path);
Status fit_table(const char* times, const char* header);

}  // namespace octavo::search_sm90
