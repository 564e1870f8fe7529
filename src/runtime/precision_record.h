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
    {Precision::fp16, 0.00123, {4.154, 28.11, 879.5}},
    {Precision::bf16, 0.00815, {4.339, 27.67, 849.3}},
    {Precision::fp8, 0.312, {7, 35, 677.8}},
    {Precision::fp8_mixed, 0.322, {9.963, 33.19, 760.9}},
    {Precision::fp8_fast, 0.318, {6.688, 29.48, 512.7}},
    {Precision::int8, 0.144, {7.744, 41.65, 829.4}},
    {Precision::int8_mixed, 0.142, {9.827, 36, 786.5}},
    {Precision::sim8, 1.02, {18.33, 98.48, 2564}},
}};

}  // namespace octavo
