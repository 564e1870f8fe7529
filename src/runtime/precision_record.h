// Made by tools/precision_record.py from evidence/nvidia-h200/accuracy.json.
#pragma once

#include <array>
#include <string_view>

#include "runtime/automatic_plan.h"

namespace octavo {

inline constexpr std::array<RecordSize, 3> kRecordSizes = {{
    {8, 512, 64},
    {8, 2048, 128},
    {4, 16384, 128},
}};
inline constexpr std::string_view kRecordMachine = "NVIDIA H200";
inline constexpr std::array<PrecisionRecord, 8> kPrecisionRecords = {{
    {Precision::fp16, 0.00123, {4.122, 28.72, 935.8}},
    {Precision::bf16, 0.00815, {4.317, 27.93, 876.1}},
    {Precision::fp8, 0.319, {6.677, 31.35, 593.2}},
    {Precision::fp8_mixed, 0.319, {9.962, 33.43, 761.9}},
    {Precision::fp8_fast, 0.316, {6.896, 29.36, 500.3}},
    {Precision::int8, 0.144, {7.538, 41.77, 823.4}},
    {Precision::int8_mixed, 0.142, {9.894, 36.31, 802.6}},
    {Precision::sim8, 1.02, {18.36, 98.88, 2542}},
}};

}  // namespace octavo
