// Makes the table of Hopper forward kernels, in two steps.
//
//   search_sm90 measure TIMES.csv          times configurations on the first GPU, over shapes
//   search_sm90 fit TIMES.csv HEADER       needs no GPU: fits the cost model of
//                                          gpu/choose_sm90_forward.h to each configuration, takes
//                                          those that serve some shape best, and writes their rows
//                                          into HEADER (src/config/sm90_shipped.h)
//
// Shapes that no row was fitted to are timed as well: what the new table takes for them is held
// against the best of all.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "attention/error.h"
#include "config/sm90_shipped.h"
#include "gpu/choose_sm90_forward.h"
#include "gpu/config_text.h"
#include "gpu/context.h"
#include "gpu/kernel_store.h"
#include "gpu/sm90_feasible.h"
#include "gpu/timing.h"
#include "numeric/formats.h"
#include "octavo/octavo.hpp"
#include "runtime/gpu_plan.h"

namespace octavo {
namespace {

constexpr int kHeadDims[] = {64, 96, 128, 192, 256};

// The chip that the table is for.
GpuInfo h200() {
  GpuInfo gpu;
  gpu.arch = 90;
  gpu.sms = 132;
  gpu.l2_bytes = 60 << 20;
  return gpu;
}

// --- what is tried ------------------------------------------------------------------------------

using Rows = std::vector<sm90::TableRow>;

// Rows of registers and shared memory that do not fit, or spill, drop out later.
Rows candidates(int head_dim) {
  Rows rows;
  for (const int warpgroups : {2, 3, 4})
    for (const int block_n : {64, 80, 96, 112, 128})
      for (const int stages : {2, 3, 4, 6})
        for (const bool own_o : {true, false})
          for (const bool ones : {true, false}) {
            if (ones == (head_dim == 256)) continue;  // the sums by ones won wherever there is room
            if (stages * block_n > 384 || (stages == 3 && block_n < 128)) continue;
            if (stages == 4 && block_n > 64) continue;
            rows.push_back(
                {head_dim, warpgroups, block_n, stages, 0, 0, true, own_o, ones, 1, 0, 0, 0});
          }
  for (const auto& [warpgroups, row_groups] : {std::array{1, 1}, {2, 1}, {2, 2}, {4, 1}})
    for (const auto& [block_n, stages] : {std::array{256, 1}, {128, 1}, {128, 2}, {64, 2}})
      for (const int cluster : {1, 2})
        for (const bool overlap : {true, false})
          for (const bool ones : {true, false}) {
            if (overlap && block_n == 256) continue;
            if (ones && head_dim == 256) continue;
            rows.push_back({head_dim, warpgroups, block_n, stages, row_groups, cluster, overlap,
                            false, ones, 1, 0, 0, 0});
          }
  return rows;
}

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
                             {1, 8, 512, Causal::top_left},
                             {2, 8, 2048, Causal::top_left},
                             {32, 16, 512, Causal::top_left},
                             {8, 16, 2048, Causal::top_left},
                             {2, 16, 8192, Causal::top_left},
                             {1, 16, 16384, Causal::top_left}};
constexpr Shape kUnseen[] = {
    {1, 12, 384}, {3, 8, 640}, {1, 16, 3000}, {6, 12, 1536, Causal::top_left}};
static_assert(std::size(kUnseen) * std::size(kHeadDims) == 20);

Problem problem_of(const Shape& s, int head_dim) {
  Problem p;
  p.batch = s.batch;
  p.heads_q = p.heads_kv = s.heads;
  p.len_q = p.len_kv = s.length;
  p.head_dim = p.head_dim_v = head_dim;
  p.options.causal = s.causal;
  return p;
}

// --- measuring ----------------------------------------------------------------------------------

// CTAs that an SM holds at once; who stays has it alone.
int resident_ctas(const Sm90Forward& c, int registers) {
  constexpr int kRegisters = 65536, kSharedMemory = 228 * 1024, kReserved = 1024;
  if (!c.split_keys) return 1;
  return std::min(kRegisters / (round_up(registers, 8) * sm90::threads(c)),
                  kSharedMemory / (sm90::smem_bytes(c) + kReserved));
}

// Compiled by all cores before the first is timed; what does not compile, or spills, is left out.
Rows compiled(const Rows& rows) {
  std::vector<int> resident(rows.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i)
    workers.emplace_back([&] {
      for (std::size_t n = next++; n < rows.size(); n = next++) {
        const Sm90Forward config = sm90::config_of(rows[n], Element::f16);
        const auto made = kernel_store().get(kernel_source(config));
        if (!made.ok()) continue;
        const CubinKernel* kernel = (*made)->info.find((*made)->kernel.lowered_name);
        if (kernel != nullptr) resident[n] = resident_ctas(config, kernel->registers);
      }
    });
  for (std::thread& worker : workers) worker.join();
  Rows kept;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    if (resident[n] == 0) continue;
    kept.push_back(rows[n]);
    kept.back().resident = resident[n];
  }
  return kept;
}

