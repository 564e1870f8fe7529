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
    {Precision::fp16, 0.00123, {4.154, 28.55, 925.4}},
    {Precision::bf16, 0.00815, {4.32, 28, 881.9}},
    {Precision::fp8, 0.319, {6.661, 31.22, 589.1}},
    {Precision::fp8_mixed, 0.319, {10.16, 33.72, 764.1}},
    {Precision::fp8_fast, 0.316, {6.781, 29.14, 512.1}},
    {Precision::int8, 0.157, {7.226, 35.46, 584.2}},
    {Precision::int8_mixed, 0.142, {9.906, 36.51, 807.6}},
    {Precision::sim8, 1.02, {18.47, 98.59, 2542}},
}};

}  // namespace octavo
