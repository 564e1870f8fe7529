// SPDX-License-Identifier: Apache-2.0
// The results of the fp64 oracle for the judged rows of a case.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "evidence/cases/cases.h"
#include "evidence/cases/inputs.h"
#include "evidence/oracle/bounds.h"

namespace octavo::evidence {

// A judged row: its position in the out tensor and how many keys it sees.
struct JudgedRow {
  std::int64_t batch = 0;
  std::int64_t head = 0;
  std::int64_t row = 0;
  std::int64_t keys = 0;
};

struct Truth {
  std::vector<JudgedRow> rows;
  // rows x head_dim, and one LSE per row.
  std::vector<double> original, original_lse;    // fp64 on the inputs before any quantization
  std::vector<double> quantized, quantized_lse;  // fp64 on the quantized inputs
  std::vector<double> reference16;               // unfused 16-bit attention in `gate`
  std::optional<DType> gate;  // type of the 16-bit gate; none if that does not apply
  Magnitudes magnitudes;
};

// fp64 attention: out in the order of its shape, lse likewise or null. With `rounding`, P and O are
// rounded to it. With `rows`, only those rows of every head, contiguous.
using Oracle =
    std::function<Status(const Arguments&, const Options& mask, std::optional<DType> rounding,
                         const std::vector<std::int64_t>* rows, double* out, double* lse)>;
// attention/reference.h.
Status cpu_oracle(const Arguments& a, const Options& mask, std::optional<DType> rounding,
                  const std::vector<std::int64_t>* rows, double* out, double* lse);

struct TruthOptions {
  Oracle oracle = cpu_oracle;
  bool p_is_rounded = false;  // the judged backend rounds P to the type of V
};
// Computes rows, original and quantized only. `original`: the truth of the same inputs in another
// mode, or null; its rows and original are reused.
Result<Truth> exact_truth(const Case& c, const Inputs& inputs, const Oracle& oracle,
                          const Truth* original = nullptr);
Result<Truth> make_truth(const Case& c, const Inputs& inputs, const TruthOptions& options = {});

// `count` rows spread over [0, length), including the first and the last.
std::vector<std::int64_t> spread_rows(std::int64_t length, std::int64_t count);

}  // namespace octavo::evidence
