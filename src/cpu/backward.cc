// SPDX-License-Identifier: Apache-2.0
// The backward pass on the CPU, without materialising S or P:
//
//   S = scale * Q K^T    P = exp(S - lse)    dP = dO V^T    dS = P (dP - delta)    delta = dO . O
//   dV = P^T dO          dK = scale * dS^T Q                dQ = scale * dS K
//
// A task is a slice of the query rows that share a KV head. It keeps as many rows of Q, dO and dQ
// as fit into L2 and walks the visible keys in blocks of kKeyRows, once for each such set of rows:
//
//   load K, V block -> f32           once per key block, shared by the query blocks
//   for each block of queries:       but those from which a block mask hides all of the keys
//     S^T = K Q^T, dP^T = V dO^T     lanes are queries
//     P^T, dS^T                      vertical: no reduction across lanes
//     dV += P^T dO, dK += dS^T Q     lanes are channels: P^T and dS^T enter as broadcasts
//     dQ^T += K^T dS^T               lanes are queries again: no tile is ever transposed
//
// So each of the five products is computed once. A task owns its rows of dQ and has its own sums of
// dK and dV, which cost 16 bytes of traffic for 10 * (rows in L2) operations. There are two
// alternatives. A second loop that recomputes P and dS needs no such sums, but seven products, 40%
// more work. Tasks that own keys need sums of dQ, which take as much memory for each query head as
// the sums of dK and dV for each KV head.
//
// If there are fewer KV heads than kTasks, the rows of a head are divided into slices. The sums of
// dK and dV of each slice are stored and added up afterwards, in order and in FP64. The slices
// depend on the problem alone, not on the number of threads, so the bits do not either. Their
// memory is limited (kSliceBytes). Otherwise each worker has one pair of sums for the longest
// sequence.
//
// The gradient of a bias is a separate pass, which recomputes S and dP. An entry of the bias may
// apply to several sequences, heads, queries or keys; each of these sums has one owner and a fixed
// order. The gradient of a sink sums over the rows of its head, in FP64.
//
// Sums: dQ adds up the keys of a block from zero, then the blocks in FP32; dK and dV do the same
// with blocks of queries, then with slices in FP64.
#include "cpu/backward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/backward_arguments.h"
#include "attention/validate.h"
#include "base/error.h"
#include "cpu/attention.h"
#include "cpu/backward_task.h"
#include "cpu/kernels.h"
#include "cpu/task.h"
#include "cpu/thread_pool.h"

namespace octavo::cpu {
namespace {

// With this many tasks 16 threads finish together under a causal mask.
constexpr std::int64_t kTasks = 64;
// The most memory for the sums of dK and dV of all slices.
constexpr std::int64_t kSliceBytes = std::int64_t{256} << 20;
// With fewer rows a slice would spend more time on its sums than on its products.
constexpr std::int64_t kLeastSliceRows = 256;
// The rows of a slice with batch_invariant, when slices must not depend on the rest of the batch.
constexpr std::int64_t kInvariantSliceRows = 2048;

__extension__ using Wide = __int128;

// No machine has that many bytes, and sums with it do not overflow.
constexpr Wide kMostBytes = Wide{1} << 60;

Wide aligned(Wide bytes) {
  constexpr auto kTo = static_cast<Wide>(kScratchAlignment);
  return (bytes + kTo - 1) / kTo * kTo;
}

// The tasks of a call, and where their sums lie in the workspace.
struct BackwardGrid {
  BackwardTiling tiling{};
  BackwardSlicing slicing{};
  std::int64_t group = 0;   // query heads that share a KV head
  std::int64_t slices = 1;  // of a KV head of a sequence, at most
  std::int64_t tokens = 0;  // keys of all sequences

  // Sizes in bytes: the arrays of lengths, the sums of all slices, the scratch of a worker, its
  // sums of dK and dV, and its sums of a tile of the bias.
  Wide seqlens_bytes = 0, slice_bytes = 0, sums_bytes = 0, scratch_bytes = 0, bias_bytes = 0;

