// SPDX-License-Identifier: Apache-2.0
// The first step: times every candidate configuration on the first GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <limits>
#include <random>
#include <span>
#include <thread>

#include "base/error.h"
#include "config/v_layout.h"
#include "gpu/driver/timing.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_fields.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_store.h"
#include "numeric/formats.h"
#include "runtime/buffer.h"
#include "times.h"

namespace octavo::search_sm90 {
namespace {

template <class Table>
bool has(const Table& rows, const sm90::TableRow& row) {
  return std::any_of(std::begin(rows), std::end(rows),
                     [&](const sm90::TableRow& other) { return same_config(row, other); });
}
bool is_in_table(const sm90::TableRow& row) {
  return has(sm90::kTable, row) || has(sm90::kTable8Bit, row);
}

// CTAs that an SM holds at once; a persistent CTA has the SM alone.
int resident_ctas(const Sm90ForwardConfig& c, int registers) {
  constexpr int kRegisters = 65536, kSharedMemory = 228 * 1024, kReserved = 1024;
  if (!sm90::is_split_kv(c)) return 1;
  return std::min(kRegisters / (round_up(registers, 8) * sm90::threads(c)),
                  kSharedMemory / (sm90::smem_bytes(c) + kReserved));
}

// Compiles on all cores before the first is timed; rows that do not compile, or spill, are dropped.
Rows compiled(const Rows& rows) {
  std::vector<int> resident(rows.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(std::thread::hardware_concurrency(), 1u); ++i)
    workers.emplace_back([&] {
      for (std::size_t n = next++; n < rows.size(); n = next++) {
        const Sm90ForwardConfig config = timed_config(rows[n].config);
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
    kept.back().estimate.resident = resident[n];
  }
  return kept;
}

class Bench {
 public:
  static Result<Bench> make(Element element) {
    Bench bench;
    std::vector<std::uint16_t> values(kElements + bench.buffers_.size() * kApart);
    std::mt19937 random(42);
    std::normal_distribution<float> normal;
    const auto code = [&]() -> unsigned {
      const float value = deviation(element) * normal(random);
      return element == Element::int8 ? int8_from_f32(value) : e4m3_from_f32(value);
    };
    for (std::uint16_t& x : values)
      x = element == Element::f16 ? f16_from_f32(normal(random))
                                  : static_cast<std::uint16_t>(code() | code() << 8);
    // The buffers differ: if Q were K, each row's largest score by far would be on the diagonal,
    // and every row's reference maximum would move there.
    for (std::size_t i = 0; i < bench.buffers_.size(); ++i)
      OCTAVO_RETURN_IF_ERROR(fill(bench.buffers_[i], values.data() + i * kApart, kElements));
    const std::vector<float> scales(kScales, 1 / deviation(element));
    OCTAVO_RETURN_IF_ERROR(fill(bench.scales_, scales.data(), scales.size()));
    return bench;
  }

  Result<double> microseconds(const Problem& p, const sm90::TableRow& row,
                              const GpuTiming& timing) {
    const Result<const Gpu*> gpu = open_gpu(kDevice.index);
    if (!gpu.ok()) return gpu.status();
    const Sm90ForwardConfig config = timed_config(row.config);
    const Result<LoadedSm90Forward> kernel = load_sm90_forward(**gpu, config);
    if (!kernel.ok()) return kernel.status();
    Arguments a = arguments(p, config.element);
    if (config.k_scales == KScales::block) a.k_scales.granularity = Granularity::block;
    auto times = gpu_times(kDevice, timing, [&](Stream stream) {
      return launch_sm90_forward(**gpu, *kernel, p, a, stream);
    });
    if (!times.ok()) return times.status();
    std::vector<double>& samples = times->samples_us;
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  template <class T>
  static Status fill(Buffer& buffer, const T* values, std::size_t count) {
    auto made = Buffer::make(kDevice, count * sizeof(T));
    if (!made.ok()) return made.status();
    buffer = std::move(made).value();
    return buffer.upload(values, count * sizeof(T));
  }

  Arguments arguments(const Problem& p, Element element) const {
    const DType dtype = element == Element::f16    ? DType::f16
                        : element == Element::int8 ? DType::int8
                                                   : DType::e4m3;
    const auto tensor = [&](const Buffer& b, DType type) {
      return Tensor::bhsd(b.data(), type, p.batch, p.heads_q, p.seqlen_q, p.head_dim);
    };
    Arguments a;
    a.q = tensor(buffers_[0], dtype);
    a.k = tensor(buffers_[1], dtype);
    a.v = tensor(buffers_[2], dtype);
    a.out = tensor(buffers_[3], DType::f16);
    if (element == Element::f16) return a;
    a.q_scales = a.k_scales = a.v_scales = {static_cast<const float*>(scales_.data())};
    a.q_scales.granularity = Granularity::row;
    a.k_scales.granularity = Granularity::head;
    a.v_scales.granularity = Granularity::channel;
    const std::int64_t column = v_column_bytes(p.seqlen_kv);  // V is transposed
    a.v.shape = {p.batch, p.heads_kv, p.head_dim, column};
    a.v.stride = {p.heads_kv * p.head_dim * column, p.head_dim * column, column, 1};
    return a;
  }

  static constexpr std::size_t kElements = std::size_t{1} << 26, kScales = std::size_t{1} << 20;
  static constexpr std::size_t kApart = 10007;  // values; not a multiple of a row or a head
  // Of quantized values: |q k| stays far below FP16's limit, and few values are saturated.
  static constexpr float deviation(Element element) { return element == Element::int8 ? 30 : 5; }
  static constexpr Device kDevice{Device::Kind::cuda, 0};
  std::array<Buffer, 4> buffers_;
  Buffer scales_;
};

// Enough to drop rows that are far from the best: nothing is hot yet.
GpuTiming short_timing(const Problem& p) {
  const double work = 4.0 * static_cast<double>(p.batch * p.heads_q * p.seqlen_q * p.seqlen_kv) *
                      static_cast<double>(p.head_dim);
  GpuTiming timing;
  timing.calls = work > 1e11 ? 2 : 20;
  timing.samples = 5;
  timing.warmup_ms = 3;
  return timing;
}

// Clocks change with the temperature that earlier work left: problem by problem, all rows one after
// the other.
Result<Timed> timed(Bench& bench, const Rows& rows, const std::vector<Problem>& problems) {
  Timed t{rows, problems, {}};
  t.us.assign(rows.size(), std::vector(problems.size(), 0.0));
  for (std::size_t problem = 0; problem < problems.size(); ++problem)
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const Result<double> measured =
          bench.microseconds(problems[problem], rows[row], short_timing(problems[problem]));
      if (!measured.ok()) return measured.status();
      t.us[row][problem] = *measured;
    }
  return t;
}

// Keeps the better of two times.
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

// Rows that are close to the best of some problem.
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

// As in the comparisons: under a sustained load, alternating.
GpuTiming lasting_timing(double us) {
  GpuTiming timing;
  timing.calls = static_cast<int>(std::clamp(4000 / us, 1.0, 20.0));
  timing.samples = 3;
  timing.warmup_ms = 5;
  return timing;
}

bool is_worth_another(const Timed& t, std::size_t row, std::size_t problem) {
  constexpr double kNear = 1.1;
  return t.us[row][problem] <= kNear * best_of(t, problem) || is_in_table(t.rows[row]);
}

// Drops rows that no longer compile, or spill.
Timed still_compiled(const Timed& t) {
  Rows again;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem)
      if (is_worth_another(t, row, problem)) {
        again.push_back(t.rows[row]);
        break;
      }
  const Rows made = compiled(again);
  Timed kept{{}, t.problems, {}};
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    if (has(again, t.rows[row]) && !has(made, t.rows[row])) continue;
    kept.rows.push_back(t.rows[row]);
    kept.us.push_back(t.us[row]);
  }
  return kept;
}

// Times problems that are not on record, for all rows that still compile.
Result<Timed> with_new_problems(Bench& bench, const Timed& t) {
  std::vector<Problem> missing =
      problems_of(t.rows[0].config.head_dim, std::numeric_limits<std::int64_t>::max());
  std::erase_if(missing, [&](const Problem& p) {
    return std::find(t.problems.begin(), t.problems.end(), p) != t.problems.end();
  });
  if (missing.empty()) return t;
  const Rows made = compiled(t.rows);
  Result<Timed> timed_now = timed(bench, made, missing);
  if (!timed_now.ok()) return timed_now.status();
  Timed both{made, t.problems, {}};
  both.problems.insert(both.problems.end(), missing.begin(), missing.end());
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    const auto now = std::find_if(made.begin(), made.end(),
                                  [&](const auto& x) { return same_config(x, t.rows[row]); });
    if (now == made.end()) continue;
    std::vector<double>& us = both.us.emplace_back(t.us[row]);
    const auto& more = timed_now->us[static_cast<std::size_t>(now - made.begin())];
    us.insert(us.end(), more.begin(), more.end());
  }
  return both;
}

// Times the rows near the best of one problem again, alternating; the others keep their distance.
// Every other round runs in reverse: if power is the limit, equal rows differed by up to 12% in
// rounds that all ran in one direction.
Status time_again(Bench& bench, Timed& t, std::size_t problem) {
  constexpr std::size_t kRounds = 4;
  const double best = best_of(t, problem);
  std::vector<std::size_t> order;
  for (std::size_t row = 0; row < t.rows.size(); ++row)
    if (is_worth_another(t, row, problem)) order.push_back(row);
  std::map<std::size_t, std::vector<double>> rounds;
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (const std::size_t row : order) {
      const Result<double> measured =
          bench.microseconds(t.problems[problem], t.rows[row], lasting_timing(best));
      if (!measured.ok()) return measured.status();
      rounds[row].push_back(*measured);
    }
    std::reverse(order.begin(), order.end());
  }
  std::map<std::size_t, double> again;
  std::vector<double> pace;
  for (auto& [row, us] : rounds) {
    std::sort(us.begin(), us.end());
    again[row] = (us[kRounds / 2 - 1] + us[kRounds / 2]) / 2;
    pace.push_back(again[row] / t.us[row][problem]);
  }
  std::sort(pace.begin(), pace.end());
  for (std::size_t row = 0; row < t.rows.size(); ++row) {
    const auto timed = again.find(row);
    double& us = t.us[row][problem];
    us = timed == again.end() ? us * pace[pace.size() / 2] : timed->second;
  }
  return {};
}

}  // namespace

