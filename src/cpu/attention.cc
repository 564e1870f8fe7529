// SPDX-License-Identifier: Apache-2.0
// Tiled attention on the CPU, O = softmax(scale * Q K^T) V, without materialising S or P.
//
// A task is a block of query rows of one (sequence, head). If queries are few, as in decoding, a
// task has the rows of all query heads that share a KV head. Its rows form panels of vectors whose
// lanes are queries, as many as keep Q^T and O^T within 400 KB. It walks the visible keys in blocks
// of kKeyRows:
//
//   load K, V block -> f32          once per task and block, shared by its panels
//   for each panel:  S^T = K Q^T    (scores)      lanes are queries: K enters as broadcasts
//                    S^T changed    (modify_scores)  only with softcap, bias, ALiBi or a mask
//                    P^T = 2^(S-m)  (softmax)     vertical: no reduction across lanes
//                    O^T += V^T P^T (accumulate)  V enters as broadcasts
//
// Traffic, for AVX-512 (48 queries a panel, tiles of 8 x 3 vectors) and head dim D. A step of a
// product has 11 loads and 24 multiply-adds; the core can do two of each per cycle. L1 holds 64
// channels of Q^T (12 KB) or P^T (64 keys, 12 KB), each read once per 8 rows of the product. L2
// holds Q^T and O^T of the task (768 rows at D = 64, 384 at 128) and the K and V block (74 KB at D
// = 128). K and V come from beyond L2 once per task: 2 * D * 4 B for 4 * 768 * D operations at D =
// 64, that is 384 operations per byte. The softmax costs 15 vector instructions per vector of
// scores, the products 2 D.
//
// Measured (Skylake AVX-512, one thread, S = 2048, by CPU time on a shared machine, of a
// multiply-add peak of 153 GFLOP/s): the products alone run at 90 to 93%; all of it at 67 to 69%
// (D = 64, f32) up to 73 to 75% (D = 128, f16). Blocks of 96 keys gave the same within noise, of
// 128 keys lost 2% at D = 128; tasks of 288 rows lost 1 to 2% at D = 64.
//
// Sums: the keys of a block are added up from zero, then the blocks of a group (kGroupKeys) in
// FP32, then the groups in FP64, so that errors do not grow with the number of keys.
//
// Bits: all keys are summed in order, and blocks and groups start at multiples of their size from
// the sequence's first key. A key that a row does not see contributes p = 0 exactly, and a block or
// group of such keys leaves a sum as it is. So a row's bits depend neither on the split into tasks
// nor on the other rows of its panel.
#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/operand_scales.h"
#include "attention/sequence.h"
#include "attention/validate.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/prepare.h"
#include "cpu/task.h"
#include "cpu/thread_pool.h"

namespace octavo::cpu {
namespace {

// Blocks of queries are made smaller until each thread has at least this many tasks, so that
// threads finish together.
constexpr std::int64_t kTasksPerThread = 4;
// Heads with fewer queries than this would not fill their vectors, so the heads that share a KV
// head are packed together.
constexpr std::int64_t kFewQueries = 64;

// How the rows of a call are divided into tasks.
struct Grid {
  std::int64_t heads_per_unit = 1;  // query heads packed together
  std::int64_t units = 0;           // per sequence
  std::int64_t rows = 0;            // of a unit, at most
  std::int64_t panels = 1;          // of a task
  std::int64_t blocks = 0;          // tasks of a unit