  Wide shared_bytes() const { return seqlens_bytes + slice_bytes; }
  Wide worker_bytes() const { return 2 * sums_bytes + scratch_bytes + bias_bytes; }
  std::int64_t slices_of(std::int64_t rows) const {
    return (rows + slicing.rows - 1) / slicing.rows;
  }
};

constexpr auto kFloat = static_cast<Wide>(sizeof(float));

std::int64_t group_of(const Problem& p) { return p.heads_kv == 0 ? 0 : p.heads_q / p.heads_kv; }

BackwardGrid make_grid(const BackwardSlicing& slicing, const Problem& p,
                       const BackwardArguments* arguments) {
  BackwardGrid grid;
  grid.tiling = make_backward_tiling(kernels(), p);
  grid.slicing = slicing;
  grid.group = group_of(p);
  grid.slices = std::max<std::int64_t>(grid.slices_of(grid.group * p.seqlen_q), 1);
  grid.tokens =
      arguments == nullptr ? p.batch * p.seqlen_kv : arguments->k.shape[0] * arguments->k.shape[2];
  if (p.varlen) grid.seqlens_bytes = aligned(2 * (Wide{p.batch} + 1) * sizeof(std::int32_t));
  if (p.padded) grid.seqlens_bytes = aligned(4 * Wide{p.batch} * sizeof(std::int32_t));
  if (slicing.stored)
    grid.slice_bytes =
        aligned(2 * kFloat * grid.slices * p.heads_kv * grid.tokens * grid.tiling.pitch);
  else
    grid.sums_bytes = aligned(kFloat * p.seqlen_kv * grid.tiling.pitch);
  grid.scratch_bytes = aligned(kFloat * backward_scratch_floats(grid.tiling));
  if (p.bias) grid.bias_bytes = aligned((kKeyRows + 1) * Wide{grid.tiling.block} * sizeof(double));
  return grid;
}

bool has_nothing_to_write(const Problem& p) {
  return p.batch == 0 || p.heads_kv == 0 ||
         (p.seqlen_kv == 0 && (p.heads_q == 0 || p.seqlen_q == 0));
}

// The parts of the workspace.
struct BackwardLayout {
  std::int32_t* seqlens = nullptr;
  float* slices = nullptr;
  std::byte* workers = nullptr;  // each with its sums and its scratch
  int count = 0;                 // of workers that fit into the workspace
};

BackwardLayout lay_out(const BackwardGrid& grid, Workspace workspace) {
  BackwardLayout layout;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data);
  const auto slack = static_cast<std::size_t>(aligned(address) - address);
  if (workspace.data == nullptr ||
      workspace.bytes < slack + grid.shared_bytes() + grid.worker_bytes())
    return layout;
  auto* const first = static_cast<std::byte*>(workspace.data) + slack;
  layout.seqlens = reinterpret_cast<std::int32_t*>(first);
  layout.slices = reinterpret_cast<float*>(first + static_cast<std::size_t>(grid.seqlens_bytes));
  layout.workers = first + static_cast<std::size_t>(grid.shared_bytes());
  layout.count = static_cast<int>(std::min<Wide>(
      (workspace.bytes - slack - grid.shared_bytes()) / grid.worker_bytes(), 1 << 20));
  return layout;
}

// Copies the arrays of lengths. They are read only once, here, so every task sees what was checked,
// even if the caller writes to them meanwhile.
BackwardArguments with_own_seqlens(const BackwardArguments& arguments, std::int32_t* copy) {
  BackwardArguments own = arguments;
  const auto take = [&copy](const std::int32_t*& array, std::int64_t entries) {
    if (array == nullptr) return;
    std::int32_t* const end = std::copy_n(array, entries, copy);
    array = copy;
    copy = end;
  };
  for (const std::int32_t** array : {&own.cu_seqlens_q, &own.cu_seqlens_kv})
    take(*array, arguments.sequences + 1);
  for (const std::int32_t** array :
       {&own.seqlens_q, &own.seqlens_kv, &own.leftpad_q, &own.leftpad_kv})
    take(*array, arguments.q.shape[0]);
  return own;
}

// Zeroes the rows of batch entry b of a gradient outside [begin, begin + length).
void clear_padding(const Tensor& t, std::int64_t b, std::int64_t begin, std::int64_t length) {
  const auto size = static_cast<std::int64_t>(size_bytes(t.dtype));
  for (std::int64_t head = 0; head < t.shape[1]; ++head)
    for (std::int64_t row = 0; row < t.shape[2]; ++row) {
      if (row >= begin && row < begin + length) continue;
      const std::int64_t at = b * t.stride[0] + head * t.stride[1] + row * t.stride[2];
      std::fill_n(static_cast<std::byte*>(t.data) + at * size, t.shape[3] * size, std::byte{0});
    }
}

// Sets the gradients of bias and sinks to zero, for a problem without queries or keys.
void clear_modifier_gradients(const BackwardArguments& a) {
  if (a.dsinks != nullptr) std::fill_n(a.dsinks, a.q.shape[1], 0.0f);
  if (a.dbias.data == nullptr) return;
  for (std::int64_t b = 0; b < a.dbias.shape[0]; ++b) clear_padding(a.dbias, b, 0, 0);
}

// One call, divided into tasks and run.
class Backward {
 public:
  Backward(const Problem& problem, const BackwardArguments& arguments, const BackwardGrid& grid,
           const BackwardLayout& layout, double scale)
      : p_(problem),
        a_(arguments),
        forward_(forward_arguments(arguments)),
        grid_(grid),
        layout_(layout),
        context_{kernels(), grid.tiling, p_, a_, forward_, scale} {}

