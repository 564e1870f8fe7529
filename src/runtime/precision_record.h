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
    {Precision::fp16, 0.00123, {4.158, 28.6, 912.8}},
    {Precision::bf16, 0.00815, {4.347, 28.23, 893.3}},
    {Precision::fp8, 0.319, {7.104, 31.8, 590.3}},
    {Precision::fp8_mixed, 0.319, {9.939, 33.44, 752.6}},
    {Precision::fp8_fast, 0.316, {6.619, 30.04, 511.4}},
    {Precision::int8, 0.144, {7.482, 41.85, 828.4}},
    {Precision::int8_mixed, 0.142, {9.722, 36.45, 793.2}},
    {Precision::sim8, 1.02, {18.2, 98.92, 2558}},
}};

}  // namespace octavo
