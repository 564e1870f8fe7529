// The oracle: attention in fp64 and plain loops (octavo/evidence.hpp declares `reference`), and
// two references that round where a kernel rounds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// `reference`, of these rows of every head alone, which then lie next to each other in out and
// lse: of a batch that is not packed.
Status reference_of_rows(const Arguments& arguments, const Options& options,
                         const std::vector<std::int64_t>& rows, double* out, double* lse = nullptr);

// Unfused attention as a 16-bit library computes it: P and O rounded to `dtype`, everything else
// exact. The yardstick of the 16-bit gate. `rows`: as above; null: all.
Status reference_16bit(const Arguments& arguments, const Options& options, DType dtype, double* out,
                       const std::vector<std::int64_t>* rows = nullptr);

// What a tiled kernel does, in fp64 but for P: online softmax over blocks of keys, P scaled and
// rounded to its format before the second product. A kernel must agree with it to 2e-3.
struct TiledRounding {
  std::int64_t block_keys = 128;
  bool backwards = false;             // from the last block to the first
  std::optional<DType> p_format{};    // none: P exact
  double p_scale = 1;                 // P times this is what is rounded
  bool p_scaled_by_block = false;     // P of each block also divided by its row's largest in it
  double rescale_threshold_log2 = 0;  // the running maximum moves only past this
};
Status reference_tiled(const Arguments& arguments, const Options& options,
                       const TiledRounding& rounding, double* out);

}  // namespace octavo
