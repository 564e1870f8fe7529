// SPDX-License-Identifier: Apache-2.0
// Made by tools/precision_record.py from evidence/nvidia-h200/accuracy.json.
#pragma once

#include <array>
#include <string_view>

#include "runtime/plan/automatic_plan.h"

namespace octavo {

inline constexpr std::array<RecordSize, 3> kRecordSizes = {{
    {8, 512, 64},
    {8, 2048, 128},
    {4, 16384, 128},
}};
inline constexpr std::string_view kRecordMachine = "NVIDIA H200";
inline constexpr std::array<PrecisionRecord, 8> kPrecisionRecords = {{
    {Precision::fp16, 0.00123, {4.11, 28.14, 906.9}},
    {Precision::bf16, 0.00815, {4.288, 27.69, 892.6}},
    {Precision::fp8, 0.319, {6.706, 31.48, 583.2}},
    {Precision::fp8_mixed, 0.319, {10.07, 33.74, 750.1}},
    {Precision::fp8_fast, 0.316, {6.846, 29.19, 499.8}},
    {Precision::int8, 0.157, {7.139, 35.26, 566.4}},
    {Precision::int8_mixed, 0.142, {9.73, 36.52, 791.4}},
    {Precision::sim8, 1.02, {18.42, 98.7, 2545}},
}};

}  // namespace octavo