Status compare_choice(const Problem& p) {
  auto bench = Bench::make(Element::f16);
  if (!bench.ok()) return bench.status();
  const Result<const Gpu*> gpu = open_gpu(0);
  if (!gpu.ok()) return gpu.status();
  const auto head_dim = static_cast<int>(p.head_dim);
  Rows rows = candidates({.head_dim = head_dim});
  const sm90::TableRow* choice = nullptr;
  for (const sm90::TableRow& row : sm90::kTable) {
    if (row.config.head_dim != head_dim) continue;
    if (!has(rows, row)) rows.push_back(row);
    if (choice == nullptr ||
        estimated_us(row, p, (*gpu)->info) < estimated_us(*choice, p, (*gpu)->info))
      choice = &row;
  }
  if (choice == nullptr)
    return Status(ErrorCode::unsupported,
                  fmt::format("head_dim is {}; supported: those of the table.", head_dim));
  Result<Timed> t = timed(*bench, compiled(rows), {p});
  if (!t.ok()) return t.status();
  OCTAVO_RETURN_IF_ERROR(time_again(*bench, *t, 0));
  double chosen = 0;
  std::size_t best = 0;
  for (std::size_t row = 0; row < t->rows.size(); ++row) {
    if (same_config(t->rows[row], *choice)) chosen = t->us[row][0];
    if (t->us[row][0] < t->us[best][0]) best = row;
  }
  fmt::print("({},{},{},{}): {} configurations; the table's takes {:.2f} us, the best {:.2f}: {}\n",
             p.batch, p.heads_q, p.seqlen_q, p.head_dim, t->rows.size(), chosen, t->us[best][0],
             to_text(timed_config(t->rows[best].config)));
  return {};
}