  std::int64_t tasks(const Problem& p) const { return p.batch * units * blocks; }
};

Grid make_grid(const Problem& p, const Tiling& tiling, int threads) {
  Grid grid;
  if (p.heads_q == 0 || p.heads_kv == 0) return grid;  // nothing to run, but explain() calls this
  const std::int64_t group = p.heads_q / p.heads_kv;
  grid.heads_per_unit = p.seqlen_q < kFewQueries ? group : 1;
  grid.units = p.heads_q / grid.heads_per_unit;
  grid.rows = p.seqlen_q * grid.heads_per_unit;
  grid.panels = tiling.max_panels;
  const auto cut = [&] {
    const std::int64_t rows = grid.panels * tiling.panel;
    grid.blocks = (grid.rows + rows - 1) / rows;
  };
  cut();
  while (grid.panels > 1 && grid.tasks(p) < kTasksPerThread * threads) {
    --grid.panels;
    cut();
  }
  return grid;
}

std::size_t align(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::size_t seqlens_bytes(const Problem& problem) {
  const auto batch = static_cast<std::size_t>(problem.batch);
  std::size_t entries = problem.varlen ? 2 * (batch + 1) : problem.padded ? 4 * batch : 0;
  if (problem.paged)
    entries += batch * (1 + static_cast<std::size_t>(problem.seqlen_kv / problem.page_size));
  return align(entries * sizeof(std::int32_t));
}

std::size_t shared_bytes(const Problem& problem) {
  return align(static_cast<std::size_t>(prepared_floats(problem)) * sizeof(float)) +
         seqlens_bytes(problem);
}

std::size_t scratch_bytes(const Problem& problem, const Tiling& tiling) {
  const std::int64_t floats =
      std::max(scratch_floats(tiling),
               prepare_scratch_floats(std::max(problem.head_dim, problem.head_dim_v)));
  return align(static_cast<std::size_t>(floats) * sizeof(float));
}

// The parts of the workspace: first what all workers share, which ends with copies of the lengths
// and of the page table, then a scratch for each worker.
struct Layout {
  std::int32_t* seqlens = nullptr;
  float* shared = nullptr;
  float* scratch = nullptr;
  std::int64_t stride = 0;  // floats from one worker's scratch to the next
  int workers = 0;          // that fit into the workspace
};

Layout lay_out(const Problem& problem, const Tiling& tiling, Workspace workspace) {
  Layout layout;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  const std::size_t slack = align(address) - address;
  const std::size_t shared = shared_bytes(problem);
  const std::size_t scratch = scratch_bytes(problem, tiling);
  if (workspace.data == nullptr || workspace.bytes < slack + shared + scratch) return layout;
  auto* first = static_cast<std::byte*>(workspace.data) + slack;
  layout.shared = reinterpret_cast<float*>(first);
  layout.seqlens = reinterpret_cast<std::int32_t*>(first + shared - seqlens_bytes(problem));
  layout.scratch = reinterpret_cast<float*>(first + shared);
  layout.stride = static_cast<std::int64_t>(scratch / sizeof(float));
  layout.workers = static_cast<int>(
      std::min<std::size_t>((workspace.bytes - slack - shared) / scratch, 1 << 20));
  return layout;
}

Task make_task(const Problem& p, const Arguments& a, const Grid& grid, const Tiling& tiling,
               std::int64_t index) {
  Task task;
  // Last blocks first: under a causal mask they have the most keys.
  const std::int64_t block = grid.blocks - 1 - index % grid.blocks;
  const std::int64_t unit = index / grid.blocks;
  task.number = unit / grid.units;
  task.first_head = unit % grid.units * grid.heads_per_unit;
  task.sequence = sequence(a, task.number);
  const std::int64_t rows = task.sequence.seqlen_q * grid.heads_per_unit;
  task.first_row = std::min(block * grid.panels * tiling.panel, rows);
  task.rows = std::min(grid.panels * tiling.panel, rows - task.first_row);
  task.kv_head = task.first_head / (p.heads_q / p.heads_kv);
  return task;
}

// Copies the arrays of lengths and the page table. They are read only once, here, so every task
// sees what was checked, even if the caller writes to them meanwhile.
Arguments with_own_seqlens(const Arguments& arguments, std::int32_t* copy) {
  Arguments own = arguments;
  const auto take = [&copy](const std::int32_t*& array, std::int64_t entries) {
    if (array == nullptr) return;
    std::int32_t* const end = std::copy_n(array, entries, copy);
    array = copy;
    copy = end;
  };
  if (is_varlen(arguments))
    for (const std::int32_t** array : {&own.cu_seqlens_q, &own.cu_seqlens_kv})
      take(*array, arguments.sequences + 1);
  for (const std::int32_t** array :
       {&own.seqlens_q, &own.seqlens_kv, &own.leftpad_q, &own.leftpad_kv})
    take(*array, arguments.q.shape[0]);
  if (!is_paged(arguments)) return own;
  own.page_table = copy;
  own.page_table_stride = arguments.pages_per_sequence;
  for (std::int64_t b = 0; b < arguments.q.shape[0]; ++b)
    copy = std::copy_n(arguments.page_table + b * arguments.page_table_stride,
                       arguments.pages_per_sequence, copy);
  return own;
}

// Writes the rows of q that are padding: output 0, LSE -infinity.
void store_padding(const Arguments& a, std::int64_t b, std::int64_t head) {
  const Sequence at = sequence(a, b);
  const auto size = static_cast<std::int64_t>(size_bytes(a.out.dtype));
  for (std::int64_t row = 0; row < a.q.shape[2]; ++row) {
    if (row == at.q_begin) row += at.seqlen_q;
    if (row == a.q.shape[2]) break;
    const auto first = b * a.out.stride[0] + head * a.out.stride[1] + row * a.out.stride[2];
    std::fill_n(static_cast<std::byte*>(a.out.data) + first * size, a.out.shape[3] * size,
                std::byte{0});
    if (a.lse.data != nullptr)
      static_cast<float*>(
          a.lse.data)[b * a.lse.stride[0] + head * a.lse.stride[1] + row * a.lse.stride[2]] =
          -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

std::size_t workspace_bytes(const Problem& problem, int threads) {
  const Tiling tiling = make_tiling(kernels(), problem);
  return kScratchAlignment + shared_bytes(problem) +
         static_cast<std::size_t>(std::max(threads, 1)) * scratch_bytes(problem, tiling);
}

Status attention(const Problem& problem, const Arguments& given, Workspace workspace) {
  if (problem.batch == 0 || problem.heads_q == 0 || problem.seqlen_q == 0) return {};
  const Kernels& in_use = kernels();
  const Tiling tiling = make_tiling(in_use, problem);
  const Layout layout = lay_out(problem, tiling, workspace);
  if (layout.workers == 0)
    return invalid("workspace", fmt::format("{} bytes", workspace.bytes),
                   fmt::format("{} bytes or more", workspace_bytes(problem, 1)));
  const Arguments arguments = with_own_seqlens(given, layout.seqlens);
  OCTAVO_RETURN_IF_ERROR(validate_lengths(arguments));
  const int workers = std::min(thread_count(), layout.workers);
  const Operands operands =
      prepare(in_use, problem, arguments, layout.shared, layout.scratch, layout.stride, workers);
  const Grid grid = make_grid(problem, tiling, workers);
  std::fill_n(arguments.out_amax, amax_floats(problem, arguments), 0.0f);
  const double scale =
      arguments.scale ? *arguments.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  const TaskContext context{in_use, tiling, problem, arguments, operands, scale};
  parallel_for(grid.tasks(problem), workers, [&](std::int64_t index, int worker) {
    const Task task = make_task(problem, arguments, grid, tiling, index);
    if (task.rows > 0) run_task(context, task, layout.scratch + worker * layout.stride);
  });
  if (problem.padded)
    parallel_for(problem.batch * problem.heads_q, workers, [&](std::int64_t index, int) {
      store_padding(arguments, index / problem.heads_q, index % problem.heads_q);
    });
  return {};
}

std::string describe_config(const Problem& problem, int threads) {
  const Tiling tiling = make_tiling(kernels(), problem);
  const Grid grid = make_grid(problem, tiling, threads);
  return fmt::format("tile={}x{} target={} threads={}", grid.panels * tiling.panel, kKeyRows,
                     kernels().name, threads);
}

}  // namespace octavo::cpu
