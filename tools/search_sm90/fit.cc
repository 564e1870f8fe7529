// SPDX-License-Identifier: Apache-2.0
// The second step: fits the cost model to each row's times, and selects the rows that are worth a
// kernel.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "times.h"

namespace octavo::search_sm90 {
namespace {

// The chip that the table is for.
GpuInfo h200() {
  GpuInfo gpu;
  gpu.arch = 90;
  gpu.sms = 132;
  gpu.l2_bytes = 60 << 20;
  return gpu;
}

struct Sample {
  SmLoad load;
  bool masked;
  double us, weight;
};
// The weight of a sample: a row must be accurate where it is near the best; elsewhere it is never
// chosen.
double weight_of(double of_best) { return std::pow(of_best, 3); }

double blocks_of(const sm90::TableRow& row, const SmLoad& load) {
  return std::max(load.blocks, row.estimate.alone * load.chain);
}

constexpr int kTerms = 4;  // of the time: fixed, per wave, per block, and per masked wave
using Terms = std::array<double, kTerms>;
Terms terms_of(const sm90::TableRow& row, const Sample& s) {
  return {1, s.load.waves, blocks_of(row, s.load), s.masked ? s.load.waves : 0};
}
struct Fitted {
  Terms us{};
  double error = std::numeric_limits<double>::infinity();
};

// Weighted least squares of the relative error with non-negative terms: the best of the solutions
// in which some terms are 0.
Fitted least_squares(const sm90::TableRow& row, const std::vector<Sample>& samples) {
  // Integers are masked one by one, after conversion to float. Other masks are a small part of a
  // tile.
  const unsigned terms = row.config.element == Element::int8 ? kTerms : kTerms - 1;
  Fitted best;
  for (unsigned used = 1; used < 1u << terms; ++used) {
    std::array<std::array<double, kTerms + 1>, kTerms> m{};  // normal equations
    for (const Sample& s : samples) {
      const Terms x = terms_of(row, s);
      for (int i = 0; i < kTerms; ++i) {
        for (int j = 0; j < kTerms; ++j) m[i][j] += s.weight * x[i] * x[j] / (s.us * s.us);
        m[i][kTerms] += s.weight * x[i] / s.us;
      }
    }
    for (int i = 0; i < kTerms; ++i) {
      if ((used >> i & 1) != 0) continue;
      m[i] = {};
      m[i][i] = 1;
    }
    bool solved = true;
    for (int i = 0; i < kTerms && solved; ++i) {
      solved = std::abs(m[i][i]) > 1e-12;
      for (int j = 0; j < kTerms && solved; ++j) {
        if (j == i) continue;
        const double factor = m[j][i] / m[i][i];
        for (int c = 0; c <= kTerms; ++c) m[j][c] -= factor * m[i][c];
      }
    }
    if (!solved) continue;
    Fitted here{{}, 0};
    for (int i = 0; i < kTerms; ++i) here.us[i] = m[i][kTerms] / m[i][i];
    if (*std::min_element(here.us.begin(), here.us.end()) < 0) continue;
    for (const Sample& s : samples) {
      const Terms x = terms_of(row, s);
      const double us = std::inner_product(x.begin(), x.end(), here.us.begin(), 0.0);
      here.error += s.weight * std::pow(us / s.us - 1, 2);
    }
    if (here.error < best.error) best = here;
  }
  return best;
}

// Also fits how much longer a CTA takes alone, in tenths, if an SM holds several.
void fit(sm90::TableRow& row, const std::vector<Sample>& samples) {
  double best = std::numeric_limits<double>::infinity();
  for (int tenths = 10; tenths <= 10 * row.estimate.resident; ++tenths) {
    sm90::TableRow with = row;
    with.estimate.alone = tenths / 10.0;
    const Fitted here = least_squares(with, samples);
    if (here.error >= best) continue;
    best = here.error;
    row.estimate.alone = with.estimate.alone;
    row.estimate.fixed_us = here.us[0];
    row.estimate.wave_us = here.us[1];
    row.estimate.block_us = here.us[2];
    row.estimate.masked_us = here.us[3];
  }
}

// The model's estimate for every row and problem.
using Estimates = std::vector<std::vector<double>>;
Estimates estimates_of(const Rows& rows, const std::vector<Problem>& problems) {
  Estimates by_row;
  for (const sm90::TableRow& row : rows) {
    std::vector<double>& here = by_row.emplace_back();
    for (const Problem& p : problems) here.push_back(estimated_us(row, p, h200()));
  }
  return by_row;
}

// Problems that were not timed: grids of all sizes.
std::vector<Problem> imagined(int head_dim) {
  std::vector<Problem> problems;
  for (const std::int64_t heads : {5, 10, 20, 40, 80, 160, 320})
    for (const std::int64_t length : {160, 320, 700, 1400, 2800, 5600})
      for (const Causal causal : {Causal::none, Causal::top_left})
        problems.push_back(problem_of(heads, length, causal, head_dim));
  return problems;
}

// The row among `of` that is chosen for a problem.
std::size_t taken(const Estimates& by_row, const std::vector<std::size_t>& of,
                  std::size_t problem) {
  return *std::min_element(of.begin(), of.end(), [&](std::size_t a, std::size_t b) {
    return by_row[a][problem] < by_row[b][problem];
  });
}
// How much longer than the best possible a choice among some rows takes: `us` by row and problem.
double mean_loss(const Estimates& us, const Estimates& estimates,
                 const std::vector<std::size_t>& of) {
  double sum = 0;
  for (std::size_t problem = 0; problem < us[0].size(); ++problem) {
    double best = std::numeric_limits<double>::infinity();
    for (const auto& row : us) best = std::min(best, row[problem]);
    sum += std::log(us[taken(estimates, of, problem)][problem] / best);
  }
  return sum / static_cast<double>(us[0].size());
}

// The residual of a fit may decide between two rows. Estimates are shifted by some percent where
// that brings the choice among some rows closer to the best.
struct Tuned {
  Estimates estimates;
  std::vector<double> by;  // per row
  double loss;
};
constexpr std::array kMoves = {0.88, 0.94, 0.97, 1.03, 1.06, 1.12};
// Shifts some rows by that much each, if it improves the choice.
void try_moves(Tuned& t, const Estimates& us, const std::vector<std::size_t>& of,
               std::span<const std::pair<std::size_t, double>> moves, double worth_it) {
  const auto move = [&](bool back) {
    for (const auto& [row, by] : moves)
      for (double& estimate : t.estimates[row]) estimate *= back ? 1 / by : by;
  };
  move(false);
  const double here = mean_loss(us, t.estimates, of);
  if (here >= t.loss - worth_it) return move(true);
  t.loss = here;
  for (const auto& [row, by] : moves) t.by[row] *= by;
}
Tuned tuned(const Estimates& us, const Estimates& estimates, const std::vector<std::size_t>& of) {
  constexpr int kPasses = 4;
  Tuned t{estimates, std::vector(us.size(), 1.0), mean_loss(us, estimates, of)};
  for (int pass = 0; pass < kPasses; ++pass)
    for (const std::size_t row : of)
      for (const double by : kMoves) try_moves(t, us, of, std::array{std::pair(row, by)}, 0.0003);
  return t;
}

// Shifts several rows at once, in a fixed random order: the times of masked 8-bit blocks are not
// linear, and shifting one row alone would make the choice worse.
void tune_together(Tuned& t, const Estimates& us, const std::vector<std::size_t>& of) {
  constexpr int kTries = 60000;
  std::mt19937 random(1);
  const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
  for (int i = 0; i < kTries; ++i) {
    std::vector<std::pair<std::size_t, double>> moves;
    for (const std::size_t row : of)
      if (below(3) == 0) moves.emplace_back(row, 0.9 + 0.001 * below(201));
    try_moves(t, us, of, moves, 0.00003);
  }
}

// Adds rows while that brings the choice closer to the best of all, for timed problems and, with
// half the weight, for the others; each row is a kernel to ship.
std::vector<std::size_t> picked(const Timed& fitted, const Estimates& estimates,
                                const Estimates& elsewhere) {
  // There are more 8-bit tables, and an 8-bit row is not shipped before it is needed.
  const bool in_8_bits = sm90::is_8bit_pv(fitted.rows[0].config);
  constexpr std::size_t kMost = 12;
  const double worth_it = in_8_bits ? 0.0005 : 0.0003;
  std::vector<std::size_t> chosen;
  double loss = std::numeric_limits<double>::infinity();
  while (chosen.size() < kMost) {
    std::optional<std::size_t> added;
    double least = loss - worth_it;
    for (std::size_t row = 0; row < fitted.rows.size(); ++row) {
      std::vector<std::size_t> with = chosen;
      with.push_back(row);
      const double here =
          tuned(fitted.us, estimates, with).loss + 0.5 * mean_loss(elsewhere, elsewhere, with);
      if (here < least) added = row, least = here;
    }
    if (!added) break;
    chosen.push_back(*added);
    loss = least;
  }
  return chosen;
}

constexpr std::string_view kAlwaysWritten[] = {"head_dim", "warpgroups", "block_n", "stages",
                                               "schedule"};

// The fields that the table decides: those before the output and the modifiers.
std::vector<std::string> fields_of(const Sm90ForwardConfig& c) {
  const std::string whole = to_text(c), text = whole.substr(0, whole.find(",.output=")) + "}";
  std::vector<std::string> fields;
  for (std::size_t from = text.find('{') + 1; from < text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size() - 1);
    const std::size_t equals = text.find('=', from);
    fields.push_back(text.substr(from, equals - from) + " = " +
                     text.substr(equals + 1, end - equals - 1));
    from = end + 1;
  }
  return fields;
}

// ".head_dim = 64, .warpgroups = 2, ...": the tile and its pipeline, and the fields that differ
// from the defaults.
std::string config_text(Sm90ForwardConfig c) {
  if (sm90::is_8bit_pv(c)) c.sum_rounded_p = true;  // config_of decides
  const std::vector<std::string> fields = fields_of(c), defaults = fields_of({});
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const bool always = std::any_of(
        std::begin(kAlwaysWritten), std::end(kAlwaysWritten),
        [&](std::string_view name) { return fields[i].starts_with(fmt::format(".{} =", name)); });
    if (always || fields[i] != defaults[i]) text += (text.empty() ? "" : ", ") + fields[i];
  }
  return text;
}

