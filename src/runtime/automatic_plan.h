// Plans of precision auto: which mode it is, by what is on record.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/backend.h"

namespace octavo {

// One of the sizes whose times are on record: of a batch of one, as many keys as queries.
struct RecordSize {
  std::int64_t heads = 0, length = 0, head_dim = 0;
};
inline constexpr std::size_t kMostRecordSizes = 4;

struct PrecisionRecord {
  Precision precision = Precision::fp16;
  double max_error = 0;  // the largest of an output, over all distributions and sizes
  std::array<double, kMostRecordSizes> us{};  // of a call from 16-bit tensors, size by size
};

// What a run on a GPU said.
struct PrecisionRecords {
  std::string_view machine;
  std::span<const RecordSize> sizes;
  std::span<const PrecisionRecord> modes;
};
// Of evidence/; none before there has been one.
const PrecisionRecords& precision_records();

// A mode that a problem could be computed in, and why.
struct Candidate {
  Precision precision = Precision::native;
  double max_error = 0;
  std::string reason;
};
// Those within the problem's max_error, the fastest first; a sentence where there is none.
Result<std::vector<Candidate>> automatic_candidates(const PrecisionRecords& records,
                                                    const Problem& problem, Device device);

Result<std::shared_ptr<const Plan::Impl>> make_automatic_plan(
    const Problem& problem, Device device, const PrecisionRecords& records = precision_records());

}  // namespace octavo
