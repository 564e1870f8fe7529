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
    {Precision::fp16, 0.00123, {4.16, 28.04, 902.2}},
    {Precision::bf16, 0.00815, {4.312, 27.87, 869.2}},
    {Precision::fp8, 0.319, {6.728, 31.3, 578.8}},
    {Precision::fp8_mixed, 0.319, {10.1, 33.47, 749}},
    {Precision::fp8_fast, 0.316, {6.803, 29.1, 481.1}},
    {Precision::int8, 0.145, {7.349, 39.04, 745.6}},
    {Precision::int8_mixed, 0.142, {9.92, 36.29, 786.1}},
    {Precision::sim8, 1.02, {18.49, 98.96, 2558}},
}};

}  // namespace octavo
