// SPDX-License-Identifier: Apache-2.0
#include "times.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_fields.h"

namespace octavo::search_sm90 {
namespace {

struct Shape {
  std::int64_t batch, heads, length;
  Causal causal = Causal::none;
};
// The problems that rows are fitted to: few and many heads, short and long, with a mask and
// without.
constexpr Shape kFitted[] = {{1, 8, 256},
                             {1, 8, 512},
                             {2, 8, 512},
                             {1, 8, 1024},
                             {2, 8, 1024},
                             {2, 8, 2048},
                             {4, 8, 2048},
                             {32, 16, 512},
                             {16, 16, 1024},
                             {8, 16, 2048},
                             {2, 16, 8192},
                             {1, 16, 16384},
                             {1, 24, 512},
                             {1, 20, 1536},
                             {1, 8, 512, Causal::top_left},
                             {2, 8, 2048, Causal::top_left},
                             {4, 8, 2048, Causal::top_left},
                             {32, 16, 512, Causal::top_left},
                             {16, 16, 1024, Causal::top_left},
                             {8, 16, 2048, Causal::top_left},
                             {2, 16, 8192, Causal::top_left},
                             {1, 16, 16384, Causal::top_left},
                             {4, 12, 1024, Causal::top_left}};
constexpr Shape kUnseen[] = {
    {1, 12, 384}, {3, 8, 640}, {1, 16, 3000}, {6, 12, 1536, Causal::top_left}};
static_assert(std::size(kUnseen) * std::size(kHeadDims) == 20);

Problem problem_for(const Shape& s, int head_dim) {
  Problem p;
  p.batch = s.batch;
  p.heads_q = p.heads_kv = s.heads;
  p.seqlen_q = p.seqlen_kv = s.length;
  p.head_dim = p.head_dim_v = head_dim;
  p.options.causal = s.causal;
  return p;
}

// Two CTAs per SM of two warpgroups with separate rows, at head_dim 128: at (32,16,512) 138 us
// here, where others take 144, but 148 in comparisons, where others take less than here.
bool is_contradicted(const Sm90ForwardConfig& c) {
  return c.element == Element::f16 && c.head_dim == 128 && c.row_groups == 2 && c.block_n == 64 &&
         c.schedule != Schedule::qk_first;
}

// One warpgroup per CTA that computes all columns of P V in one slice, with Q K^T queued behind it:
// with INT8 and a scale of K per row or head it spills, and with the timed scales it gains half a
// percent.
bool spills_with_other_scales(const Sm90ForwardConfig& c) {
  return sm90::is_int8_pv(c) && c.head_dim == 128 && sm90::is_split_kv(c) &&
         c.schedule == Schedule::pv_first_queued && c.pv_columns == c.head_dim;
}

template <class Enum>
std::string_view name_of(Enum value) {
  return EnumText<Enum>::kNames.at(static_cast<std::size_t>(value));
}

}  // namespace

Problem problem_of(std::int64_t heads, std::int64_t length, Causal causal, int head_dim) {
  return problem_for({1, heads, length, causal}, head_dim);
}

std::vector<Problem> problems_of(int head_dim, std::int64_t longest) {
  std::vector<Problem> problems;
  for (const Shape& s : kFitted)
    if (s.length <= longest) problems.push_back(problem_for(s, head_dim));
  for (const Shape& s : kUnseen)
    if (s.length <= longest) problems.push_back(problem_for(s, head_dim));
  return problems;
}

bool is_unseen(const Problem& p) {
  return std::any_of(std::begin(kUnseen), std::end(kUnseen), [&](const Shape& s) {
    return problem_for(s, static_cast<int>(p.head_dim)) == p;
  });
}

double best_of(const Timed& t, std::size_t problem) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& us : t.us) best = std::min(best, us[problem]);
  return best;
}

bool same_config(const sm90::TableRow& a, const sm90::TableRow& b) {
  return timed_config(a.config) == timed_config(b.config);
}

Sm90ForwardConfig timed_config(const Sm90ForwardConfig& config) {
  Sm90ForwardConfig c = sm90::config_of({.config = config, .estimate = {}}, config.element);
  // As in the modes: int8 has a scale of K per block, FP8 one per head.
  if (sm90::is_8bit_qk(c) && !sm90::has_f16_scores(c)) c.k_scales = KScales::block;
  return c;
}

