// SPDX-License-Identifier: Apache-2.0
#include "evidence/counters/cupti.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"
#include "gpu/driver/shared_library.h"
#include "numeric/fork_safe.h"

// Returns a failed CUPTI call to the caller: OCTAVO_CUPTI_TRY(c, c.start(&p), "cupti...Start").
#define OCTAVO_CUPTI_TRY(api, expression, call)                                     \
  do {                                                                              \
    const ::octavo::cupti::Code try_code = (expression);                            \
    if (try_code != ::octavo::cupti::kSuccess) return (api).status(try_code, call); \
  } while (false)

namespace octavo::evidence {
namespace {

constexpr std::size_t kMostKernelsPerCall = 32;  // of attention, with its quantizers

Result<Cupti> open_first(const std::vector<std::string>& libraries) {
  for (const std::string& library : libraries) {
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) continue;
    SymbolLoader loader([handle](const char* symbol) { return dlsym(handle, symbol); });
    return make_cupti(loader, library);
  }
  return Status(ErrorCode::unsupported,
                fmt::format("CUPTI, which counts, cannot be opened ({}{}); set OCTAVO_CUPTI to the "
                            "library.",
                            libraries.front(), libraries.size() > 1 ? " and others" : ""));
}

}  // namespace

Status Cupti::status(cupti::Code code, std::string_view call) const {
  if (code == cupti::kSuccess) return {};
  const char* text = nullptr;
  if (result_string(code, &text) != cupti::kSuccess || text == nullptr) text = "no description";
  const bool forbidden =
      code == cupti::kInsufficientPrivileges || code == cupti::kVirtualInsufficientPrivileges;
  return {forbidden ? ErrorCode::unsupported : ErrorCode::device_error,
          fmt::format("{} failed with CUPTI error {}: {}{}.", call, code, text,
                      forbidden ? "; the driver lets only administrators count "
                                  "(NVreg_RestrictProfilingToAdminUsers)"
                                : "")};
}

Result<Cupti> make_cupti(SymbolLoader& loader, std::string_view library) {
  const Cupti cupti(loader);
  if (loader.missing().empty()) return cupti;
  return Status(ErrorCode::unsupported,
                fmt::format("{} has no {}; supported: CUPTI of CUDA 12.6 and later.", library,
                            loader.missing()));
}

Result<const Cupti*> open_cupti() {
  static constinit MadeOnce<Result<Cupti>> made;
  const Result<Cupti>& opened = made.get([] {
    return open_first(toolkit_libraries("OCTAVO_CUPTI",
                                        {"libcupti.so.13", "libcupti.so.12", "libcupti.so"},
                                        {"extras/CUPTI/lib64"}));
  });
  if (!opened.ok()) return opened.status();
  return &opened.value();
}

Result<Chip> chip_of(const Cupti& cupti, int device_index, cuda::Context context) {
  cupti::Initialize initialize;
  OCTAVO_CUPTI_TRY(cupti, cupti.initialize(&initialize), "cuptiProfilerInitialize");
  cupti::ChipName name;
  name.device = static_cast<std::size_t>(device_index);
  OCTAVO_CUPTI_TRY(cupti, cupti.chip_name(&name), "cuptiDeviceGetChipName");
  cupti::CounterAvailability available;
  available.context = context;
  constexpr std::string_view kCall = "cuptiProfilerGetCounterAvailability";
  OCTAVO_CUPTI_TRY(cupti, cupti.counter_availability(&available), kCall);
  Chip chip{name.name, std::vector<std::uint8_t>(available.image_bytes)};
  available.image = chip.availability.data();
  OCTAVO_CUPTI_TRY(cupti, cupti.counter_availability(&available), kCall);
  return chip;
}

// --- metrics

MetricSet::MetricSet(const Cupti& cupti, std::vector<std::string> names)
    : cupti_(cupti), names_(std::move(names)) {}

MetricSet::~MetricSet() {
  if (host_ == nullptr) return;
  cupti::HostDeinitialize done;
  done.host = host_;
  (void)cupti_.host_deinitialize(&done);
}

Result<std::shared_ptr<const MetricSet>> MetricSet::make(const Cupti& cupti, const Chip& chip,
                                                         std::vector<std::string> names) {
  const auto set = std::make_shared<MetricSet>(cupti, std::move(names));
  OCTAVO_RETURN_IF_ERROR(set->open(chip));
  return std::shared_ptr<const MetricSet>(set);
}

Status MetricSet::open(const Chip& chip) {
  cupti::HostInitialize initialize;
  initialize.chip = chip.name.c_str();
  initialize.availability = chip.availability.empty() ? nullptr : chip.availability.data();
  OCTAVO_CUPTI_TRY(cupti_, cupti_.host_initialize(&initialize), "cuptiProfilerHostInitialize");
  host_ = initialize.host;
  std::vector<const char*> pointers = name_pointers();
  cupti::ConfigAddMetrics add;
  add.host = host_;
  add.names = pointers.data();
  add.count = pointers.size();
  OCTAVO_CUPTI_TRY(cupti_, cupti_.config_add_metrics(&add), "cuptiProfilerHostConfigAddMetrics");
  cupti::ConfigImageSize size;
  size.host = host_;
  OCTAVO_CUPTI_TRY(cupti_, cupti_.config_image_size(&size), "cuptiProfilerHostGetConfigImageSize");
  config_.resize(size.image_bytes);
  cupti::ConfigImage image;
  image.host = host_;
  image.image_bytes = config_.size();
  image.image = config_.data();
  OCTAVO_CUPTI_TRY(cupti_, cupti_.config_image(&image), "cuptiProfilerHostGetConfigImage");
  cupti::NumberOfPasses number;
  number.image_bytes = config_.size();
  number.image = config_.data();
  OCTAVO_CUPTI_TRY(cupti_, cupti_.number_of_passes(&number), "cuptiProfilerHostGetNumOfPasses");
  passes_ = number.passes;
  return {};
}