std::string line_of(const sm90::TableRow& row) {
  const sm90::Estimate& e = row.estimate;
  std::string estimate;
  if (e.resident != 1) estimate += fmt::format(".resident = {}, ", e.resident);
  if (e.alone != 1) estimate += fmt::format(".alone = {:.1f}, ", e.alone);
  estimate += fmt::format(".fixed_us = {:.3f}, .wave_us = {:.4f}, .block_us = {:.5f}", e.fixed_us,
                          e.wave_us, e.block_us);
  if (e.masked_us != 0) estimate += fmt::format(", .masked_us = {:.4f}", e.masked_us);
  return fmt::format("    {{.config = {{{}}},\n     .estimate = {{{}}}}},\n",
                     config_text(row.config), estimate);
}

bool replace_rows(const char* path, std::string_view table, const std::string& rows) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string begin = fmt::format("inline constexpr TableRow {}[] = {{\n", table);
  const std::size_t from = text.find(begin);
  const std::size_t to = text.find("};\n", from);
  if (from == std::string::npos || to == std::string::npos) return false;
  text.replace(from + begin.size(), to - from - begin.size(), rows);
  return static_cast<bool>(std::ofstream(path) << text);
}

// Drops rows that are no longer feasible: the rules may have become stricter since.
Timed feasible_of(const Timed& t) {
  Timed kept{{}, t.problems, {}};
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    if (!is_wanted(t.rows[row].config)) continue;
    kept.rows.push_back(t.rows[row]);
    kept.us.push_back(t.us[row]);
  }
  return kept;
}

