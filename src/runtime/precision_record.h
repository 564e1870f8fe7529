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
    {Precision::fp16, 0.00123, {4.131, 28.2, 920.6}},
    {Precision::bf16, 0.00815, {4.299, 27.58, 882.9}},
    {Precision::fp8, 0.312, {6.878, 34.23, 662}},
    {Precision::fp8_mixed, 0.322, {9.904, 33.35, 755}},
    {Precision::fp8_fast, 0.318, {6.501, 29.75, 527.7}},
    {Precision::int8, 0.144, {7.52, 41.99, 835}},
    {Precision::int8_mixed, 0.142, {9.646, 36.53, 786.9}},
    {Precision::sim8, 1.02, {18.19, 98.82, 2542}},
}};

}  // namespace octavo
