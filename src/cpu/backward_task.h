// One task of the backward pass: a slice of the query rows that share a KV head, and all the keys
// they attend to.
#pragma once

#include <cstdint>

#include "attention/sequence.h"
#include "cpu/kernels.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

struct BackwardTiling {
  std::int64_t head_dim = 0;
  std::int64_t block = 0;   // queries of a tile
  std::int64_t blocks = 1;  // that a task keeps in its scratch at a time
  std::int64_t pitch = 0;   // of rows of channels, in floats: whole vectors

  std::int64_t rows() const { return block * blocks; }
};

BackwardTiling make_backward_tiling(const Kernels& kernels, std::int64_t head_dim);

// Floats that a task needs for itself, without the sums of dK and dV.
std::int64_t backward_scratch_floats(const BackwardTiling& tiling);

// Rows [first_row, first_row + rows) of all query heads that share kv_head, one head after another.
// dk and dv are the sums of the task, seqlen_kv rows of `pitch` floats, for an unscaled K.
struct BackwardTask {
  Sequence sequence{};
  std::int64_t first_head = 0;
  std::int64_t kv_head = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  float* dk = nullptr;
  float* dv = nullptr;
};

// What all tasks of a call share.
struct BackwardContext {
  const Kernels& kernels;
  const BackwardTiling& tiling;
  const Problem& problem;
  const BackwardArguments& arguments;
  double scale;
};

// Writes the task's rows of dQ, and its sums of dK (without the softmax scale) and dV. `scratch`:
// kScratchAlignment-aligned, of backward_scratch_floats().
void run_backward_task(const BackwardContext& context, const BackwardTask& task, float* scratch);

}  // namespace octavo::cpu
