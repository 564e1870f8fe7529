// SPDX-License-Identifier: Apache-2.0
// Counters without a GPU: CUPTI's types against its headers, the pass plan for an invented chip and
// with CUPTI itself, derived values, and a fake CUPTI.
#include "octavo/counters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "evidence/counters/counter_plan.h"
#include "evidence/counters/cupti.h"
#include "evidence/counters/occupancy.h"

#if __has_include(<cupti_range_profiler.h>) && __has_include(<cupti_profiler_host.h>)
#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>
#define OCTAVO_HAVE_CUPTI_H 1
#endif

namespace octavo::evidence {
namespace {

// --- types

#ifdef OCTAVO_HAVE_CUPTI_H
#define SAME_SIZE(ours, theirs) EXPECT_EQ(cupti::ours{}.bytes, theirs##_STRUCT_SIZE) << #ours
#define SAME_FIELD(ours, field, theirs, their_field)                                          \
  EXPECT_EQ(offsetof(cupti::ours, field), offsetof(theirs, their_field)) << #ours "." #field; \
  EXPECT_EQ(sizeof(cupti::ours{}.field), sizeof(theirs{}.their_field)) << #ours "." #field

TEST(CuptiTypes, SizesMatchTheHeaders) {
  SAME_SIZE(Initialize, CUpti_Profiler_Initialize_Params);
  SAME_SIZE(ChipName, CUpti_Device_GetChipName_Params);
  SAME_SIZE(CounterAvailability, CUpti_Profiler_GetCounterAvailability_Params);
  SAME_SIZE(HostInitialize, CUpti_Profiler_Host_Initialize_Params);
  SAME_SIZE(HostDeinitialize, CUpti_Profiler_Host_Deinitialize_Params);
  SAME_SIZE(ConfigAddMetrics, CUpti_Profiler_Host_ConfigAddMetrics_Params);
  SAME_SIZE(ConfigImageSize, CUpti_Profiler_Host_GetConfigImageSize_Params);
  SAME_SIZE(ConfigImage, CUpti_Profiler_Host_GetConfigImage_Params);
  SAME_SIZE(NumberOfPasses, CUpti_Profiler_Host_GetNumOfPasses_Params);
  SAME_SIZE(Evaluate, CUpti_Profiler_Host_EvaluateToGpuValues_Params);
  SAME_SIZE(Enable, CUpti_RangeProfiler_Enable_Params);
  SAME_SIZE(OfProfiler, CUpti_RangeProfiler_Disable_Params);
  SAME_SIZE(OfProfiler, CUpti_RangeProfiler_Start_Params);
  SAME_SIZE(SetConfig, CUpti_RangeProfiler_SetConfig_Params);
  SAME_SIZE(Stop, CUpti_RangeProfiler_Stop_Params);
  SAME_SIZE(Decode, CUpti_RangeProfiler_DecodeData_Params);
  SAME_SIZE(DataSize, CUpti_RangeProfiler_GetCounterDataSize_Params);
  SAME_SIZE(DataInitialize, CUpti_RangeProfiler_CounterDataImage_Initialize_Params);
  SAME_SIZE(DataInfo, CUpti_RangeProfiler_GetCounterDataInfo_Params);
}

TEST(CuptiTypes, TargetFieldOffsetsMatchTheHeaders) {
  SAME_FIELD(ChipName, device, CUpti_Device_GetChipName_Params, deviceIndex);
  SAME_FIELD(ChipName, name, CUpti_Device_GetChipName_Params, pChipName);
  using Availability = CUpti_Profiler_GetCounterAvailability_Params;
  SAME_FIELD(CounterAvailability, context, Availability, ctx);
  SAME_FIELD(CounterAvailability, image_bytes, Availability, counterAvailabilityImageSize);
  SAME_FIELD(CounterAvailability, image, Availability, pCounterAvailabilityImage);
  SAME_FIELD(Enable, context, CUpti_RangeProfiler_Enable_Params, ctx);
  SAME_FIELD(Enable, profiler, CUpti_RangeProfiler_Enable_Params, pRangeProfilerObject);
  SAME_FIELD(OfProfiler, profiler, CUpti_RangeProfiler_Disable_Params, pRangeProfilerObject);
  SAME_FIELD(OfProfiler, profiler, CUpti_RangeProfiler_Start_Params, pRangeProfilerObject);
  using Config = CUpti_RangeProfiler_SetConfig_Params;
  SAME_FIELD(SetConfig, profiler, Config, pRangeProfilerObject);
  SAME_FIELD(SetConfig, config_bytes, Config, configSize);
  SAME_FIELD(SetConfig, config, Config, pConfig);
  SAME_FIELD(SetConfig, data_bytes, Config, counterDataImageSize);
  SAME_FIELD(SetConfig, data, Config, pCounterDataImage);
  SAME_FIELD(SetConfig, range, Config, range);
  SAME_FIELD(SetConfig, replay, Config, replayMode);
  SAME_FIELD(SetConfig, max_ranges, Config, maxRangesPerPass);
  SAME_FIELD(SetConfig, nesting_levels, Config, numNestingLevels);
  SAME_FIELD(SetConfig, min_nesting_level, Config, minNestingLevel);
  SAME_FIELD(SetConfig, pass, Config, passIndex);
  SAME_FIELD(SetConfig, target_nesting_level, Config, targetNestingLevel);
  SAME_FIELD(Stop, profiler, CUpti_RangeProfiler_Stop_Params, pRangeProfilerObject);
  SAME_FIELD(Stop, pass, CUpti_RangeProfiler_Stop_Params, passIndex);
  SAME_FIELD(Stop, target_nesting_level, CUpti_RangeProfiler_Stop_Params, targetNestingLevel);
  SAME_FIELD(Stop, all_submitted, CUpti_RangeProfiler_Stop_Params, isAllPassSubmitted);
  SAME_FIELD(Decode, profiler, CUpti_RangeProfiler_DecodeData_Params, pRangeProfilerObject);
  SAME_FIELD(Decode, dropped, CUpti_RangeProfiler_DecodeData_Params, numOfRangeDropped);
  using Size = CUpti_RangeProfiler_GetCounterDataSize_Params;
  SAME_FIELD(DataSize, profiler, Size, pRangeProfilerObject);
  SAME_FIELD(DataSize, names, Size, pMetricNames);
  SAME_FIELD(DataSize, count, Size, numMetrics);
  SAME_FIELD(DataSize, max_ranges, Size, maxNumOfRanges);
  SAME_FIELD(DataSize, max_nodes, Size, maxNumRangeTreeNodes);
  SAME_FIELD(DataSize, data_bytes, Size, counterDataSize);
  using Data = CUpti_RangeProfiler_CounterDataImage_Initialize_Params;
  SAME_FIELD(DataInitialize, profiler, Data, pRangeProfilerObject);
  SAME_FIELD(DataInitialize, data_bytes, Data, counterDataSize);
  SAME_FIELD(DataInitialize, data, Data, pCounterData);
  using Info = CUpti_RangeProfiler_GetCounterDataInfo_Params;
  SAME_FIELD(DataInfo, data, Info, pCounterDataImage);
  SAME_FIELD(DataInfo, data_bytes, Info, counterDataImageSize);
  SAME_FIELD(DataInfo, ranges, Info, numTotalRanges);
}

TEST(CuptiTypes, HostFieldOffsetsMatchTheHeaders) {
  SAME_FIELD(HostInitialize, type, CUpti_Profiler_Host_Initialize_Params, profilerType);
  SAME_FIELD(HostInitialize, chip, CUpti_Profiler_Host_Initialize_Params, pChipName);
  SAME_FIELD(HostInitialize, availability, CUpti_Profiler_Host_Initialize_Params,
             pCounterAvailabilityImage);
  SAME_FIELD(HostInitialize, host, CUpti_Profiler_Host_Initialize_Params, pHostObject);
  SAME_FIELD(HostDeinitialize, host, CUpti_Profiler_Host_Deinitialize_Params, pHostObject);
  SAME_FIELD(ConfigAddMetrics, host, CUpti_Profiler_Host_ConfigAddMetrics_Params, pHostObject);
  SAME_FIELD(ConfigAddMetrics, names, CUpti_Profiler_Host_ConfigAddMetrics_Params, ppMetricNames);
  SAME_FIELD(ConfigAddMetrics, count, CUpti_Profiler_Host_ConfigAddMetrics_Params, numMetrics);
  using Size = CUpti_Profiler_Host_GetConfigImageSize_Params;
  SAME_FIELD(ConfigImageSize, host, Size, pHostObject);
  SAME_FIELD(ConfigImageSize, image_bytes, Size, configImageSize);
  using Image = CUpti_Profiler_Host_GetConfigImage_Params;
  SAME_FIELD(ConfigImage, host, Image, pHostObject);
  SAME_FIELD(ConfigImage, image_bytes, Image, configImageSize);
  SAME_FIELD(ConfigImage, image, Image, pConfigImage);
  using Passes = CUpti_Profiler_Host_GetNumOfPasses_Params;
  SAME_FIELD(NumberOfPasses, image_bytes, Passes, configImageSize);
  SAME_FIELD(NumberOfPasses, image, Passes, pConfigImage);
  SAME_FIELD(NumberOfPasses, passes, Passes, numOfPasses);
  using Values = CUpti_Profiler_Host_EvaluateToGpuValues_Params;
  SAME_FIELD(Evaluate, host, Values, pHostObject);
  SAME_FIELD(Evaluate, image, Values, pCounterDataImage);
  SAME_FIELD(Evaluate, image_bytes, Values, counterDataImageSize);
  SAME_FIELD(Evaluate, range, Values, rangeIndex);
  SAME_FIELD(Evaluate, names, Values, ppMetricNames);
  SAME_FIELD(Evaluate, count, Values, numMetrics);
  SAME_FIELD(Evaluate, values, Values, pMetricValues);
}

TEST(CuptiTypes, ConstantsMatchTheHeaders) {
  EXPECT_EQ(cupti::kSuccess, CUPTI_SUCCESS);
  EXPECT_EQ(cupti::kInsufficientPrivileges, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(cupti::kVirtualInsufficientPrivileges,
            CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES);
  EXPECT_EQ(cupti::kRangeProfiler, CUPTI_PROFILER_TYPE_RANGE_PROFILER);
  EXPECT_EQ(cupti::kAutoRange, CUPTI_AutoRange);
  EXPECT_EQ(cupti::kKernelReplay, CUPTI_KernelReplay);
}
#endif

// --- the plan

bool knows_all(const std::string&) { return true; }

// A chip with so many counters of each unit (the word before "__") in one pass.
CountPasses passes_of_a_chip(std::size_t of_a_unit) {
  return [of_a_unit](const std::vector<std::string>& metrics) -> Result<std::size_t> {
    std::map<std::string, std::size_t> units;
    for (const std::string& m : metrics) ++units[m.substr(0, m.find("__"))];
    std::size_t most = 1;
    for (const auto& [unit, n] : units) most = std::max(most, (n + of_a_unit - 1) / of_a_unit);
    return most;
  };
}

void expect_plan_holds_everything(const std::vector<ResolvedCounter>& counters,
                                  const std::vector<CounterBatch>& plan) {
  std::map<std::string, std::set<std::size_t>> batches_of_group;
  for (const ResolvedCounter& c : counters) {
    if (c.metric.empty()) continue;
    int times = 0;
    for (std::size_t b = 0; b < plan.size(); ++b)
      if (std::count(plan[b].metrics.begin(), plan[b].metrics.end(), c.metric) > 0) {
        ++times;
        batches_of_group[std::string(c.counter->group)].insert(b);
      }
    EXPECT_EQ(times, 1) << c.metric;
  }
  for (const auto& [group, batches] : batches_of_group) EXPECT_EQ(batches.size(), 1) << group;
}

TEST(CounterPlan, EveryMetricOnceInPassesOfAtMostEleven) {
  const auto counters = resolve_counters(knows_all);
  for (const std::size_t of_a_unit : {5, 8, 100}) {
    const auto passes = passes_of_a_chip(of_a_unit);
    const auto plan = plan_counters(counters, passes);
    ASSERT_TRUE(plan.ok());
    expect_plan_holds_everything(counters, *plan);
    for (const CounterBatch& batch : *plan) {
      EXPECT_LE(batch.metrics.size(), kMostOfAPass);
      EXPECT_EQ(batch.passes, *passes(batch.metrics));
      EXPECT_EQ(batch.passes, 1) << of_a_unit;
    }
  }
  // Without any other limit than eleven per pass, all batches but the last are full.
  const auto plan = plan_counters(counters, passes_of_a_chip(100));
  EXPECT_LE(plan->size(), counters_table().size() / kMostOfAPass + 2);
}

TEST(CounterPlan, GroupThatExceedsAPassIsItsOwnBatch) {
  const auto counters = resolve_counters(knows_all);
  const auto plan = plan_counters(counters, passes_of_a_chip(2));
  ASSERT_TRUE(plan.ok());
  expect_plan_holds_everything(counters, *plan);
  std::map<std::string, std::string_view> group_of;
  for (const ResolvedCounter& c : counters) group_of[c.metric] = c.counter->group;
  std::set<std::string_view> alone;
  for (const CounterBatch& batch : *plan) {
    if (batch.passes == 1) continue;
    std::set<std::string_view> groups;
    for (const std::string& metric : batch.metrics) groups.insert(group_of.at(metric));
    EXPECT_EQ(groups.size(), 1) << batch.metrics.front();
    alone.merge(groups);
  }
  EXPECT_EQ(alone, (std::set<std::string_view>{"time", "tensor", "dram", "l2"}))
      << "three to five metrics of one unit";
}

TEST(CounterPlan, FirstMetricThatTheChipHasIsUsed) {
  const auto counters = resolve_counters([](const std::string& metric) {
    return metric.find("_v2.") == std::string::npos && metric.find("dram__") == std::string::npos;
  });
  for (const ResolvedCounter& c : counters) {
    if (c.counter->key == "tensor_active_pct") {
      EXPECT_EQ(c.metric, "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed");
    } else if (c.counter->key == "dram_read_bytes") {
      EXPECT_EQ(c.metric, "");
    }
  }
}

TEST(CounterPlan, FailureToCountPassesIsReturned) {
  const auto plan = plan_counters(resolve_counters(knows_all), [](const auto&) {
    return Result<std::size_t>(Status(ErrorCode::device_error, "no."));
  });
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().message(), "no.");
}

TEST(CounterPlan, KeysAreDistinctAndDocumented) {
  std::set<std::string_view> keys;
  for (const Counter& c : counters_table()) EXPECT_TRUE(keys.insert(c.key).second) << c.key;
  for (const auto& [key, unit] : derived_counters()) EXPECT_TRUE(keys.insert(key).second) << key;
  std::ifstream file(OCTAVO_DOCS_DIR "/json.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const std::string_view key : keys)
    EXPECT_NE(page.find("`" + std::string(key) + "`"), std::string::npos) << key;
}

TEST(CounterPlan, DerivedValues) {
  CounterValues values = {{"smem_load_conflicts", 3},
                          {"smem_store_conflicts", 1},
                          {"smem_load_wavefronts", 30},
                          {"smem_store_wavefronts", 10},
                          {"sm_active_cycles_all", 800},
                          {"bytes_per_sector", 24},
                          {"l2_hit_sectors", 9},
                          {"l2_miss_sectors", 1},
                          {"dram_peak_bytes_per_cycle", 1000},
                          {"dram_clock_hz", 3e9}};
  derive_counters(values);
  EXPECT_DOUBLE_EQ(values["bank_conflicts_per_wavefront"], 0.1);
  EXPECT_DOUBLE_EQ(values["bank_conflict_cycles_pct"], 0.5);
  EXPECT_DOUBLE_EQ(values["memory_efficiency_pct"], 75);
  EXPECT_DOUBLE_EQ(values["l2_hit_pct"], 90);
  EXPECT_DOUBLE_EQ(values["dram_peak_bytes_per_second"], 3e12);
  EXPECT_EQ(values.count("l2_peak_bytes_per_second"), 0);
  CounterValues none = {{"smem_load_conflicts", 0}, {"l2_hit_sectors", 0}, {"l2_miss_sectors", 0}};
  derive_counters(none);
  EXPECT_EQ(none.count("bank_conflicts_per_wavefront"), 0) << "stores were not counted";
  EXPECT_EQ(none.count("l2_hit_pct"), 0) << "0 of 0";
  CounterValues only_tma = {{"bytes_per_sector", 0}};
  derive_counters(only_tma);
  EXPECT_EQ(only_tma.count("memory_efficiency_pct"), 0) << "threads reached no sector";
}

// --- occupancy

KernelInfo kernel_of(int arch, int threads, int registers, int smem) {
  KernelInfo info;
  info.arch = arch;
  info.threads = threads;
  info.dynamic_smem_bytes = smem;
  info.code = KernelCode{.registers = registers};
  return info;
}

TEST(Occupancy, SmallestLimitApplies) {
  // As ncu reports for the Hopper kernel at 1,16,16384,128: registers and shared memory limit it to
  // one block.
  EXPECT_EQ(occupancy_pct(kernel_of(90, 512, 128, 200968)), 25);
  EXPECT_EQ(occupancy_pct(kernel_of(90, 384, 168, 1000)), 18.75) << "registers: one block";
  EXPECT_EQ(occupancy_pct(kernel_of(90, 256, 32, 1000)), 100);
  EXPECT_EQ(occupancy_pct(kernel_of(90, 256, 33, 1000)), 75) << "33 registers are taken as 40";
  EXPECT_EQ(occupancy_pct(kernel_of(80, 128, 64, 80 * 1024)), 12.5) << "shared memory: two blocks";
  EXPECT_EQ(occupancy_pct(kernel_of(89, 32, 16, 0)), 50) << "24 blocks of one warp, of 48";
  EXPECT_FALSE(occupancy_pct(kernel_of(90, 512, 128, 300000)).has_value());
  EXPECT_FALSE(occupancy_pct(kernel_of(70, 512, 128, 0)).has_value());
  EXPECT_FALSE(occupancy_pct(KernelInfo{}).has_value());
}

// --- CUPTI itself, if its library is installed

TEST(Cupti, HasHoppersMetricsAndPlansThem) {
  const Result<const Cupti*> cupti = open_cupti();
  if (!cupti.ok()) GTEST_SKIP() << cupti.status().message();
  const Chip chip{"GH100", {}};
  const auto set_of = [&](const std::vector<std::string>& metrics) {
    return MetricSet::make(**cupti, chip, metrics);
  };
  ASSERT_TRUE(set_of({"gpu__time_duration.sum"}).ok());
  EXPECT_FALSE(set_of({"gpu__time_of_day.sum"}).ok());
  const auto counters =
      resolve_counters([&](const std::string& metric) { return set_of({metric}).ok(); });
  for (const ResolvedCounter& c : counters) EXPECT_NE(c.metric, "") << c.counter->key;
  const auto passes = [&](const std::vector<std::string>& metrics) -> Result<std::size_t> {
    const auto set = set_of(metrics);
    if (!set.ok()) return set.status();
    return (*set)->passes();
  };
  const auto plan = plan_counters(counters, passes);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  expect_plan_holds_everything(counters, *plan);
  std::size_t all = 0;
  for (const CounterBatch& batch : *plan) all += batch.passes;
  EXPECT_LE(all, 14);
  EXPECT_GT(plan->front().metrics.size(), 5);
}

TEST(Cupti, OtherChipsHaveMostOfThem) {
  const Result<const Cupti*> cupti = open_cupti();
  if (!cupti.ok()) GTEST_SKIP() << cupti.status().message();
  for (const char* name : {"GA100", "AD102"}) {
    const Chip chip{name, {}};
    const auto counters = resolve_counters(
        [&](const std::string& metric) { return MetricSet::make(**cupti, chip, {metric}).ok(); });
    for (const ResolvedCounter& c : counters) {
      if (c.counter->key == "tensor_active_pct" || c.counter->key == "dram_pct" ||
          c.counter->key == "smem_load_conflicts") {
        EXPECT_NE(c.metric, "") << name << " " << c.counter->key;
      } else if (c.counter->key == "tma_pct") {
        EXPECT_EQ(c.metric, "") << name;
      }
    }
  }
}

// --- a fake CUPTI: one chip, two kernels per call, metrics that are numbers

namespace fake {

int enabled = 0, started = 0, deinitialized = 0;
std::size_t passes = 1, dropped = 0;
cupti::Code enable_code = cupti::kSuccess;
std::vector<std::string> calls;

cupti::Code say(const char* call) { return calls.emplace_back(call), cupti::kSuccess; }
cupti::Code version(std::uint32_t* v) { return *v = 130001, cupti::kSuccess; }
cupti::Code text(cupti::Code code, const char** words) {
  *words = code == cupti::kInsufficientPrivileges ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" : nullptr;
  return *words == nullptr ? 1 : cupti::kSuccess;
}
cupti::Code chip_name(cupti::ChipName* p) { return p->name = "GX100", cupti::kSuccess; }
cupti::Code availability(cupti::CounterAvailability* p) {
  if (p->image == nullptr) return p->image_bytes = 3, cupti::kSuccess;
  return p->image[2] = 7, cupti::kSuccess;
}
cupti::Code host_initialize(cupti::HostInitialize* p) {
  p->host = reinterpret_cast<cupti::Host>(&enabled);
  return std::string_view(p->chip) == "GX100" ? cupti::kSuccess : 46;
}
cupti::Code host_deinitialize(cupti::HostDeinitialize*) { return ++deinitialized, cupti::kSuccess; }
cupti::Code add_metrics(cupti::ConfigAddMetrics* p) {
  for (std::size_t i = 0; i < p->count; ++i)
    if (p->names[i][0] == '?') return 17;
  return cupti::kSuccess;
}
cupti::Code config_size(cupti::ConfigImageSize* p) { return p->image_bytes = 5, cupti::kSuccess; }
cupti::Code config(cupti::ConfigImage* p) { return p->image[4] = 9, cupti::kSuccess; }
cupti::Code number_of_passes(cupti::NumberOfPasses* p) {
  return p->passes = passes, p->image[4] == 9 ? cupti::kSuccess : 1;
}
cupti::Code enable(cupti::Enable* p) {
  if (enable_code != cupti::kSuccess) return enable_code;
  p->profiler = reinterpret_cast<cupti::Profiler>(&enabled);
  return ++enabled, say("enable");
}
cupti::Code disable(cupti::OfProfiler*) { return --enabled, say("disable"); }
cupti::Code data_size(cupti::DataSize* p) { return p->data_bytes = 8, cupti::kSuccess; }
cupti::Code data_initialize(cupti::DataInitialize*) { return cupti::kSuccess; }
cupti::Code set_config(cupti::SetConfig* p) {
  EXPECT_EQ(p->config_bytes, 5);
  EXPECT_EQ(p->data_bytes, 8);
  return say("config");
}
cupti::Code start(cupti::OfProfiler*) { return ++started, say("start"); }
cupti::Code stop(cupti::Stop* p) {
  --started;
  static std::size_t pass = 0;
  p->all_submitted = ++pass % passes == 0;
  return say("stop");
}
cupti::Code decode(cupti::Decode* p) { return p->dropped = dropped, cupti::kSuccess; }
cupti::Code data_info(cupti::DataInfo* p) { return p->ranges = 2, cupti::kSuccess; }
cupti::Code evaluate(cupti::Evaluate* p) {
  for (std::size_t i = 0; i < p->count; ++i)
    p->values[i] = std::stod(p->names[i]) + 100.0 * static_cast<double>(p->range);
  return cupti::kSuccess;
}
cupti::Code initialize(cupti::Initialize*) { return cupti::kSuccess; }

template <class F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}
void* symbol(std::string_view name) {
  const std::map<std::string_view, void*> known = {
      {"cuptiGetVersion", address(version)},
      {"cuptiGetResultString", address(text)},
      {"cuptiProfilerInitialize", address(initialize)},
      {"cuptiDeviceGetChipName", address(chip_name)},
      {"cuptiProfilerGetCounterAvailability", address(availability)},
      {"cuptiProfilerHostInitialize", address(host_initialize)},
      {"cuptiProfilerHostDeinitialize", address(host_deinitialize)},
      {"cuptiProfilerHostConfigAddMetrics", address(add_metrics)},
      {"cuptiProfilerHostGetConfigImageSize", address(config_size)},
      {"cuptiProfilerHostGetConfigImage", address(config)},
      {"cuptiProfilerHostGetNumOfPasses", address(number_of_passes)},
      {"cuptiProfilerHostEvaluateToGpuValues", address(evaluate)},
      {"cuptiRangeProfilerEnable", address(enable)},
      {"cuptiRangeProfilerDisable", address(disable)},
      {"cuptiRangeProfilerSetConfig", address(set_config)},
      {"cuptiRangeProfilerStart", address(start)},
      {"cuptiRangeProfilerStop", address(stop)},
      {"cuptiRangeProfilerDecodeData", address(decode)},
      {"cuptiRangeProfilerGetCounterDataSize", address(data_size)},
      {"cuptiRangeProfilerCounterDataImageInitialize", address(data_initialize)},
      {"cuptiRangeProfilerGetCounterDataInfo", address(data_info)},
  };
  const auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

Cupti make() {
  passes = 1, dropped = 0, enable_code = cupti::kSuccess;
  calls.clear();
  SymbolLoader loader([](const char* name) { return symbol(name); });
  const Result<Cupti> made = make_cupti(loader, "libcupti.so.13");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

}  // namespace fake

TEST(FakeCupti, EveryKernelHasValuesAndTheProfilerIsDisabled) {
  const Cupti cupti = fake::make();
  const Result<Chip> chip = chip_of(cupti, 0, nullptr);
  ASSERT_TRUE(chip.ok());
  EXPECT_EQ(chip->name, "GX100");
  EXPECT_EQ(chip->availability, (std::vector<std::uint8_t>{0, 0, 7}));
  fake::passes = 2;
  const int before = fake::deinitialized;
  {
    const auto set = MetricSet::make(cupti, *chip, {"3", "5"});
    ASSERT_TRUE(set.ok());
    EXPECT_EQ((*set)->passes(), 2);
    int called = 0;
    const auto values = count_kernels(cupti, nullptr, **set, [&] {
      EXPECT_EQ(fake::started, 1);
      return ++called, Status();
    });
    ASSERT_TRUE(values.ok()) << values.status().message();
    EXPECT_EQ(called, 2) << "once a pass";
    EXPECT_EQ(*values, (std::vector<std::vector<double>>{{3, 5}, {103, 105}}));
  }
  EXPECT_EQ(fake::deinitialized, before + 1);
  EXPECT_EQ(fake::enabled, 0);
  EXPECT_EQ(fake::calls, (std::vector<std::string>{"enable", "config", "start", "stop", "start",
                                                   "stop", "disable"}));
}

TEST(FakeCupti, FailuresAreReportedAndTheProfilerStops) {
  const Cupti cupti = fake::make();
  const Chip chip{"GX100", {}};
  EXPECT_FALSE(MetricSet::make(cupti, chip, {"1", "?"}).ok());
  EXPECT_FALSE(MetricSet::make(cupti, Chip{"GX101", {}}, {"1"}).ok());
  const auto set = MetricSet::make(cupti, chip, {"1"});
  ASSERT_TRUE(set.ok());
  const auto none = [] { return Status(); };
  const auto failed = count_kernels(cupti, nullptr, **set,
                                    [] { return Status(ErrorCode::out_of_memory, "no room."); });
  EXPECT_EQ(failed.status().message(), "no room.");
  EXPECT_EQ(fake::started, 0);
  fake::dropped = 3;
  EXPECT_EQ(count_kernels(cupti, nullptr, **set, none).status().message(),
            "a call launches 35 kernels; supported: 32.");
  fake::enable_code = cupti::kInsufficientPrivileges;
  const Status forbidden = count_kernels(cupti, nullptr, **set, none).status();
  EXPECT_EQ(forbidden.code(), ErrorCode::unsupported);
  EXPECT_EQ(forbidden.message(),
            "cuptiRangeProfilerEnable failed with CUPTI error 35: "
            "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES; the driver lets only administrators count "
            "(NVreg_RestrictProfilingToAdminUsers).");
  EXPECT_EQ(fake::enabled, 0);
}

TEST(FakeCupti, OlderLibraryIsNamed) {
  SymbolLoader loader([](const char* name) {
    return std::string_view(name) == "cuptiRangeProfilerEnable" ? nullptr : fake::symbol(name);
  });
  EXPECT_EQ(make_cupti(loader, "libcupti.so.12").status().message(),
            "libcupti.so.12 has no cuptiRangeProfilerEnable; supported: CUPTI of CUDA 12.6 and "
            "later.");
}

// --- the report

TEST(Counters, DeviceWithoutCountersIsNotMeasured) {
  CountersOptions options;
  options.device = Device{Device::Kind::cpu, 0};
  const Result<CountersReport> report = counters(options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->measured());
  const auto json = nlohmann::json::parse(to_json(*report));
  EXPECT_EQ(json["kind"], "counters");
  EXPECT_EQ(json["measured"], false);
  EXPECT_EQ(json["not_measured"], "cpu has no counters; supported: GPUs.");
  EXPECT_TRUE(json["rows"].empty());
}

TEST(Counters, BadOptionsAreOneSentence) {
  CountersOptions options;
  options.cases = {{"", 1, 0, 512, 64}};
  EXPECT_EQ(counters(options).status().message(), "heads is 0; supported: 1 or more.");
}

TEST(Counters, ValuesAreReportedByKey) {
  CountersReport report;
  report.names = {{"tensor_active_pct", "%", "sm__pipe"}, {"l2_hit_pct", "%", ""}};
  CounterRow row;
  row.shape = {"long", 2, 8, 2048, 64};
  row.kernel.kernel = "sm90_forward";
  row.main = true;
  row.launch = 1;
  row.launches = 2;
  row.gflop = 17;
  row.values = {61.5, std::nullopt};
  report.rows = {row};
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["measured"], true);
  EXPECT_EQ(json["names"][0]["metric"], "sm__pipe");
  EXPECT_TRUE(json["names"][1]["metric"].is_null());
  const auto& shown = json["rows"][0];
  EXPECT_EQ(shown["kernel"], "sm90_forward");
  EXPECT_EQ(shown["launch"], 1);
  EXPECT_EQ(shown["metrics"]["tensor_active_pct"], 61.5);
  EXPECT_TRUE(shown["metrics"]["l2_hit_pct"].is_null());
}

}  // namespace
}  // namespace octavo::evidence
