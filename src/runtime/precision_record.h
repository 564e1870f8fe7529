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
    {Precision::fp16, 0.00123, {4.146, 28.64, 917.5}},
    {Precision::bf16, 0.00815, {4.331, 28.22, 881}},
    {Precision::fp8, 0.319, {6.707, 31.34, 584}},
    {Precision::fp8_mixed, 0.319, {10.14, 33.59, 756.4}},
    {Precision::fp8_fast, 0.316, {6.926, 29.3, 505.5}},
    {Precision::int8, 0.157, {7.23, 36.73, 625.1}},
    {Precision::int8_mixed, 0.142, {9.886, 36.47, 781.2}},
    {Precision::sim8, 1.02, {18.48, 99.19, 2564}},
}};

}  // namespace octavo