Status measure_again(Element element, std::span<const int> head_dims, const char* known,
                     const char* path) {
  auto bench = Bench::make(element);
  if (!bench.ok()) return bench.status();
  auto on_record = read_times(known);
  if (!on_record.ok()) return on_record.status();
  std::ofstream out(path);
  out << kColumns;
  for (auto& [group, all] : *on_record) {
    if (group.element != element ||
        std::find(head_dims.begin(), head_dims.end(), group.head_dim) == head_dims.end()) {
      out << csv_of(all);
      continue;
    }
    const Result<Timed> complete = with_new_problems(*bench, all);
    if (!complete.ok()) return complete.status();
    Timed t = still_compiled(*complete);
    for (std::size_t problem = 0; problem < t.problems.size(); ++problem)
      OCTAVO_RETURN_IF_ERROR(time_again(*bench, t, problem));
    out << csv_of(t) << std::flush;
  }
  return out ? Status()
             : Status(ErrorCode::invalid_argument, fmt::format("{} cannot be written.", path));
}

// Long problems are timed only for the rows that short ones leave.
Status measure(Element element, std::span<const int> head_dims, const char* path,
               const char* known) {
  constexpr std::int64_t kShort = 2048, kAny = std::numeric_limits<std::int64_t>::max();
  auto bench = Bench::make(element);
  if (!bench.ok()) return bench.status();
  std::map<Group, Timed> on_record;
  if (known != nullptr) {
    auto read = read_times(known);
    if (!read.ok()) return read.status();
    on_record = std::move(read).value();
  }
  std::ofstream out(path);
  out << kColumns;
  std::vector<Group> groups;
  for (const int head_dim : head_dims) {
    if (element != Element::e4m3) {
      groups.push_back({head_dim, element, ScoreType::f32});
      continue;
    }
    groups.push_back({head_dim, element, ScoreType::f32});
    groups.push_back({head_dim, element, ScoreType::f16});
    // Head dimensions between the usual ones skip this.
    if (head_dim != 96 && head_dim != 192)
      groups.push_back({head_dim, element, ScoreType::f16_fast});
  }
  for (const Group& group : groups) {
    const int head_dim = group.head_dim;
    Rows wanted = candidates(group);
    const Rows& timed_before = on_record[group].rows;
    std::erase_if(wanted, [&](const sm90::TableRow& row) {
      return has(timed_before, row) && !is_in_table(row);
    });
    const Rows rows = compiled(wanted);
    Result<Timed> t = timed(*bench, rows, problems_of(head_dim, kShort));
    if (!t.ok()) return t.status();
    const Rows kept = promising(*t);
    fmt::print("head_dim {}, scores {}: {} configurations, {} near the best of some shape\n",
               head_dim, EnumText<ScoreType>::kNames.at(static_cast<std::size_t>(group.scores)),
               rows.size(), kept.size());
    Result<Timed> again = timed(*bench, kept, problems_of(head_dim, kAny));
    if (!again.ok()) return again.status();
    take_better(*again, *t);
    out << csv_of(*again) << std::flush;
  }
  return out ? Status()
             : Status(ErrorCode::invalid_argument, fmt::format("{} cannot be written.", path));
}

}  // namespace octavo::search_sm90
