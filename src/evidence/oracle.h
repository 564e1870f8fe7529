// What the oracle says about a case, for the rows that are judged.
#pragma once

#include <cstdint>
#include <vector>

#include "evidence/bounds.h"
#include "evidence/cases.h"
#include "evidence/inputs.h"

namespace octavo::evidence {

// A judged row: its place in the out tensor and how many keys it sees.
struct JudgedRow {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t keys = 0;
};

struct Truth {
  std::vector<JudgedRow> rows;
  // rows x head_dim, and one LSE a row.
  std::vector<double> original, original_lse;    // fp64 on the inputs before any quantization
  std::vector<double> quantized, quantized_lse;  // fp64 on what the mode makes of them
  std::vector<double> reference16;  // unfused 16-bit attention; empty where no 16-bit gate applies
  Magnitudes magnitudes;
};

Result<Truth> make_truth(const Case& c, const Inputs& inputs);

// `count` rows spread over [0, length), the first and the last among them.
std::vector<std::int64_t> spread_rows(std::int64_t length, std::int64_t count);

}  // namespace octavo::evidence
