// SPDX-License-Identifier: Apache-2.0
// One task of the CPU backend: a block of query rows and all the keys they attend to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/sequence.h"
#include "cpu/kernels.h"
#include "cpu/prepare.h"
#include "octavo/octavo.hpp"

namespace octavo::cpu {

inline constexpr std::size_t kScratchAlignment = 256;

// Keys of a tile. P^T of a panel (64 x 48 floats, 12 KB) and as much of Q^T fit into a 32 KB L1
// together.
inline constexpr std::int64_t kKeyRows = 64;

// Keys of a group. Tiles of a group are added up in FP32, and groups in FP64 (docs/tolerances.md,
// "Many keys"). Groups start at multiples of this from a sequence's first key.
inline constexpr std::int64_t kGroupKeys = 32 * kKeyRows;

struct Tiling {
  std::int64_t head_dim = 0;     // columns of Q and K
  std::int64_t head_dim_v = 0;   // of V and O
  bool has_groups = false;       // some row may see keys of more than one group
  bool modifies_scores = false;  // after scale * q k
  bool has_additions = false;    // to scores: a bias, a mask tensor or a block mask
  bool has_alibi = false;
  std::int64_t panel = 0;       // queries whose scores are computed together
  std::int64_t max_panels = 1;  // of a task
  std::int64_t pitch = 0;       // of the K block, in floats
  std::int64_t pitch_v = 0;     // of the V block
};

Tiling make_tiling(const Kernels& kernels, const Problem& problem);

// The size of a task's scratch in floats.
std::int64_t scratch_floats(const Tiling& tiling);

struct QueryRow {
  std::int64_t head, row;  // the row counts from the first of the sequence
};

// Rows [first_row, first_row + rows) of a unit. A unit is one or more query heads that share
// kv_head, one after another, beginning with first_head.
struct Task {
  std::int64_t number = 0;  // of the sequence
  Sequence sequence{};
  std::int64_t first_head = 0;
  std::int64_t kv_head = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;

  // The head and row of the task's row `index`.
  QueryRow query(std::int64_t index) const {
    const std::int64_t at = first_row + index;
    return {first_head + at / sequence.seqlen_q, at % sequence.seqlen_q};
  }
};

// What all tasks of a call share.
struct TaskContext {
  const Kernels& kernels;
  const Tiling& tiling;
  const Problem& problem;
  const Arguments& arguments;
  const Operands& operands;
  double scale;
};

// `scratch`: kScratchAlignment-aligned, of scratch_floats().
void run_task(const TaskContext& context, const Task& task, float* scratch);

}  // namespace octavo::cpu
