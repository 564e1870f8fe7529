// SPDX-License-Identifier: Apache-2.0
// One task of the backward pass: a slice of the query rows that share a KV head, and all the keys
// they attend to.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/task.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

struct BackwardTiling {
  std::int64_t head_dim = 0;
  std::int64_t block = 0;   // queries of a tile
  std::int64_t blocks = 1;  // that a task keeps in its scratch at a time
  std::int64_t pitch = 0;   // of rows of channels, in floats: whole vectors
  bool has_softcap = false;
  bool has_additions = false;  // to scores: a bias, a mask tensor or a block mask
  bool has_alibi = false;

  std::int64_t rows() const { return block * blocks; }
};

BackwardTiling make_backward_tiling(const Kernels& kernels, const Problem& problem);

// The size of a task's scratch in floats, without the sums of dK and dV.
std::int64_t backward_scratch_floats(const BackwardTiling& tiling);

// A task with its sums of dK and dV: seqlen_kv rows of `pitch` floats each, without the softmax
// scale.
struct BackwardTask : Task {
  float* dk = nullptr;
  float* dv = nullptr;
};

// The state that all tasks of a call share.
struct BackwardContext {
  const Kernels& kernels;
  const BackwardTiling& tiling;
  const Problem& problem;
  const BackwardArguments& arguments;
  const Arguments& forward;  // the call whose gradients these are
  double scale;
};

// Writes the task's rows of dQ, and its sums of dK (without the softmax scale) and dV. `scratch`:
// kScratchAlignment-aligned, of backward_scratch_floats().
void run_backward_task(const BackwardContext& context, const BackwardTask& task, float* scratch);

// Adds dS of the task's rows and of keys [begin, end) to sums[(key - begin) * block + row]. There
// may be at most one block of rows, of one head, and at most kKeyRows keys. `scratch` is as above.
void add_score_gradients(const BackwardContext& context, const Task& task, std::int64_t begin,
                         std::int64_t end, double* sums, float* scratch);

}  // namespace octavo::cpu