  void run(int workers) const {
    find_dq_dk_dv(workers);
    if (p_.padded)
      parallel_for(p_.batch, workers, [this](std::int64_t b, int) {
        const Sequence at = sequence(forward_, b);
        clear_padding(a_.dq, b, at.q_begin, at.seqlen_q);
        clear_padding(a_.dk, b, at.kv_begin, at.seqlen_kv);
        clear_padding(a_.dv, b, at.kv_begin, at.seqlen_kv);
      });
    if (a_.dbias.data != nullptr) {
      const std::int64_t blocks = query_blocks();
      parallel_for(a_.dbias.shape[0] * a_.dbias.shape[1] * blocks, workers,
                   [this, blocks](std::int64_t index, int worker) {
                     find_dbias(index / blocks, index % blocks, worker);
                   });
    }
    if (a_.dsinks != nullptr)
      parallel_for(p_.heads_q, workers,
                   [this](std::int64_t head, int worker) { find_dsink(head, worker); });
  }

 private:
  void find_dq_dk_dv(int workers) const {
    const std::int64_t units = p_.batch * p_.heads_kv;
    parallel_for(units * grid_.slices, workers,
                 [this](std::int64_t index, int worker) { run_task(index, worker); });
    if (!grid_.slicing.stored) return;
    const std::int64_t blocks = (p_.seqlen_kv + kKeyRows - 1) / kKeyRows;
    parallel_for(units * blocks, workers, [this, blocks](std::int64_t index, int worker) {
      add_slices(index / blocks, index % blocks * kKeyRows, worker);
    });
  }

  // A KV head of a sequence, and all query rows that attend to it.
  struct Unit {
    std::int64_t number = 0;  // of the sequence
    Sequence sequence{};
    std::int64_t kv_head = 0;
    std::int64_t rows = 0;
  };
  Unit unit(std::int64_t index) const {
    Unit u;
    u.number = index / p_.heads_kv;
    u.sequence = sequence(forward_, u.number);
    u.kv_head = index % p_.heads_kv;
    u.rows = u.sequence.seqlen_q * grid_.group;
    return u;
  }

  std::byte* of_worker(int worker) const {
    return layout_.workers +
           static_cast<std::size_t>(grid_.worker_bytes()) * static_cast<std::size_t>(worker);
  }
  float* sums(int worker, int which) const {
    return reinterpret_cast<float*>(of_worker(worker) +
                                    static_cast<std::size_t>(grid_.sums_bytes) * which);
  }
  float* scratch(int worker) const { return sums(worker, 2); }
  // The worker's sums of a tile of the bias, by keys and queries, and after them a row of sums by
  // queries.
  double* bias_sums(int worker) const {
    return reinterpret_cast<double*>(
        of_worker(worker) + static_cast<std::size_t>(grid_.worker_bytes() - grid_.bias_bytes));
  }
  // The sums of dK (which = 0) or dV (1) of a slice, from the first key of the unit on.
  float* slice_sums(const Unit& u, std::int64_t slice, int which) const {
    const std::int64_t first =
        u.sequence.batch * a_.k.shape[2] + u.sequence.kv_begin;  // batch is 0 in a varlen batch
    const std::int64_t row = ((slice * 2 + which) * p_.heads_kv + u.kv_head) * grid_.tokens + first;
    return layout_.slices + row * grid_.tiling.pitch;
  }

