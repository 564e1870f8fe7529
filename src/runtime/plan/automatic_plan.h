// SPDX-License-Identifier: Apache-2.0
// Plans with precision auto, which pick the precision mode from recorded times and errors.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/plan/backend.h"

namespace octavo {

// A size with recorded times, of self-attention with batch 1.
struct RecordSize {
  std::int64_t heads = 0, length = 0, head_dim = 0;
};
inline constexpr std::size_t kMostRecordSizes = 4;

struct PrecisionRecord {
  Precision precision = Precision::fp16;
  double max_error = 0;  // the largest output error over all distributions and sizes
  std::array<double, kMostRecordSizes> us{};  // one call on 16-bit tensors, for each size
};

// The measurements of one GPU.
struct PrecisionRecords {
  std::string_view machine;
  std::span<const RecordSize> sizes;
  std::span<const PrecisionRecord> modes;
};
// The records in evidence/; empty if there are none.
const PrecisionRecords& precision_records();

// A precision mode that meets the problem's max_error, and the reason.
struct Candidate {
  Precision precision = Precision::native;
  double max_error = 0;
  std::string reason;
};
// The precision modes whose errors are within the problem's max_error, fastest first. It is an
// error if there is none.
Result<std::vector<Candidate>> automatic_candidates(const PrecisionRecords& records,
                                                    const Problem& problem, Device device);

// Says which candidate a GPU that is not there would take. `explain` answers for a problem that
// names its precision.
Result<Explanation> explain_automatic(
    const Problem& problem, const std::function<Result<Explanation>(const Problem&)>& explain,
    const PrecisionRecords& records = precision_records());

Result<std::shared_ptr<const Plan::Impl>> make_automatic_plan(
    const Problem& problem, Device device, const PrecisionRecords& records = precision_records());

}  // namespace octavo