// Corrects a row's times by what comparisons show. Four warpgroups of 160 keys of FP8 at head_dim
// 64, with three buffers, were compared with two buffers and with four of 128 keys, at twice as
// many heads and on values from the quantizers. They are 2 to 6% faster there from 4096 tokens on,
// with exact or quantized sums, with a mask or without, while they are equal here. A linear model
// cannot follow that: rows are fitted to half of it, and chosen by all of it.
double compared(const sm90::TableRow& row, const Problem& p) {
  const Sm90ForwardConfig& c = row.config;
  const bool of_160 = c.head_dim == 64 && c.warpgroups == 4 && c.block_n == 160;
  return of_160 && sm90::is_8bit_pv(c) && c.stages == 3 && p.seqlen_kv >= 4096 ? 0.98 : 1;
}
void compare(Timed& t) {
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem)
      t.us[row][problem] *= compared(t.rows[row], t.problems[problem]);
}

// The problems that rows are fitted to.
Timed without_unseen(const Timed& t) {
  Timed kept{t.rows, {}, std::vector<std::vector<double>>(t.rows.size())};
  for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
    if (is_unseen(t.problems[problem])) continue;
    kept.problems.push_back(t.problems[problem]);
    for (std::size_t row = 0; row < t.rows.size(); ++row)
      kept.us[row].push_back(t.us[row][problem]);
  }
  return kept;
}

}  // namespace