class Bench {
 public:
  static Result<Bench> make() {
    Bench bench;
    std::vector<std::uint16_t> values(kElements);
    std::mt19937 random(42);
    std::normal_distribution<float> normal;
    for (std::uint16_t& x : values) x = f16_from_f32(normal(random));
    for (Buffer& buffer : bench.buffers_) {
      auto made = Buffer::make(kDevice, kElements * 2);
      if (!made.ok()) return made.status();
      buffer = std::move(made).value();
      OCTAVO_RETURN_IF_ERROR(buffer.upload(values.data(), kElements * 2));
    }
    return bench;
  }

  Result<double> microseconds(const Problem& p, const sm90::TableRow& row) {
    const auto plan = make_gpu_plan(p, kDevice, to_text(sm90::config_of(row, Element::f16)));
    if (!plan.ok()) return plan.status();
    const auto tensor = [&](Buffer& b) {
      return Tensor::bhsd(b.data(), DType::f16, p.batch, p.heads_q, p.len_q, p.head_dim);
    };
    Arguments a;
    a.q = tensor(buffers_[0]);
    a.k = tensor(buffers_[1]);
    a.v = tensor(buffers_[2]);
    a.out = tensor(buffers_[3]);
    const Plan ready(*plan);
    const double work = 4.0 * static_cast<double>(p.batch * p.heads_q * p.len_q * p.len_kv) *
                        static_cast<double>(p.head_dim);
    GraphTiming timing;
    timing.calls = work > 1e11 ? 2 : 20;
    timing.samples = 5;
    timing.warmup_ms = 3;
    auto samples =
        graph_times_us(kDevice, timing, [&](Stream stream) { return ready.run(a, {}, stream); });
    if (!samples.ok()) return samples.status();
    std::sort(samples->begin(), samples->end());
    return (*samples)[samples->size() / 2];
  }

 private:
  static constexpr std::size_t kElements = std::size_t{1} << 26;
  static constexpr Device kDevice{Device::Kind::cuda, 0};
  std::array<Buffer, 4> buffers_;
};

// --- fitting ------------------------------------------------------------------------------------

struct Sample {
  SmLoad load;
  double us;
};

// Least squares of the relative error over fixed, wave and block time, none of them negative: the
// best of the solutions in which some of them are 0.
void fit(sm90::TableRow& row, const std::vector<Sample>& samples) {
  double best = std::numeric_limits<double>::infinity();
  for (unsigned used = 1; used < 8; ++used) {
    std::array<std::array<double, 4>, 3> m{};  // normal equations
    for (const Sample& s : samples) {
      const std::array<double, 3> x = {1 / s.us, s.load.waves / s.us, s.load.blocks / s.us};
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) m[i][j] += x[i] * x[j];
        m[i][3] += x[i];
      }
    }
    for (int i = 0; i < 3; ++i)
      if ((used >> i & 1) == 0) m[i] = {i == 0 ? 1.0 : 0, i == 1 ? 1.0 : 0, i == 2 ? 1.0 : 0, 0};
    bool solved = true;
    for (int i = 0; i < 3 && solved; ++i) {
      solved = std::abs(m[i][i]) > 1e-12;
      for (int j = 0; j < 3 && solved; ++j) {
        if (j == i) continue;
        const double factor = m[j][i] / m[i][i];
        for (int c = 0; c < 4; ++c) m[j][c] -= factor * m[i][c];
      }
    }
    if (!solved) continue;
    std::array<double, 3> x{};
    for (int i = 0; i < 3; ++i) x[i] = m[i][3] / m[i][i];
    if (*std::min_element(x.begin(), x.end()) < 0) continue;
    double error = 0;
    for (const Sample& s : samples)
      error += std::pow((x[0] + x[1] * s.load.waves + x[2] * s.load.blocks) / s.us - 1, 2);
    if (error >= best) continue;
    best = error;
    row.fixed_us = x[0];
    row.wave_us = x[1];
    row.block_us = x[2];
  }
}