  void run_task(std::int64_t index, int worker) const {
    // Last rows first: under a causal mask they have the most keys.
    const std::int64_t slice = grid_.slices - 1 - index % grid_.slices;
    const Unit u = unit(index / grid_.slices);
    BackwardTask task;
    task.number = u.number;
    task.sequence = u.sequence;
    task.kv_head = u.kv_head;
    task.first_head = u.kv_head * grid_.group;
    task.first_row = std::min(slice * grid_.slicing.rows, u.rows);
    task.rows = std::min(grid_.slicing.rows, u.rows - task.first_row);
    const bool own = !grid_.slicing.stored;
    if (!own && task.rows == 0) return;
    task.dk = own ? sums(worker, 0) : slice_sums(u, slice, 0);
    task.dv = own ? sums(worker, 1) : slice_sums(u, slice, 1);
    run_backward_task(context_, task, scratch(worker));
    if (!own) return;
    for (std::int64_t key = 0; key < u.sequence.seqlen_kv; ++key) {
      float* const dk = task.dk + key * grid_.tiling.pitch;
      // In FP64, as in add_slices(), so that both give the same bits for one slice.
      for (std::int64_t c = 0; c < p_.head_dim; ++c)
        dk[c] = static_cast<float>(static_cast<double>(dk[c]) * context_.scale);
      store(a_.dk, u, key, dk);
      store(a_.dv, u, key, task.dv + key * grid_.tiling.pitch);
    }
  }

  // Adds up the slices of the keys [first, first + kKeyRows) of a unit.
  void add_slices(std::int64_t index, std::int64_t first, int worker) const {
    const Unit u = unit(index);
    const std::int64_t last = std::min(first + kKeyRows, u.sequence.seqlen_kv);
    float* const row = scratch(worker);
    for (std::int64_t key = first; key < last; ++key)
      for (const int which : {0, 1}) {
        const double factor = which == 0 ? context_.scale : 1.0;
        const float* const from = slice_sums(u, 0, which) + key * grid_.tiling.pitch;
        const std::int64_t step = 2 * p_.heads_kv * grid_.tokens * grid_.tiling.pitch;
        for (std::int64_t c = 0; c < p_.head_dim; ++c) {
          double sum = 0;
          for (std::int64_t n = 0; n < grid_.slices_of(u.rows); ++n)
            sum += static_cast<double>(from[n * step + c]);
          row[c] = static_cast<float>(sum * factor);
        }
        store(which == 0 ? a_.dk : a_.dv, u, key, row);
      }
  }

  // The number of blocks of rows of the bias, each computed by itself. It is one if a single row of
  // the bias applies to all queries.
  std::int64_t query_blocks() const {
    const std::int64_t rows = a_.dbias.shape[2];
    return rows == 1 ? 1 : (rows + grid_.tiling.block - 1) / grid_.tiling.block;
  }

  // The indices, in a dimension of size `all`, to which entry `index` of a bias applies.
  struct Indices {
    std::int64_t begin, end;
  };
  static Indices shared_by(std::int64_t index, std::int64_t entries, std::int64_t all) {
    return entries == 1 ? Indices{0, all} : Indices{index, index + 1};
  }

