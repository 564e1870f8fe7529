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
    {Precision::fp16, 0.00123, {4.13, 28.24, 894.8}},
    {Precision::bf16, 0.00815, {4.31, 27.63, 859.8}},
    {Precision::fp8, 0.314, {6.963, 35.94, 649.9}},
    {Precision::fp8_mixed, 0.322, {9.902, 33.97, 776.3}},
    {Precision::fp8_fast, 0.315, {6.595, 29.06, 536.2}},
    {Precision::int8, 0.144, {7.49, 41.81, 823.2}},
    {Precision::int8_mixed, 0.142, {9.786, 36.23, 799.8}},
    {Precision::sim8, 1.02, {18.25, 99.08, 2545}},
}};

}  // namespace octavo
