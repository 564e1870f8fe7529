// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "gpu/driver/tensor_map.h"
#include "gpu/jit/load_function.h"
#include "gpu/ladder/ladder.h"

namespace octavo {
namespace {

const u16* elements(const ConstTensor& t) { return static_cast<const u16*>(t.data); }

// Batch and heads are one dimension of the kernels' tensors.
ConstTensor by_heads(const ConstTensor& t) {
  return ConstTensor::bhsd(t.data, t.dtype, 1, t.shape[0] * t.shape[1], t.shape[2], t.shape[3]);
}

// Boxes of 64 columns: 128 bytes, the width of the swizzle.
Status set_tensor_maps(const Driver& driver, const LadderShape& shape, const Arguments& a,
                       ladder::Params& p) {
  constexpr int kColumns = 64;
  OCTAVO_RETURN_IF_ERROR(
      encode_again(driver, row_boxes(by_heads(a.q), shape.rows, kColumns), p.q_map));
  OCTAVO_RETURN_IF_ERROR(
      encode_again(driver, row_boxes(by_heads(a.k), shape.keys, kColumns), p.k_map));
  return encode_again(driver, row_boxes(by_heads(a.v), shape.keys, kColumns), p.v_map);
}

}  // namespace

Status ladder_serves(const Problem& p) {
  if (p.q != DType::f16 || p.k != DType::f16 || p.v != DType::f16 || p.out != DType::f16)
    return unsupported("dtype", name(p.q), "f16 on the ladder");
  if (p.head_dim != 64 && p.head_dim != 128)
    return unsupported("head_dim", fmt::format("{}", p.head_dim), "64, 128 on the ladder");
  if (p.head_dim_v != p.head_dim)
    return unsupported("head_dim_v", fmt::format("{}", p.head_dim_v), "head_dim on the ladder");
  if (p.heads_kv != p.heads_q)
    return unsupported("heads_kv", fmt::format("{}", p.heads_kv), "heads_q on the ladder");
  if (p.options.causal == Causal::bottom_right)
    return unsupported("causal", "bottom_right", "none, top_left on the ladder");
  if (p.seqlen_kv < 1) return unsupported("seqlen_kv", "0", "1 or more on the ladder");
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (p.batch * p.heads_q * p.seqlen_q > kMost || p.seqlen_kv > kMost)
    return unsupported("the shape",
                       fmt::format("{},{},{},{}", p.batch, p.heads_q, p.seqlen_q, p.seqlen_kv),
                       "up to 2^30 rows and keys on the ladder");
  return {};
}

Status launch_ladder(const Gpu& gpu, const LadderConfig& config, cuda::Function function,
                     const Problem& problem, const Arguments& a, Stream stream) {
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  const LadderShape shape = shape_of(config);
  const double scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(problem.head_dim));
  ladder::Params p;
  p.q = elements(a.q);
  p.k = elements(a.k);
  p.v = elements(a.v);
  p.o = static_cast<u16*>(a.out.data);
  p.seqlen_q = static_cast<i32>(problem.seqlen_q);
  p.seqlen_kv = static_cast<i32>(problem.seqlen_kv);
  p.causal = problem.options.causal == Causal::none ? 0 : 1;
  p.scale_log2 = static_cast<float>(scale * std::numbers::log2e);
  if (config.rung == Rung::specialised_warps)
    OCTAVO_RETURN_IF_ERROR(set_tensor_maps(*gpu.driver, shape, a, p));

  const std::int64_t tiles = div_up<std::int64_t>(problem.seqlen_q, shape.rows);
  cuda::LaunchConfig launch;
  launch.grid[0] = static_cast<unsigned>(problem.batch * problem.heads_q * tiles);
  launch.block[0] = static_cast<unsigned>(shape.threads);
  launch.smem_bytes = static_cast<unsigned>(shape.smem_bytes);
  launch.stream = static_cast<cuda::StreamHandle>(stream);
  if (launch.grid[0] == 0) return {};
  if (gpu.is_emulated()) gpu.kernels->announce(problem, a);
  void* arguments[] = {&p};
  OCTAVO_GPU_TRY(*gpu.driver, gpu.driver->launch_kernel(&launch, function, arguments, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

}  // namespace octavo
