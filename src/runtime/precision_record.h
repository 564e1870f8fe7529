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
    {Precision::fp16, 0.00123, {4.134, 29.16, 921.2}},
    {Precision::bf16, 0.00815, {4.312, 28.06, 887.4}},
    {Precision::fp8, 0.319, {6.658, 31.06, 589.5}},
    {Precision::fp8_mixed, 0.319, {10.16, 33.67, 761.7}},
    {Precision::fp8_fast, 0.316, {6.784, 29.12, 511.8}},
    {Precision::int8, 0.157, {7.226, 36.69, 620.7}},
    {Precision::int8_mixed, 0.142, {9.93, 36.4, 799.4}},
    {Precision::sim8, 1.02, {18.61, 99.09, 2542}},
}};

}  // namespace octavo