// Rows, each with its times by problem.
struct Timed {
  Rows rows;
  std::vector<Problem> problems;
  std::vector<std::vector<double>> us;  // by row, by problem
};

double best_of(const Timed& t, std::size_t problem) {
  double best = std::numeric_limits<double>::infinity();
  for (const auto& us : t.us) best = std::min(best, us[problem]);
  return best;
}

// Clocks move with the heat of what ran before: problem by problem, all rows one after the other.
Result<Timed> timed(Bench& bench, const Rows& rows, const std::vector<Problem>& problems) {
  Timed t{rows, problems, {}};
  t.us.assign(rows.size(), std::vector(problems.size(), 0.0));
  for (std::size_t problem = 0; problem < problems.size(); ++problem)
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Result<double> measured = bench.microseconds(problems[problem], rows[row]);
      if (!measured.ok()) return measured.status();
      t.us[row][problem] = *measured;
    }
  return t;
}

bool same_config(const sm90::TableRow& a, const sm90::TableRow& b) {
  return sm90::config_of(a, Element::f16) == sm90::config_of(b, Element::f16);
}

// Of what was timed twice.
void take_better(Timed& t, const Timed& other) {
  for (std::size_t row = 0; row < other.rows.size(); ++row)
    for (std::size_t problem = 0; problem < other.problems.size(); ++problem) {
      const auto r = std::find_if(t.rows.begin(), t.rows.end(),
                                  [&](const auto& x) { return same_config(x, other.rows[row]); });
      const auto p = std::find(t.problems.begin(), t.problems.end(), other.problems[problem]);
      if (r == t.rows.end() || p == t.problems.end()) continue;
      double& us = t.us[static_cast<std::size_t>(r - t.rows.begin())]
                       [static_cast<std::size_t>(p - t.problems.begin())];
      us = std::min(us, other.us[row][problem]);
    }
}

// Rows that come near the best of some problem.
Rows promising(const Timed& t) {
  constexpr double kNear = 1.03;
  Rows kept;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem)
      if (t.us[row][problem] <= kNear * best_of(t, problem)) {
        kept.push_back(t.rows[row]);
        break;
      }
  return kept;
}

// One line for every row and problem.
constexpr char kColumns[] =
    "head_dim,warpgroups,block_n,stages,row_groups,cluster,overlap,own_o,ones,resident,batch,heads,"
    "length,causal,us\n";

std::string csv_of(const Timed& t) {
  std::string text;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
      const sm90::TableRow& r = t.rows[row];
      const Problem& p = t.problems[problem];
      text += fmt::format("{},{},{},{},{},{},{:d},{:d},{:d},{},{},{},{},{:d},{:.3f}\n", r.head_dim,
                          r.warpgroups, r.block_n, r.stages, r.row_groups, r.cluster, r.overlap,
                          r.own_o, r.ones, r.resident, p.batch, p.heads_q, p.len_q,
                          p.options.causal != Causal::none, t.us[row][problem]);
    }
  return text;
}

std::vector<Problem> problems_of(int head_dim, std::int64_t longest) {
  std::vector<Problem> problems;
  for (const Shape& s : kFitted)
    if (s.length <= longest) problems.push_back(problem_of(s, head_dim));
  for (const Shape& s : kUnseen)
    if (s.length <= longest) problems.push_back(problem_of(s, head_dim));
  return problems;
}

