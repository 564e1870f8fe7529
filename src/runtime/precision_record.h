// Made by tools/precision_record.py from evidence/nvidia-h200/accuracy.json.
#pragma once

#include <array>
#include <string_view>

#include "runtime/automatic_plan.h"

namespace octavo {

inline constexpr std::array<RecordSize, 0> kRecordSizes = {};
inline constexpr std::string_view kRecordMachine = "";
inline constexpr std::array<PrecisionRecord, 0> kPrecisionRecords = {};

}  // namespace octavo
