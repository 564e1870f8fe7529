// SPDX-License-Identifier: Apache-2.0
#include "evidence/oracle/gpu_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "gpu/forward/launch_oracle.h"
#include "runtime/staging.h"

namespace octavo::evidence {
namespace {

template <class T>
Result<Buffer> upload(Device device, const std::vector<T>& values) {
  Result<Buffer> buffer = Buffer::make(device, values.size() * sizeof(T));
  if (!buffer.ok()) return buffer;
  OCTAVO_RETURN_IF_ERROR(buffer->upload(values.data(), values.size() * sizeof(T)));
  return buffer;
}

// The results of the oracle, initialised with those of rows without keys, which the oracle does not
// write.
struct Results {
  Buffer out, lse, scores;
  std::size_t values = 0, rows = 0;

  static Result<Results> make(Device device, std::size_t rows, std::size_t columns,
                              std::size_t scores) {
    Results r;
    r.rows = rows;
    r.values = rows * columns;
    Result<Buffer> out = upload(device, std::vector<double>(r.values, 0.0));
    if (!out.ok()) return out.status();
    Result<Buffer> lse =
        upload(device, std::vector<double>(rows, -std::numeric_limits<double>::infinity()));
    if (!lse.ok()) return lse.status();
    Result<Buffer> scratch = Buffer::make(device, scores * sizeof(double));
    if (!scratch.ok()) return scratch.status();
    r.out = *out;
    r.lse = *lse;
    r.scores = *scratch;
    return r;
  }
};

Status run_on_gpu(const Gpu& gpu, Device device, const Arguments& host, const Options& mask,
                  std::optional<DType> rounding, const std::vector<std::int64_t>* rows, double* out,
                  double* lse) {
  const Result<Problem> run_problem = problem_of(host, mask);
  if (!run_problem.ok()) return run_problem.status();
  if (run_problem->paged)
    return unsupported("page_table", "given", "dense keys in the oracle on a GPU");
  const std::int64_t per_head =
      rows == nullptr ? host.q.shape[2] : static_cast<std::int64_t>(rows->size());
  const std::int64_t all_rows = host.q.shape[0] * run_problem->heads_q * per_head;
  if (all_rows == 0) return {};
  const Result<StagedArguments> staged = StagedArguments::make(host, *run_problem, device);
  if (!staged.ok()) return staged.status();
  std::vector<std::int32_t> chosen;
  if (rows != nullptr) chosen.assign(rows->begin(), rows->end());
  const Result<Buffer> row_list = upload(device, chosen);
  if (!row_list.ok()) return row_list.status();

  const std::int64_t computed = run_problem->batch * run_problem->heads_q *
                                (rows == nullptr ? run_problem->seqlen_q : per_head);
  OracleOutputs outputs;
  outputs.warps = oracle_warps(computed, run_problem->seqlen_kv);
  const Result<Results> results = Results::make(
      device, static_cast<std::size_t>(all_rows), static_cast<std::size_t>(run_problem->head_dim_v),
      static_cast<std::size_t>(outputs.warps * std::max<std::int64_t>(run_problem->seqlen_kv, 1)));
  if (!results.ok()) return results.status();
  outputs.out = static_cast<double*>(results->out.data());
  outputs.lse = static_cast<double*>(results->lse.data());
  outputs.scores = static_cast<double*>(results->scores.data());
  OCTAVO_RETURN_IF_ERROR(
      launch_oracle(gpu, oracle_params(*run_problem, staged->on_device(), rounding,
                                       static_cast<const std::int32_t*>(row_list->data()),
                                       static_cast<std::int64_t>(chosen.size()), outputs)));
  OCTAVO_RETURN_IF_ERROR(synchronize(device));
  OCTAVO_RETURN_IF_ERROR(results->out.download(out, results->values * sizeof(double)));
  if (lse == nullptr) return {};
  return results->lse.download(lse, results->rows * sizeof(double));
}

}  // namespace

Result<Oracle> gpu_oracle(Device device) {
  const Result<const Gpu*> gpu = open_gpu(device.index);
  if (!gpu.ok()) return gpu.status();
  const Oracle oracle = [gpu = *gpu, device](
                            const Arguments& a, const Options& mask, std::optional<DType> rounding,
                            const std::vector<std::int64_t>* rows, double* out, double* lse) {
    return run_on_gpu(*gpu, device, a, mask, rounding, rows, out, lse);
  };
  // Tests here whether the oracle compiles and runs, so that it does not fail in the first of two
  // thousand cases.
  Case one;
  const Result<Inputs> inputs = make_inputs(one);
  if (!inputs.ok()) return inputs.status();
  const Result<Truth> truth = make_truth(one, *inputs, {oracle, false});
  if (!truth.ok()) return truth.status();
  return oracle;
}

double oracle_difference(const Truth& a, const Truth& b) {
  const auto largest = [](const std::vector<double>& x, const std::vector<double>& y) {
    if (x.size() != y.size()) return HUGE_VAL;
    double difference = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i]) continue;  // including two infinities
      const double d = std::abs(x[i] - y[i]);
      difference = std::isfinite(d) ? std::max(difference, d) : HUGE_VAL;
    }
    return difference;
  };
  const Magnitudes& m = a.magnitudes;
  std::int64_t most_keys = 0;
  for (const JudgedRow& row : a.rows) most_keys = std::max(most_keys, row.keys);
  // The error of a score is proportional to its size, and the error of a weight to that of its
  // score. A sum of equal terms rounds in the same direction at every step.
  const double relative = 0x1p-53 * (64 + 8 * m.score_amax + static_cast<double>(most_keys));
  const auto over = [](double x, double bound) { return x == 0 ? 0 : x / bound; };
  double worst = 0;
  for (const auto& [x, y] : {std::pair{&a.original, &b.original}, {&a.quantized, &b.quantized}})
    worst = std::max(worst, over(largest(*x, *y), relative * m.v_amax));
  for (const auto& [x, y] :
       {std::pair{&a.original_lse, &b.original_lse}, {&a.quantized_lse, &b.quantized_lse}})
    worst = std::max(worst, over(largest(*x, *y), relative));
  // A weight next to a rounding boundary may be rounded either way, and so may the output.
  const double steps = a.gate == DType::bf16 ? 0x1p-6 : 0x1p-9;
  return std::max(worst, over(largest(a.reference16, b.reference16), steps * m.v_amax));
}

}  // namespace octavo::evidence