// Long problems are for those that short ones leave.
Status measure(const char* path) {
  constexpr std::int64_t kShort = 2048, kAny = std::numeric_limits<std::int64_t>::max();
  auto bench = Bench::make();
  if (!bench.ok()) return bench.status();
  std::ofstream out(path);
  out << kColumns;
  for (const int head_dim : kHeadDims) {
    Rows rows;
    for (const sm90::TableRow& row : candidates(head_dim))
      if (feasible(sm90::config_of(row, Element::f16), 90).ok()) rows.push_back(row);
    rows = compiled(rows);
    Result<Timed> t = timed(*bench, rows, problems_of(head_dim, kShort));
    if (!t.ok()) return t.status();
    const Rows kept = promising(*t);
    fmt::print("head_dim {}: {} configurations, {} near the best of some shape\n", head_dim,
               rows.size(), kept.size());
    Result<Timed> again = timed(*bench, kept, problems_of(head_dim, kAny));
    if (!again.ok()) return again.status();
    take_better(*again, *t);
    out << csv_of(*again) << std::flush;
  }
  return out ? Status()
             : Status(ErrorCode::invalid_argument, fmt::format("{} cannot be written.", path));
}

Result<std::map<int, Timed>> read_times(const char* path) {
  std::map<int, Timed> all;
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    sm90::TableRow r{};
    Problem p;
    int overlap = 0, own_o = 0, ones = 0, causal = 0;
    double us = 0;
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    if (!(fields >> r.head_dim >> r.warpgroups >> r.block_n >> r.stages >> r.row_groups >>
          r.cluster >> overlap >> own_o >> ones >> r.resident >> p.batch >> p.heads_q >> p.len_q >>
          causal >> us))
      return Status(ErrorCode::invalid_argument, fmt::format("{} has a line '{}'.", path, line));
    r.overlap = overlap != 0;
    r.own_o = own_o != 0;
    r.ones = ones != 0;
    p = problem_of({p.batch, p.heads_q, p.len_q, causal != 0 ? Causal::top_left : Causal::none},
                   r.head_dim);
    Timed& t = all[r.head_dim];
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
    times[static_cast<std::size_t>(problem - t.problems.begin())] = us;
  }
  if (all.empty())
    return Status(ErrorCode::invalid_argument, fmt::format("{} has no times.", path));
  return all;
}

bool is_unseen(const Problem& p) {
  return std::any_of(std::begin(kUnseen), std::end(kUnseen), [&](const Shape& s) {
    return problem_of(s, static_cast<int>(p.head_dim)) == p;
  });
}

// What the model says of every row and problem.
using Estimates = std::vector<std::vector<double>>;
Estimates estimates_of(const Rows& rows, const std::vector<Problem>& problems) {
  Estimates by_row;
  for (const sm90::TableRow& row : rows) {
    std::vector<double>& here = by_row.emplace_back();
    for (const Problem& p : problems) here.push_back(estimated_us(row, p, h200()));
  }
  return by_row;
}

// Problems that nobody timed: grids of all sizes.
std::vector<Problem> imagined(int head_dim) {
  std::vector<Problem> problems;
  for (const std::int64_t heads : {5, 10, 20, 40, 80, 160, 320})
    for (const std::int64_t length : {160, 320, 700, 1400, 2800, 5600})
      for (const Causal causal : {Causal::none, Causal::top_left})
        problems.push_back(problem_of({1, heads, length, causal}, head_dim));
  return problems;
}

// Which of some rows is taken for a problem.
std::size_t taken(const Estimates& by_row, const std::vector<std::size_t>& of,
                  std::size_t problem) {
  return *std::min_element(of.begin(), of.end(), [&](std::size_t a, std::size_t b) {
    return by_row[a][problem] < by_row[b][problem];
  });
}
// How much longer than necessary a choice among some rows takes: `us` by row and problem.
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

