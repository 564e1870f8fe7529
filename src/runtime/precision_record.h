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
inline constexpr std::array<PrecisionRecord, 6> kPrecisionRecords = {{
    {Precision::fp16, 0.00122, {4.149, 28.21, 892.4}},
    {Precision::bf16, 0.00809, {4.309, 27.76, 861.3}},
    {Precision::fp8, 0.432, {7.059, 36.06, 666.6}},
    {Precision::fp8_fast, 0.436, {6.57, 30.71, 515.2}},
    {Precision::int8, 0.144, {7.53, 43.4, 849.6}},
    {Precision::sim8, 1.02, {18.23, 98.92, 2541}},
}};

}  // namespace octavo
