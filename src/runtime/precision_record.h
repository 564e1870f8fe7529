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
    {Precision::fp16, 0.00123, {4.114, 28.16, 896.5}},
    {Precision::bf16, 0.00815, {4.325, 27.48, 859.1}},
    {Precision::fp8, 0.312, {7.109, 35.3, 705.4}},
    {Precision::fp8_mixed, 0.322, {9.947, 33.36, 777}},
    {Precision::fp8_fast, 0.318, {6.77, 30.89, 524.8}},
    {Precision::int8, 0.144, {7.741, 41.94, 825.6}},
    {Precision::int8_mixed, 0.142, {9.787, 36.28, 811.5}},
    {Precision::sim8, 1.02, {18.18, 98.73, 2541}},
}};

}  // namespace octavo
