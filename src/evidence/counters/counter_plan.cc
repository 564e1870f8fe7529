// SPDX-License-Identifier: Apache-2.0
#include "evidence/counters/counter_plan.h"

#include <algorithm>

#include "numeric/fork_safe.h"

namespace octavo::evidence {
namespace {

std::optional<double> value_of(const CounterValues& values, std::string_view key) {
  const auto found = values.find(key);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

std::optional<double> sum(const CounterValues& values, std::string_view a, std::string_view b) {
  const auto x = value_of(values, a), y = value_of(values, b);
  return x && y ? std::optional(*x + *y) : std::nullopt;
}

void put_ratio(CounterValues& values, std::string_view key, std::optional<double> of,
               std::optional<double> to, double scale) {
  if (of && to && *to > 0) values[std::string(key)] = *of / *to * scale;
}

void put_product(CounterValues& values, std::string_view key, std::string_view a,
                 std::string_view b) {
  const auto x = value_of(values, a), y = value_of(values, b);
  if (x && y) values[std::string(key)] = *x * *y;
}

// The groups in the order of their first counter, without metrics that the chip lacks.
std::vector<std::pair<std::string_view, std::vector<std::string>>> groups_of(
    const std::vector<ResolvedCounter>& counters) {
  std::vector<std::pair<std::string_view, std::vector<std::string>>> groups;
  for (const ResolvedCounter& c : counters) {
    if (c.metric.empty()) continue;
    auto at = std::find_if(groups.begin(), groups.end(),
                           [&](const auto& g) { return g.first == c.counter->group; });
    if (at == groups.end()) at = groups.insert(groups.end(), {c.counter->group, {}});
    at->second.push_back(c.metric);
  }
  return groups;
}

}  // namespace

const std::vector<Counter>& counters_table() {
  // Names of GH100 first. If a chip has a second form of a metric, the first is deprecated there.
  static constinit MadeOnce<std::vector<Counter>> made;
  return made.get([] {
    return std::vector<Counter>{
        {"time_ns", "ns", "time", {"gpu__time_duration.sum"}},
        {"sm_clock_hz", "Hz", "time", {"sm__cycles_elapsed.avg.per_second"}},
        {"sm_cycles", "cycles", "time", {"sm__cycles_elapsed.max"}},
        {"sm_active_cycles", "cycles", "time", {"sm__cycles_active.avg"}},
        {"sm_active_cycles_all", "cycles", "time", {"sm__cycles_active.sum"}},
        {"tensor_active_pct",
         "%",
         "tensor",
         {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"}},
        {"tensor_busy_pct",
         "%",
         "tensor",
         {"sm__pipe_tensor_cycles_active_v2.avg.pct_of_peak_sustained_active",
          "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}},
        {"tensor_float_pct",
         "%",
         "tensor",
         {"sm__pipe_tensor_op_hmma_cycles_active_v2.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"}},
        {"tensor_integer_pct",
         "%",
         "tensor",
         {"sm__pipe_tensor_op_imma_cycles_active_v2.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_op_imma_cycles_active.avg.pct_of_peak_sustained_elapsed",
          "sm__pipe_tensor_subpipe_imma_cycles_active.avg.pct_of_peak_sustained_elapsed"}},
        {"dram_pct", "%", "dram", {"dram__throughput.avg.pct_of_peak_sustained_elapsed"}},
        {"dram_read_bytes", "bytes", "dram", {"dram__bytes_read.sum"}},
        {"dram_write_bytes", "bytes", "dram", {"dram__bytes_write.sum"}},
        {"dram_peak_bytes_per_cycle", "bytes/cycle", "dram", {"dram__bytes.sum.peak_sustained"}},
        {"dram_clock_hz", "Hz", "dram", {"dram__cycles_elapsed.avg.per_second"}},
        {"warps_active_pct", "%", "warps", {"sm__warps_active.avg.pct_of_peak_sustained_active"}},
        {"warps_eligible",
         "warps/cycle",
         "eligible",
         {"smsp__warps_eligible.avg.per_cycle_active"}},
        {"issue_active_pct", "%", "issue", {"smsp__issue_active.avg.pct_of_peak_sustained_active"}},
        {"exp_unit_pct",
         "%",
         "exp",
         {"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"}},
        {"exp_unit_instructions", "", "exp", {"sm__inst_executed_pipe_xu.sum"}},
        {"fma_pct", "%", "fma", {"sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"}},
        {"alu_pct", "%", "alu", {"sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active"}},
        {"smem_load_conflicts",
         "",
         "smem loads",
         {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"}},
        {"smem_load_wavefronts",
         "",
         "smem loads",
         {"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"}},
        {"smem_store_conflicts",
         "",
         "smem stores",
         {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"}},
        {"smem_store_wavefronts",
         "",
         "smem stores",
         {"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"}},
        {"l2_bytes", "bytes", "l2", {"lts__t_bytes.sum"}},
        {"l2_peak_bytes_per_cycle", "bytes/cycle", "l2", {"lts__t_bytes.sum.peak_sustained"}},
        {"l2_clock_hz", "Hz", "l2", {"lts__cycles_elapsed.avg.per_second"}},
        {"l2_hit_sectors", "sectors", "l2 hits", {"lts__t_sectors_lookup_hit.sum"}},
        {"l2_miss_sectors", "sectors", "l2 hits", {"lts__t_sectors_lookup_miss.sum"}},
        {"tensor_ops_f16",
         "operations",
         "f16 operations",
         {"sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_src_fp16_dst_fp32.sum"}},
        {"tensor_ops_bf16",
         "operations",
         "bf16 operations",
         {"sm__ops_path_tensor_src_bf16_dst_fp32.sum"}},
        {"tensor_ops_fp8", "operations", "fp8 operations", {"sm__ops_path_tensor_src_fp8.sum"}},
        {"tensor_ops_int8", "operations", "int8 operations", {"sm__ops_path_tensor_src_int8.sum"}},
        {"warpgroup_mma_instructions", "", "wgmma", {"sm__inst_executed_pipe_tensor_op_gmma.sum"}},
        {"tma_pct", "%", "tma", {"sm__pipe_tma_cycles_active.avg.pct_of_peak_sustained_elapsed"}},
        // Counted by patched code instead of a hardware counter: a separate pass, because not every
        // driver allows it.
        {"bytes_per_sector",
         "bytes",
         "sectors",
         {"smsp__sass_average_data_bytes_per_sector_mem_global.ratio"}},
    };
  });
}

std::vector<ResolvedCounter> resolve_counters(
    const std::function<bool(const std::string&)>& knows) {
  std::vector<ResolvedCounter> list;
  for (const Counter& counter : counters_table()) {
    const auto known =
        std::find_if(counter.metrics.begin(), counter.metrics.end(),
                     [&](std::string_view metric) { return knows(std::string(metric)); });
    list.push_back({&counter, known == counter.metrics.end() ? "" : std::string(*known)});
  }
  return list;
}

Result<std::vector<CounterBatch>> plan_counters(const std::vector<ResolvedCounter>& counters,
                                                const CountPasses& passes) {
  std::vector<CounterBatch> batches;
  for (const auto& [group, metrics] : groups_of(counters)) {
    const Result<std::size_t> alone = passes(metrics);
    if (!alone.ok()) return alone.status();
    CounterBatch batch{metrics, *alone};
    for (CounterBatch& other : batches) {
      if (*alone > 1 || other.passes > 1 || other.metrics.size() + metrics.size() > kMostOfAPass)
        continue;
      std::vector<std::string> together = other.metrics;
      together.insert(together.end(), metrics.begin(), metrics.end());
      const Result<std::size_t> of_both = passes(together);
      if (!of_both.ok()) return of_both.status();
      if (*of_both > 1) continue;
      other.metrics = std::move(together);
      batch.metrics.clear();
      break;
    }
    if (!batch.metrics.empty()) batches.push_back(std::move(batch));
  }
  return batches;
}

const std::vector<std::pair<std::string_view, std::string_view>>& derived_counters() {
  using Named = std::pair<std::string_view, std::string_view>;
  static constinit MadeOnce<std::vector<Named>> made;
  return made.get([] {
    return std::vector<Named>{
        {"occupancy_pct", "%"},
        {"bank_conflicts_per_wavefront", ""},
        {"bank_conflict_cycles_pct", "%"},
        {"memory_efficiency_pct", "%"},
        {"l2_hit_pct", "%"},
        {"dram_peak_bytes_per_second", "bytes/s"},
        {"l2_peak_bytes_per_second", "bytes/s"},
    };
  });
}

void derive_counters(CounterValues& values) {
  constexpr double kSectorBytes = 32;
  const auto wavefronts = sum(values, "smem_load_wavefronts", "smem_store_wavefronts");
  const auto conflicts = sum(values, "smem_load_conflicts", "smem_store_conflicts");
  put_ratio(values, "bank_conflicts_per_wavefront", conflicts, wavefronts, 1);
  // Each conflict costs the SM's shared memory one cycle.
  put_ratio(values, "bank_conflict_cycles_pct", conflicts, value_of(values, "sm_active_cycles_all"),
            100);
  // A kernel without such loads and stores has no conflicts in them.
  if (wavefronts && *wavefronts == 0) values["bank_conflicts_per_wavefront"] = 0;
  // 0 if TMA moves all data: threads then access no sectors, and there is no efficiency to report.
  if (const auto bytes = value_of(values, "bytes_per_sector"); !bytes || *bytes > 0)
    put_ratio(values, "memory_efficiency_pct", bytes, kSectorBytes, 100);
  put_ratio(values, "l2_hit_pct", value_of(values, "l2_hit_sectors"),
            sum(values, "l2_hit_sectors", "l2_miss_sectors"), 100);
  put_product(values, "dram_peak_bytes_per_second", "dram_peak_bytes_per_cycle", "dram_clock_hz");
  put_product(values, "l2_peak_bytes_per_second", "l2_peak_bytes_per_cycle", "l2_clock_hz");
}

}  // namespace octavo::evidence
