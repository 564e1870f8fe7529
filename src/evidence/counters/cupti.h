// SPDX-License-Identifier: Apache-2.0
// CUPTI, opened at run time: looks up a chip's metrics by name, and gets their values for kernels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "evidence/counters/cupti_types.h"
#include "gpu/driver/shared_library.h"
#include "octavo/octavo.hpp"

namespace octavo::evidence {

// Every function of CUPTI that Octavo calls.
struct Cupti {
  explicit Cupti(SymbolLoader& from) : from_(&from) { from_ = nullptr; }

 private:
  SymbolLoader* from_;  // first: the members below are initialised through it; then null
  using Code = cupti::Code;

 public:
  // clang-format off
  Code (*get_version)(std::uint32_t*) = from_->needed("cuptiGetVersion");
  Code (*result_string)(Code, const char**) = from_->needed("cuptiGetResultString");
  Code (*initialize)(cupti::Initialize*) = from_->needed("cuptiProfilerInitialize");
  Code (*chip_name)(cupti::ChipName*) = from_->needed("cuptiDeviceGetChipName");
  Code (*counter_availability)(cupti::CounterAvailability*) = from_->needed("cuptiProfilerGetCounterAvailability");

  Code (*host_initialize)(cupti::HostInitialize*) = from_->needed("cuptiProfilerHostInitialize");
  Code (*host_deinitialize)(cupti::HostDeinitialize*) = from_->needed("cuptiProfilerHostDeinitialize");
  Code (*config_add_metrics)(cupti::ConfigAddMetrics*) = from_->needed("cuptiProfilerHostConfigAddMetrics");
  Code (*config_image_size)(cupti::ConfigImageSize*) = from_->needed("cuptiProfilerHostGetConfigImageSize");
  Code (*config_image)(cupti::ConfigImage*) = from_->needed("cuptiProfilerHostGetConfigImage");
  Code (*number_of_passes)(cupti::NumberOfPasses*) = from_->needed("cuptiProfilerHostGetNumOfPasses");
  Code (*evaluate)(cupti::Evaluate*) = from_->needed("cuptiProfilerHostEvaluateToGpuValues");

  Code (*enable)(cupti::Enable*) = from_->needed("cuptiRangeProfilerEnable");
  Code (*disable)(cupti::OfProfiler*) = from_->needed("cuptiRangeProfilerDisable");
  Code (*set_config)(cupti::SetConfig*) = from_->needed("cuptiRangeProfilerSetConfig");
  Code (*start)(cupti::OfProfiler*) = from_->needed("cuptiRangeProfilerStart");
  Code (*stop)(cupti::Stop*) = from_->needed("cuptiRangeProfilerStop");
  Code (*decode)(cupti::Decode*) = from_->needed("cuptiRangeProfilerDecodeData");
  Code (*data_size)(cupti::DataSize*) = from_->needed("cuptiRangeProfilerGetCounterDataSize");
  Code (*data_initialize)(cupti::DataInitialize*) = from_->needed("cuptiRangeProfilerCounterDataImageInitialize");
  Code (*data_info)(cupti::DataInfo*) = from_->needed("cuptiRangeProfilerGetCounterDataInfo");
  // clang-format on

  // "cuptiRangeProfilerEnable failed with CUPTI error 35: ...", and what to do about it.
  Status status(cupti::Code code, std::string_view call) const;
};

// Opened once. $OCTAVO_CUPTI, if set, is the only library tried; else libcupti of CUDA 13, then 12,
// as the loader finds it, then in the toolkit's folders.
Result<const Cupti*> open_cupti();
Result<Cupti> make_cupti(SymbolLoader& loader, std::string_view library);

// A chip by CUPTI's name, "GH100".
struct Chip {
  std::string name;
  std::vector<std::uint8_t> availability;  // of its counters; empty without a GPU
};
Result<Chip> chip_of(const Cupti& cupti, int device_index, cuda::Context context);

// Metrics that are counted together. Needs no GPU.
class MetricSet {
 public:
  // Refuses a name that the chip does not have.
  static Result<std::shared_ptr<const MetricSet>> make(const Cupti& cupti, const Chip& chip,
                                                       std::vector<std::string> names);
  MetricSet(const Cupti& cupti, std::vector<std::string> names);
  MetricSet(const MetricSet&) = delete;
  MetricSet& operator=(const MetricSet&) = delete;
  ~MetricSet();

  std::size_t passes() const { return passes_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::uint8_t>& config() const { return config_; }
  std::vector<const char*> name_pointers() const;
  // The values of one kernel, in the order of the names.
  Result<std::vector<double>> evaluate(const std::vector<std::uint8_t>& data,
                                       std::size_t range) const;

 private:
  Status open(const Chip& chip);

  const Cupti& cupti_;
  const std::vector<std::string> names_;
  cupti::Host host_ = nullptr;
  std::vector<std::uint8_t> config_;
  std::size_t passes_ = 0;
};

// Counts every kernel that `call` launches and returns the values in launch order. `call` must
// return after they are complete; CUPTI repeats the kernels of a set that takes more than one pass.
//
// The profiler is enabled for this set and disabled again: if it stays enabled, it keeps the
// configuration it was first given (CUPTI 13.0).
Result<std::vector<std::vector<double>>> count_kernels(const Cupti& cupti, cuda::Context context,
                                                       const MetricSet& metrics,
                                                       const std::function<Status()>& call);

}  // namespace octavo::evidence