bool is_wanted(const Sm90ForwardConfig& config) {
  const Sm90ForwardConfig c = timed_config(config);
  return feasible(c, 90).ok() && (!sm90::has_f16_scores(c) || c.sum_rounded_p) &&
         !is_contradicted(c) && !spills_with_other_scales(c);
}

const char* const kColumns =
    "element,head_dim,warpgroups,block_n,stages,schedule,min_ctas,row_groups,cluster,scores,"
    "sum_rounded_p,pv_columns,pv_buffers,resident,batch,heads,length,causal,us\n";

std::string csv_of(const Timed& t) {
  std::string text;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
      const Sm90ForwardConfig& c = t.rows[row].config;
      const Problem& p = t.problems[problem];
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{:d},{},{},{},{},{},{},{:d},{:.3f}\n",
                          name_of(c.element), c.head_dim, c.warpgroups, c.block_n, c.stages,
                          name_of(c.schedule), c.min_ctas, c.row_groups, c.cluster,
                          name_of(c.scores), c.sum_rounded_p, c.pv_columns, c.pv_buffers,
                          t.rows[row].estimate.resident, p.batch, p.heads_q, p.seqlen_q,
                          p.options.causal != Causal::none, t.us[row][problem]);
    }
  return text;
}

namespace {

// One line of the file, with commas replaced by spaces.
struct Line {
  sm90::TableRow row;
  Problem problem;
  double us = 0;
};
template <class Enum>
std::istream& read_name(std::istream& fields, Enum& value) {
  std::string name;
  fields >> name;
  const auto& names = EnumText<Enum>::kNames;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) fields.setstate(std::ios::failbit);
  value = static_cast<Enum>(found - names.begin());
  return fields;
}
bool read_line(std::istream& fields, Line& line) {
  Sm90ForwardConfig& c = line.row.config;
  Shape s{};
  bool causal = false;
  read_name(fields, c.element);
  fields >> c.head_dim >> c.warpgroups >> c.block_n >> c.stages;
  read_name(fields, c.schedule);
  fields >> c.min_ctas >> c.row_groups >> c.cluster;
  read_name(fields, c.scores);
  fields >> c.sum_rounded_p >> c.pv_columns >> c.pv_buffers;
  fields >> line.row.estimate.resident >> s.batch >> s.heads >> s.length >> causal >> line.us;
  c.v_element = c.element;
  if (causal) s.causal = Causal::top_left;
  line.problem = problem_for(s, c.head_dim);
  return static_cast<bool>(fields);
}

}  // namespace

Result<std::map<Group, Timed>> read_times(const char* path) {
  std::map<Group, Timed> all;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  if (line + "\n" != kColumns)
    return Status(
        ErrorCode::invalid_argument,
        fmt::format("{} has the columns '{}'; supported: those of sm90_search.csv.", path, line));
  while (std::getline(in, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    Line read;
    if (!read_line(fields, read))
      return Status(ErrorCode::invalid_argument, fmt::format("{} has a line '{}'.", path, line));
    const auto& [r, p, us] = read;
    Timed& t = all[group_of(r.config)];
    auto row = std::find_if(t.rows.begin(), t.rows.end(), [&](const sm90::TableRow& other) {
      return same_config(other, read.row);
    });
    if (row == t.rows.end()) {
      row = t.rows.insert(row, r);
      t.us.emplace_back();
    }
    auto problem = std::find(t.problems.begin(), t.problems.end(), p);
    if (problem == t.problems.end()) problem = t.problems.insert(problem, p);
    std::vector<double>& times = t.us[static_cast<std::size_t>(row - t.rows.begin())];
    times.resize(t.problems.size());
    double& known = times[static_cast<std::size_t>(problem - t.problems.begin())];
    known = known == 0 ? us : std::min(known, us);
  }
  if (all.empty())
    return Status(ErrorCode::invalid_argument, fmt::format("{} has no times.", path));
  return all;
}

}  // namespace octavo::search_sm90
