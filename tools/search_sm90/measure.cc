// The first step: every configuration that might be worth it, timed on the first GPU.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <limits>
#include <random>
#include <thread>

#include "attention/error.h"
#include "gpu/config_text.h"
#include "gpu/kernel_store.h"
#include "gpu/sm90_feasible.h"
#include "gpu/timing.h"
#include "numeric/formats.h"
#include "runtime/gpu_plan.h"
#include "times.h"

namespace octavo::search_sm90 {
namespace {

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
                {head_dim, warpgroups, block_n, stages, 0, 0, true, own_o, ones, 1, 1, 0, 0, 0});
          }
  for (const auto& [warpgroups, row_groups] : {std::array{1, 1}, {2, 1}, {2, 2}, {4, 1}})
    for (const auto& [block_n, stages] : {std::array{256, 1}, {128, 1}, {128, 2}, {64, 2}})
      for (const int cluster : {1, 2})
        for (const bool overlap : {true, false})
          for (const bool ones : {true, false}) {
            if (overlap && block_n == 256) continue;
            if (ones && head_dim == 256) continue;
            rows.push_back({head_dim, warpgroups, block_n, stages, row_groups, cluster, overlap,
                            false, ones, 1, 1, 0, 0, 0});
          }
  return rows;
}

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
    GpuTiming timing;
    timing.calls = work > 1e11 ? 2 : 20;
    timing.samples = 5;
    timing.warmup_ms = 3;
    auto times =
        gpu_times(kDevice, timing, [&](Stream stream) { return ready.run(a, {}, stream); });
    if (!times.ok()) return times.status();
    std::vector<double>& samples = times->samples_us;
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  static constexpr std::size_t kElements = std::size_t{1} << 26;
  static constexpr Device kDevice{Device::Kind::cuda, 0};
  std::array<Buffer, 4> buffers_;
};

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

}  // namespace

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

}  // namespace octavo::search_sm90
