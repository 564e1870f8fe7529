#include "times.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "gpu/sm90_feasible.h"

namespace octavo::search_sm90 {
namespace {

struct Shape {
  std::int64_t batch, heads, length;
  Causal causal = Causal::none;
};
// Few and many heads, short and long, with a mask and without: what a row is fitted to.
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

Problem posed_by(const Shape& s, int head_dim) {
  Problem p;
  p.batch = s.batch;
  p.heads_q = p.heads_kv = s.heads;
  p.len_q = p.len_kv = s.length;
  p.head_dim = p.head_dim_v = head_dim;
  p.options.causal = s.causal;
  return p;
}

// Two CTAs an SM of two warpgroups with rows of their own, at 128 columns: at (32,16,512) 138 us
// here, where others take 144, and 148 in comparisons, where others take less than here.
bool is_contradicted(const Sm90Forward& c) {
  return c.element == Element::f16 && c.head_dim == 128 && c.split_keys && c.row_groups == 2 &&
         c.block_n == 64 && !c.overlap;
}

// A warpgroup a CTA that folds all columns at once, with scores behind P V: in INT8 with scales of
// K by rows or heads it spills, for half a percent with those that are timed.
bool spills_with_other_scales(const Sm90Forward& c) {
  return sm90::bytes_pv(c) && c.head_dim == 128 && c.split_keys && c.scores_behind &&
         c.fold_columns == c.head_dim;
}

}  // namespace

Problem problem_of(std::int64_t heads, std::int64_t length, Causal causal, int head_dim) {
  return posed_by({1, heads, length, causal}, head_dim);
}

std::vector<Problem> problems_of(int head_dim, std::int64_t longest) {
  std::vector<Problem> problems;
  for (const Shape& s : kFitted)
    if (s.length <= longest) problems.push_back(posed_by(s, head_dim));
  for (const Shape& s : kUnseen)
    if (s.length <= longest) problems.push_back(posed_by(s, head_dim));
  return problems;
}

bool is_unseen(const Problem& p) {
  return std::any_of(std::begin(kUnseen), std::end(kUnseen), [&](const Shape& s) {
    return posed_by(s, static_cast<int>(p.head_dim)) == p;
  });
}

double best_of(const Timed& t, std::size_t problem) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& us : t.us) best = std::min(best, us[problem]);
  return best;
}

bool same_config(const sm90::TableRow& a, const sm90::TableRow& b) {
  return timed_config(a) == timed_config(b);
}

Sm90Forward timed_config(const sm90::TableRow& row) {
  Sm90Forward c = sm90::config_of(row, element_of(row));
  // As the modes have them: int8's K by blocks, FP8's by heads.
  c.k_block_scales = sm90::codes_qk(c) && !c.f16_scores;
  return c;
}

bool is_wanted(const sm90::TableRow& row) {
  const Sm90Forward c = timed_config(row);
  return feasible(c, 90).ok() && (!c.f16_scores || c.ones) && !is_contradicted(c) &&
         !spills_with_other_scales(c);
}

const char* const kColumns =
    "head_dim,warpgroups,block_n,stages,row_groups,cluster,overlap,scores_behind,own_o,ones,"
    "resident,fold_columns,fold_buffers,scores,ctas,batch,heads,length,causal,us\n";

std::string csv_of(const Timed& t) {
  std::string text;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
      const sm90::TableRow& r = t.rows[row];
      const Problem& p = t.problems[problem];
      text +=
          fmt::format("{},{},{},{},{},{},{:d},{:d},{:d},{:d},{},{},{},{},{},{},{},{},{:d},{:.3f}\n",
                      r.head_dim, r.warpgroups, r.block_n, r.stages, r.row_groups, r.cluster,
                      r.overlap, r.scores_behind, r.own_o, r.ones, r.resident, r.fold_columns,
                      r.fold_buffers, static_cast<int>(r.scores), r.ctas, p.batch, p.heads_q,
                      p.len_q, p.options.causal != Causal::none, t.us[row][problem]);
    }
  return text;
}

Result<std::map<Group, Timed>> read_times(const char* path) {
  std::map<Group, Timed> all;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    sm90::TableRow r{};
    Problem p;
    int overlap = 0, scores_behind = 0, own_o = 0, ones = 0, scores = 0, causal = 0;
    double us = 0;
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    if (!(fields >> r.head_dim >> r.warpgroups >> r.block_n >> r.stages >> r.row_groups >>
          r.cluster >> overlap >> scores_behind >> own_o >> ones >> r.resident >> r.fold_columns >>
          r.fold_buffers >> scores >> r.ctas >> p.batch >> p.heads_q >> p.len_q >> causal >> us))
      return Status(ErrorCode::invalid_argument, fmt::format("{} has a line '{}'.", path, line));
    r.overlap = overlap != 0;
    r.scores_behind = scores_behind != 0;
    r.own_o = own_o != 0;
    r.ones = ones != 0;
    r.scores = static_cast<sm90::Scores8Bit>(scores);
    p = posed_by({p.batch, p.heads_q, p.len_q, causal != 0 ? Causal::top_left : Causal::none},
                 r.head_dim);
    Timed& t = all[{r.head_dim, r.scores}];
    auto row = std::find_if(t.rows.begin(), t.rows.end(),
                            [&](const sm90::TableRow& other) { return same_config(other, r); });
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
