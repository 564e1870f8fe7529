// SPDX-License-Identifier: Apache-2.0
// Calibration: collects ranges tensor by tensor and computes scales from them.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "numeric/checks.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

constexpr std::int64_t kLargestCount = std::numeric_limits<std::int32_t>::max();

Status check_same_grouping(const Calibration::Entry& known, const Calibration::Entry& seen) {
  const auto differs = [&known](std::string_view what, const auto& is, const auto& was) {
    return invalid(fmt::format("{} of '{}'", what, known.name), fmt::format("{}", is),
                   fmt::format("{}, as of the tensors observed before", was));
  };
  if (seen.format != known.format) return differs("format", name(seen.format), name(known.format));
  if (seen.granularity != known.granularity)
    return differs("granularity", name(seen.granularity), name(known.granularity));
  if (seen.granularity == Granularity::block && seen.block_rows != known.block_rows)
    return differs("block_rows", seen.block_rows, known.block_rows);
  if (seen.amax.size() != known.amax.size())
    return differs("number of scales", seen.amax.size(), known.amax.size());
  return {};
}

Status check_observe(std::string_view entry_name, const ConstTensor& x, DType format,
                     const QuantizeOptions& options) {
  if (entry_name.empty()) return invalid("name", "empty", "a name for the tensor");
  OCTAVO_RETURN_IF_ERROR(check_options(options));
  OCTAVO_RETURN_IF_ERROR(check_values("x", x));
  if (format != DType::e4m3 && format != DType::e5m2 && format != DType::int8 &&
      format != DType::sim8)
    return invalid("format", name(format), "e4m3, e5m2, int8, sim8");
  if (options.rule != ScaleRule::amax)
    return invalid("rule", name(options.rule), "amax: a calibration keeps ranges, not values");
  // A view may repeat its rows, so the memory of x does not bound the number of scales.
  for (const Granularity part : {options.granularity, Granularity::row, Granularity::channel}) {
    const std::int64_t count = scale_count(x.shape, part, options.block_rows);
    if (count < 1 || count > kLargestCount)
      return invalid(
          "x.shape",
          fmt::format("({}, {}, {}, {})", x.shape[0], x.shape[1], x.shape[2], x.shape[3]),
          "shapes with 1 to 2147483647 scales, rows and columns over all heads");
  }
  return {};
}

}  // namespace

Status Calibration::observe(std::string_view name, const ConstTensor& x, DType format,
                            const QuantizeOptions& options) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_observe(name, x, format, options));
    Entry seen{std::string(name), format, options.granularity, Entry{}.block_rows, x.shape, 1, {}};
    if (options.granularity == Granularity::block) seen.block_rows = options.block_rows;
    const std::int64_t count = scale_count(x.shape, options.granularity, options.block_rows);
    seen.amax.resize(static_cast<std::size_t>(count));
    std::vector<float> mean;
    if (options.smooth) {
      mean.resize(static_cast<std::size_t>(x.shape[0] * x.shape[1] * x.shape[3]));
      mean_rows(x, mean.data());
    }
    compute_amax(x, options, options.smooth ? mean.data() : nullptr, seen.amax.data());

    const auto known = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.name == name; });
    if (known == entries_.end()) {
      entries_.push_back(std::move(seen));
      return {};
    }
    OCTAVO_RETURN_IF_ERROR(check_same_grouping(*known, seen));
    for (std::size_t i = 0; i < seen.amax.size(); ++i)
      known->amax[i] = std::max(known->amax[i], seen.amax[i]);
    ++known->tensors;
    return {};
  });
}

Result<std::vector<float>> Calibration::scales(std::string_view name) const {
  return without_exceptions([&]() -> Result<std::vector<float>> {
    std::string names;
    for (const Entry& entry : entries_) {
      if (entry.name != name) {
        names += names.empty() ? entry.name : ", " + entry.name;
        continue;
      }
      std::vector<float> scales(entry.amax.size());
      std::transform(entry.amax.begin(), entry.amax.end(), scales.begin(),
                     [&entry](float amax) { return scale_from_amax(entry.format, amax); });
      return scales;
    }
    return invalid("name", fmt::format("'{}'", name), names.empty() ? "none: it is empty" : names);
  });
}

}  // namespace octavo