Status fit_table(const char* times, const char* header) {
  Result<std::map<Group, Timed>> all = read_times(times);
  if (!all.ok()) return all.status();
  std::string lines;
  double worst = 1;
  const bool in_8_bits = sm90::is_8bit_pv(all->begin()->second.rows[0].config);
  for (auto& [group, timed] : *all) {
    Timed t = feasible_of(timed);
    compare(t);
    Timed fitted = without_unseen(t);
    for (std::size_t row = 0; row < t.rows.size(); ++row) {
      std::vector<Sample> samples;
      // The times of a masked problem with CTAs that are not persistent do not fit a linear model.
      const bool stays = !sm90::is_split_kv(t.rows[row].config);
      for (std::size_t problem = 0; problem < fitted.problems.size(); ++problem) {
        const bool masked = fitted.problems[problem].options.causal != Causal::none;
        if (stays || !masked)
          samples.push_back({busiest_sm(t.rows[row], fitted.problems[problem], h200()), masked,
                             fitted.us[row][problem],
                             weight_of(best_of(fitted, problem) / fitted.us[row][problem])});
      }
      fit(t.rows[row], samples);
    }
    compare(t);
    compare(fitted);
    const Estimates by_line = estimates_of(t.rows, fitted.problems);
    const std::vector<std::size_t> chosen =
        picked(fitted, by_line, estimates_of(t.rows, imagined(group.head_dim)));
    Tuned moved = tuned(fitted.us, by_line, chosen);
    if (group.element == Element::int8) tune_together(moved, fitted.us, chosen);
    for (const std::size_t row : chosen) {
      sm90::TableRow& r = t.rows[row];
      sm90::Estimate& e = r.estimate;
      for (double* const us : {&e.fixed_us, &e.wave_us, &e.block_us, &e.masked_us})
        *us *= moved.by[row];
      lines += line_of(r);
    }
    const Estimates estimates = estimates_of(t.rows, t.problems);
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
      const std::size_t row = taken(estimates, chosen, problem);
      const double ratio = t.us[row][problem] / best_of(t, problem);
      const bool unseen = is_unseen(t.problems[problem]);
      if (unseen) worst = std::max(worst, ratio);
      fmt::print("{:<6} {:<56} {:>9.2f} us, estimated {:>9.2f}, best {:>9.2f}: {:.3f}  {}\n",
                 unseen ? "unseen" : "", describe(t.problems[problem]), t.us[row][problem],
                 estimates[row][problem], best_of(t, problem), ratio,
                 brief_text(timed_config(t.rows[row].config)));
    }
  }
  fmt::print("worst of the unseen: {:.3f} of the best\n", worst);
  if (!replace_rows(header, in_8_bits ? "kTable8Bit" : "kTable", lines))
    return Status(ErrorCode::invalid_argument, fmt::format("{} has no table.", header));
  return {};
}

}  // namespace octavo::search_sm90