  // Computes dbias of one head and one block of rows of the bias, a block of keys at a time.
  void find_dbias(std::int64_t entry, std::int64_t query_block, int worker) const {
    const std::int64_t block = grid_.tiling.block, queries = a_.q.shape[2], keys = a_.k.shape[2];
    const bool one_row = a_.dbias.shape[2] == 1, one_column = a_.dbias.shape[3] == 1;
    const std::int64_t first_row = one_row ? 0 : query_block * block;
    const std::int64_t last_row = one_row ? queries : std::min(first_row + block, queries);
    double* const tile = bias_sums(worker);
    double* const row_sums = tile + kKeyRows * block;
    std::fill_n(row_sums, block, 0.0);
    for (std::int64_t first_key = 0; first_key < keys; first_key += kKeyRows) {
      std::fill_n(tile, kKeyRows * block, 0.0);
      for (std::int64_t row = first_row; row < last_row; row += block)
        add_tile(entry, row, first_key, tile, worker);
      for (std::int64_t k = 0; k < std::min(kKeyRows, keys - first_key); ++k) {
        double* const sums = tile + k * block;
        if (one_row) sums[0] = std::accumulate(sums, sums + block, 0.0);
        if (one_column)
          for (std::int64_t i = 0; i < block; ++i) row_sums[i] += sums[i];
        else
          store_dbias(entry, query_block, first_key + k, sums);
      }
    }
    if (one_column) store_dbias(entry, query_block, 0, row_sums);
  }

  // Adds dS of all sequences and heads to which the entry applies. Rows and keys are counted in the
  // tensors, padding included.
  void add_tile(std::int64_t entry, std::int64_t first_row, std::int64_t first_key, double* tile,
                int worker) const {
    const auto& shape = a_.dbias.shape;
    const std::int64_t block = grid_.tiling.block;
    const Indices batches = shared_by(entry / shape[1], shape[0], p_.batch);
    const Indices heads = shared_by(entry % shape[1], shape[1], p_.heads_q);
    for (std::int64_t batch = batches.begin; batch < batches.end; ++batch) {
      const Sequence at = sequence(forward_, batch);
      const std::int64_t row = std::max(first_row, at.q_begin);
      const std::int64_t row_end = std::min(first_row + block, at.q_begin + at.seqlen_q);
      const std::int64_t key = std::max(first_key, at.kv_begin);
      const std::int64_t key_end = std::min(first_key + kKeyRows, at.kv_begin + at.seqlen_kv);
      if (row >= row_end || key >= key_end) continue;
      for (std::int64_t head = heads.begin; head < heads.end; ++head) {
        Task task;
        task.number = batch;
        task.sequence = at;
        task.first_head = head;
        task.kv_head = head / grid_.group;
        task.first_row = row - at.q_begin;
        task.rows = row_end - row;
        add_score_gradients(context_, task, key - at.kv_begin, key_end - at.kv_begin,
                            tile + (key - first_key) * block + row - first_row, scratch(worker));
      }
    }
  }

  // Stores one column of dbias, for the rows of a block.
  void store_dbias(std::int64_t entry, std::int64_t query_block, std::int64_t key,
                   const double* sums) const {
    const Tensor& t = a_.dbias;
    const std::int64_t first = query_block * grid_.tiling.block;
    const std::int64_t rows = std::min(grid_.tiling.block, t.shape[2] - first);
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto value = static_cast<float>(sums[i]);
      const std::int64_t at = entry / t.shape[1] * t.stride[0] + entry % t.shape[1] * t.stride[1] +
                              (first + i) * t.stride[2] + key * t.stride[3];
      context_.kernels.from_f32(
          t.dtype, &value, 1,
          static_cast<std::byte*>(t.data) + at * static_cast<std::int64_t>(size_bytes(t.dtype)));
    }
  }

  // dsink = - sum over the rows of a head of exp(sink - lse) delta.
  void find_dsink(std::int64_t head, int worker) const {
    float* const dout = scratch(worker);
    float* const out = dout + round_up(p_.head_dim, kRowPadding);
    const auto row_of = [head](const ConstTensor& t, std::int64_t b, std::int64_t row) {
      return static_cast<const std::byte*>(t.data) +
             (b * t.stride[0] + head * t.stride[1] + row * t.stride[2]) *
                 static_cast<std::int64_t>(size_bytes(t.dtype));
    };
    double sum = 0;
    for (std::int64_t number = 0; number < p_.batch; ++number) {
      const Sequence at = sequence(forward_, number);
      for (std::int64_t row = at.q_begin; row < at.q_begin + at.seqlen_q; ++row) {
        const float lse = *reinterpret_cast<const float*>(row_of(a_.lse, at.batch, row));
        if (lse == -kInfinity) continue;
        context_.kernels.to_f32(a_.dout.dtype, row_of(a_.dout, at.batch, row), 0, 1, p_.head_dim,
                                dout, 0);
        context_.kernels.to_f32(a_.out.dtype, row_of(a_.out, at.batch, row), 0, 1, p_.head_dim, out,
                                0);
        double delta = 0;
        for (std::int64_t c = 0; c < p_.head_dim; ++c)
          delta += static_cast<double>(dout[c]) * static_cast<double>(out[c]);
        sum -= std::exp(static_cast<double>(a_.sinks[head]) - static_cast<double>(lse)) * delta;
      }
    }
    a_.dsinks[head] = static_cast<float>(sum);
  }