std::vector<const char*> MetricSet::name_pointers() const {
  std::vector<const char*> pointers;
  for (const std::string& name : names_) pointers.push_back(name.c_str());
  return pointers;
}

Result<std::vector<double>> MetricSet::evaluate(const std::vector<std::uint8_t>& data,
                                                std::size_t range) const {
  std::vector<const char*> pointers = name_pointers();
  std::vector<double> values(names_.size());
  cupti::Evaluate evaluate;
  evaluate.host = host_;
  evaluate.image = data.data();
  evaluate.image_bytes = data.size();
  evaluate.range = range;
  evaluate.names = pointers.data();
  evaluate.count = pointers.size();
  evaluate.values = values.data();
  OCTAVO_CUPTI_TRY(cupti_, cupti_.evaluate(&evaluate), "cuptiProfilerHostEvaluateToGpuValues");
  return values;
}

// --- counting

namespace {

// The range profiler of a context, while it is enabled.
class Profiler {
 public:
  explicit Profiler(const Cupti& cupti) : cupti_(cupti) {}
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler() {
    cupti::OfProfiler off;
    off.profiler = handle_;
    if (handle_ != nullptr) (void)cupti_.disable(&off);
  }

  Status enable(cuda::Context context) {
    cupti::Enable on;
    on.context = context;
    OCTAVO_CUPTI_TRY(cupti_, cupti_.enable(&on), "cuptiRangeProfilerEnable");
    handle_ = on.profiler;
    return {};
  }

  // Allocates `data_` for the values of the set.
  Status configure(const MetricSet& metrics) {
    std::vector<const char*> pointers = metrics.name_pointers();
    cupti::DataSize size;
    size.profiler = handle_;
    size.names = pointers.data();
    size.count = pointers.size();
    size.max_ranges = kMostKernelsPerCall;
    size.max_nodes = kMostKernelsPerCall;
    OCTAVO_CUPTI_TRY(cupti_, cupti_.data_size(&size), "cuptiRangeProfilerGetCounterDataSize");
    data_.resize(size.data_bytes);
    cupti::DataInitialize initialize;
    initialize.profiler = handle_;
    initialize.data_bytes = data_.size();
    initialize.data = data_.data();
    OCTAVO_CUPTI_TRY(cupti_, cupti_.data_initialize(&initialize),
                     "cuptiRangeProfilerCounterDataImageInitialize");
    cupti::SetConfig config;
    config.profiler = handle_;
    config.config_bytes = metrics.config().size();
    config.config = metrics.config().data();
    config.data_bytes = data_.size();
    config.data = data_.data();
    config.max_ranges = kMostKernelsPerCall;
    OCTAVO_CUPTI_TRY(cupti_, cupti_.set_config(&config), "cuptiRangeProfilerSetConfig");
    return {};
  }

  Status run(std::size_t passes, const std::function<Status()>& call) const {
    cupti::Stop stop;
    stop.profiler = handle_;
    for (std::size_t pass = 0; pass < passes && stop.all_submitted == 0; ++pass) {
      cupti::OfProfiler start;
      start.profiler = handle_;
      OCTAVO_CUPTI_TRY(cupti_, cupti_.start(&start), "cuptiRangeProfilerStart");
      const Status called = call();
      // A started profiler must be stopped, whatever was called in between.
      const cupti::Code stopped = cupti_.stop(&stop);
      OCTAVO_RETURN_IF_ERROR(called);
      OCTAVO_CUPTI_TRY(cupti_, stopped, "cuptiRangeProfilerStop");
    }
    if (stop.all_submitted == 0)
      return {ErrorCode::device_error, fmt::format("CUPTI was not done after {} passes.", passes)};
    cupti::Decode decode;
    decode.profiler = handle_;
    OCTAVO_CUPTI_TRY(cupti_, cupti_.decode(&decode), "cuptiRangeProfilerDecodeData");
    if (decode.dropped > 0)
      return {ErrorCode::device_error,
              fmt::format("a call launches {} kernels; supported: {}.",
                          decode.dropped + kMostKernelsPerCall, kMostKernelsPerCall)};
    return {};
  }

  Result<std::vector<std::vector<double>>> values(const MetricSet& metrics) const {
    cupti::DataInfo info;
    info.data = data_.data();
    info.data_bytes = data_.size();
    OCTAVO_CUPTI_TRY(cupti_, cupti_.data_info(&info), "cuptiRangeProfilerGetCounterDataInfo");
    std::vector<std::vector<double>> kernels;
    for (std::size_t range = 0; range < info.ranges; ++range) {
      Result<std::vector<double>> of_kernel = metrics.evaluate(data_, range);
      if (!of_kernel.ok()) return of_kernel.status();
      kernels.push_back(std::move(of_kernel).value());
    }
    return kernels;
  }

 private:
  const Cupti& cupti_;
  cupti::Profiler handle_ = nullptr;
  std::vector<std::uint8_t> data_;
};

}  // namespace

Result<std::vector<std::vector<double>>> count_kernels(const Cupti& cupti, cuda::Context context,
                                                       const MetricSet& metrics,
                                                       const std::function<Status()>& call) {
  Profiler profiler(cupti);
  OCTAVO_RETURN_IF_ERROR(profiler.enable(context));
  OCTAVO_RETURN_IF_ERROR(profiler.configure(metrics));
  OCTAVO_RETURN_IF_ERROR(profiler.run(metrics.passes(), call));
  return profiler.values(metrics);
}

}  // namespace octavo::evidence
