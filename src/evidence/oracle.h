// What the oracle says about a case, for the rows that are judged.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
  std::vector<double> reference16;               // unfused 16-bit attention in `gate`
  std::optional<DType> gate;  // type of the 16-bit gate; none where that does not apply
  Magnitudes magnitudes;
};

// fp64 attention: out in the order of its shape, lse likewise or null. With `rounding`, P and O are
// rounded to it. With `rows`, only those of every head, next to each other.
using Oracle =
    std::function<Status(const Arguments&, const Options& mask, std::optional<DType> rounding,
                         const std::vector<std::int64_t>* rows, double* out, double* lse)>;
// attention/reference.h.
Status cpu_oracle(const Arguments& a, const Options& mask, std::optional<DType> rounding,
                  const std::vector<std::int64_t>* rows, double* out, double* lse);

struct TruthOptions {
  Oracle oracle = cpu_oracle;
  bool p_is_rounded = false;  // the backend that is judged rounds P to the type of V
};
// rows, original and quantized, and nothing else. `original`: of the same inputs and another mode,
// if there is one, whose rows and original are then taken.
Result<Truth> exact_truth(const Case& c, const Inputs& inputs, const Oracle& oracle,
                          const Truth* original = nullptr);
Result<Truth> make_truth(const Case& c, const Inputs& inputs, const TruthOptions& options = {});

// `count` rows spread over [0, length), the first and the last among them.
std::vector<std::int64_t> spread_rows(std::int64_t length, std::int64_t count);

}  // namespace octavo::evidence