  void store(const Tensor& t, const Unit& u, std::int64_t key, const float* row) const {
    const std::int64_t at = u.sequence.batch * t.stride[0] + u.kv_head * t.stride[1] +
                            (u.sequence.kv_begin + key) * t.stride[2];
    context_.kernels.from_f32(
        t.dtype, row, p_.head_dim,
        static_cast<std::byte*>(t.data) + at * static_cast<std::int64_t>(size_bytes(t.dtype)));
  }

  const Problem& p_;
  const BackwardArguments& a_;
  const Arguments forward_;
  const BackwardGrid& grid_;
  const BackwardLayout& layout_;
  const BackwardContext context_;
};

}  // namespace

BackwardSlicing backward_slicing(const Problem& p) {
  const BackwardTiling tiling = make_backward_tiling(kernels(), p);
  const std::int64_t rows = group_of(p) * p.seqlen_q;
  std::int64_t slice_rows = kInvariantSliceRows;
  if (!p.options.batch_invariant) {
    const std::int64_t units = std::max<std::int64_t>(p.batch * p.heads_kv, 1);
    const Wide slice_bytes = 2 * kFloat * units * p.seqlen_kv * tiling.pitch;
    const Wide most = std::max<Wide>(kSliceBytes / std::max<Wide>(slice_bytes, 1), 1);
    const auto slices =
        static_cast<std::int64_t>(std::min<Wide>((kTasks + units - 1) / units, most));
    slice_rows = std::max((rows + slices - 1) / slices, kLeastSliceRows);
  }
  BackwardSlicing slicing;
  slicing.rows = (slice_rows + tiling.block - 1) / tiling.block * tiling.block;
  slicing.stored = rows > slicing.rows;
  return slicing;
}

std::size_t backward_workspace_bytes(const BackwardSlicing& slicing, const Problem& problem,
                                     const BackwardArguments* arguments, int threads) {
  if (has_nothing_to_write(problem)) return 0;
  const BackwardGrid grid = make_grid(slicing, problem, arguments);
  const Wide bytes = static_cast<Wide>(kScratchAlignment) + grid.shared_bytes() +
                     std::max(threads, 1) * grid.worker_bytes();
  return static_cast<std::size_t>(std::min(bytes, kMostBytes));
}

Status attention_backward(const BackwardSlicing& slicing, const Problem& problem,
                          const BackwardArguments& given, Workspace workspace) {
  if (has_nothing_to_write(problem)) {
    clear_modifier_gradients(given);
    return {};
  }
  const BackwardGrid grid = make_grid(slicing, problem, &given);
  const BackwardLayout layout = lay_out(grid, workspace);
  if (layout.count == 0)
    return invalid(
        "workspace", fmt::format("{} bytes", workspace.bytes),
        fmt::format("{} bytes or more", backward_workspace_bytes(slicing, problem, &given, 1)));
  const BackwardArguments arguments = with_own_seqlens(given, layout.seqlens);
  OCTAVO_RETURN_IF_ERROR(validate_lengths(forward_arguments(arguments)));
  const double scale =
      arguments.scale ? *arguments.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  Backward(problem, arguments, grid, layout, scale).run(std::min(thread_count(), layout.count));
  return {};
}

std::string describe_backward_config(const Problem& problem, int threads) {
  const BackwardGrid grid = make_grid(backward_slicing(problem), problem, nullptr);
  return fmt::format("block={}x{} slices={} target={} threads={}", grid.tiling.block, kKeyRows,
                     grid.slices, kernels().name, threads);
}

}  // namespace octavo::cpu