// Rows are added while that brings the choice nearer to the best of all, for what was timed and, by
// half, for what was not; each is a kernel to ship.
std::vector<std::size_t> picked(const Timed& fitted, const Estimates& estimates,
                                const Estimates& elsewhere) {
  constexpr std::size_t kMost = 10;
  constexpr double kWorthIt = 0.0003;
  std::vector<std::size_t> chosen;
  double loss = std::numeric_limits<double>::infinity();
  while (chosen.size() < kMost) {
    std::optional<std::size_t> added;
    double least = loss - kWorthIt;
    for (std::size_t row = 0; row < fitted.rows.size(); ++row) {
      std::vector<std::size_t> with = chosen;
      with.push_back(row);
      const double here =
          mean_loss(fitted.us, estimates, with) + 0.5 * mean_loss(elsewhere, elsewhere, with);
      if (here < least) added = row, least = here;
    }
    if (!added) break;
    chosen.push_back(*added);
    loss = least;
  }
  return chosen;
}

std::string line_of(const sm90::TableRow& r) {
  return fmt::format("    {{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {:.3f}, {:.4f}, {:.5f}}},\n",
                     r.head_dim, r.warpgroups, r.block_n, r.stages, r.row_groups, r.cluster,
                     r.overlap, r.own_o, r.ones, r.resident, r.fixed_us, r.wave_us, r.block_us);
}

bool replace_rows(const char* path, const std::string& rows) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string begin = "inline constexpr TableRow kTable[] = {\n";
  const std::size_t from = text.find(begin);
  const std::size_t to = text.find("};\n", from);
  if (from == std::string::npos || to == std::string::npos) return false;
  text.replace(from + begin.size(), to - from - begin.size(), rows);
  return static_cast<bool>(std::ofstream(path) << text);
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

Status fit_table(const char* times, const char* header) {
  Result<std::map<int, Timed>> all = read_times(times);
  if (!all.ok()) return all.status();
  std::string lines;
  double worst = 1;
  for (auto& [head_dim, t] : *all) {
    Timed fitted = without_unseen(t);
    for (std::size_t row = 0; row < t.rows.size(); ++row) {
      std::vector<Sample> samples;
      // CTAs that come and go finish a masked problem at times that no line is good for.
      const bool stays = t.rows[row].cluster == 0;
      for (std::size_t problem = 0; problem < fitted.problems.size(); ++problem)
        if (stays || fitted.problems[problem].options.causal == Causal::none)
          samples.push_back(
              {busiest_sm(t.rows[row], fitted.problems[problem], h200()), fitted.us[row][problem]});
      fit(t.rows[row], samples);
    }
    const std::vector<std::size_t> chosen = picked(fitted, estimates_of(t.rows, fitted.problems),
                                                   estimates_of(t.rows, imagined(head_dim)));
    for (const std::size_t row : chosen) lines += line_of(t.rows[row]);
    const Estimates estimates = estimates_of(t.rows, t.problems);
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem) {
      const std::size_t row = taken(estimates, chosen, problem);
      const double ratio = t.us[row][problem] / best_of(t, problem);
      const bool unseen = is_unseen(t.problems[problem]);
      if (unseen) worst = std::max(worst, ratio);
      fmt::print("{:<6} {:<56} {:>9.2f} us, estimated {:>9.2f}, best {:>9.2f}: {:.3f}  {}\n",
                 unseen ? "unseen" : "", describe(t.problems[problem]), t.us[row][problem],
                 estimates[row][problem], best_of(t, problem), ratio,
                 brief_text(sm90::config_of(t.rows[row], Element::f16)));
    }
  }
  fmt::print("worst of the unseen: {:.3f} of the best\n", worst);
  if (!replace_rows(header, lines))
    return Status(ErrorCode::invalid_argument, fmt::format("{} has no table.", header));
  return {};
}

Status search(int argc, char** argv) {
  const std::string_view step = argc > 1 ? argv[1] : "";
  if (step == "measure" && argc == 3) return measure(argv[2]);
  if (step == "fit" && argc == 4) return fit_table(argv[2], argv[3]);
  return Status(ErrorCode::invalid_argument,
                "usage: search_sm90 measure TIMES.csv | search_sm90 fit TIMES.csv HEADER");
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  const octavo::Status status = octavo::search(argc, argv);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}
