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
    {Precision::fp16, 0.00123, {4.096, 28.75, 930.2}},
    {Precision::bf16, 0.00815, {4.314, 27.92, 899.2}},
    {Precision::fp8, 0.318, {6.84, 34.01, 681.8}},
    {Precision::fp8_mixed, 0.319, {9.91, 33.43, 768.9}},
    {Precision::fp8_fast, 0.316, {6.482, 29.67, 528.4}},
    {Precision::int8, 0.144, {7.464, 41.55, 823.3}},
    {Precision::int8_mixed, 0.142, {9.626, 36.14, 808.3}},
    {Precision::sim8, 1.02, {18.18, 98.16, 2543}},
}};

}  // namespace octavo
