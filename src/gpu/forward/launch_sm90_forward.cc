// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "gpu/driver/tensor_map.h"
#include "gpu/forward/forward_params.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/forward/tile_order.h"
#include "gpu/jit/load_function.h"

namespace octavo {
namespace {

// Replaces the tiles of single heads by tiles of the heads that share a KV head.
void pack_gqa(Sm90ForwardParams& p, const Problem& kernel_problem, int block_m) {
  p.query_bits = query_bits(kernel_problem.seqlen_q);
  p.row_tiles =
      static_cast<i32>(div_up<std::int64_t>(std::int64_t{p.heads_per_kv} << p.query_bits, block_m));
  p.tile_heads = static_cast<i32>(kernel_problem.heads_kv);
  p.tiles = static_cast<i32>(p.row_tiles * kernel_problem.heads_kv * kernel_problem.batch);
}

Status set_tensor_maps(const Driver& driver, const Arguments& a, const Sm90ForwardConfig& c,
                       Sm90ForwardParams& p) {
  const int columns = sm90::qk_panels(c).columns;
  TensorMapFields q = row_boxes(a.q, sm90::kRows, columns);
  if (c.pack_gqa) {
    const int queries = std::min(1 << p.query_bits, sm90::kRows);
    q.box[1] = static_cast<std::uint32_t>(queries);
    q.box[2] = static_cast<std::uint32_t>(sm90::kRows / queries);
  }
  OCTAVO_RETURN_IF_ERROR(encode_again(driver, q, p.q));
  // Without keys nothing is loaded. The maps of K and V must still be valid, so they describe Q.
  const bool no_keys = is_empty(a.k);
  OCTAVO_RETURN_IF_ERROR(
      encode_again(driver, row_boxes(no_keys ? a.q : a.k, sm90::loaded_keys(c), columns), p.k));
  const ConstTensor& v = no_keys ? a.q : a.v;
  OCTAVO_RETURN_IF_ERROR(encode_again(driver,
                                      sm90::is_8bit_pv(c)
                                          ? row_boxes(v, sm90::v_columns(c), sm90::chunk_keys(c))
                                          : row_boxes(v, c.block_n, sm90::v_panels(c).columns),
                                      p.v));
  if (sm90::stores_o_by_tma(c))
    OCTAVO_RETURN_IF_ERROR(
        encode_again(driver, row_boxes(a.out, sm90::kRows, sm90::v_panels(c).columns), p.o));
  return {};
}

Status set_score_maps(const Driver& driver, const Arguments& a, const Sm90ForwardConfig& c,
                      Sm90ForwardModifiedParams& p) {
  if (c.modifiers.score_tiles && c.modifiers.bias && a.bias.data != nullptr)
    OCTAVO_RETURN_IF_ERROR(
        encode_again(driver, row_boxes(a.bias, sm90::kRows, sm90::bias_panels(c).columns), p.bias));
  if (c.modifiers.score_tiles && c.modifiers.mask && a.mask.data != nullptr)
    OCTAVO_RETURN_IF_ERROR(
        encode_again(driver, row_boxes(a.mask, sm90::kRows, sm90::mask_panels(c).columns), p.mask));
  return {};
}

// 8-bit outputs are stored from registers, eight at a time.
bool can_store_8bit(const Tensor& out) {
  constexpr std::uint64_t kStoreBytes = 8;
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(out.data);
  for (std::size_t i = 0; i < 3; ++i)
    if (out.shape[i] > 1) bits |= static_cast<std::uint64_t>(out.stride[i]);
  return bits % kStoreBytes == 0;
}

void set_scales(Sm90Forward8BitParams& p, const Problem& kernel_problem, const Arguments& a) {
  p.q_scales = scale_params(a, a.q, a.q_scales, kernel_problem.seqlen_q);
  p.k_scales = scale_params(a, a.k, a.k_scales, kernel_problem.seqlen_kv);
  p.v_scales = scale_params(a, v_by_rows(a), a.v_scales, kernel_problem.seqlen_kv);
  p.by_q_block_rows = divider(p.q_scales.block_rows);
  p.by_k_block_rows = divider(p.k_scales.block_rows);
}

}  // namespace

int query_bits(std::int64_t seqlen_q) {
  int bits = 0;
  while ((std::int64_t{1} << bits) < seqlen_q) ++bits;
  return bits;
}

bool sm90_forward_is_persistent(const Problem& kernel_problem, const Sm90ForwardConfig& c) {
  const bool known_lengths = !kernel_problem.varlen && !kernel_problem.padded;
  return !sm90::is_split_kv(c) && (known_lengths || kernel_problem.options.sm_margin > 0);
}

bool sm90_forward_can_address(const Arguments& a) {
  // K and V are not loaded if there are no keys.
  const bool keys = is_empty(a.k) || (tma_can_address(a.k) && tma_can_address(a.v));
  return tma_can_address(a.q) && keys &&
         (is_8bit(a.out.dtype) ? can_store_8bit(a.out) : tma_can_address(a.out));
}

bool sm90_forward_has_score_tiles(const Arguments& a) {
  const auto can_load = [&](const ConstTensor& t) {
    return t.data == nullptr ||
           (!is_empty(t) && t.shape[3] == a.k.shape[2] && t.stride[3] == 1 && tma_can_address(t));
  };
  return a.leftpad_kv == nullptr && can_load(a.bias) && can_load(a.mask);
}

Sm90ForwardBlockMaskParams sm90_forward_params(const Problem& kernel_problem, const Arguments& a,
                                               const Sm90ForwardConfig& c, const TileOrder& order) {
  Sm90ForwardBlockMaskParams p{};
  p.out = a.out.data;
  p.sequences = static_cast<i32>(kernel_problem.batch);
  set_shared_params(p, kernel_problem, a, sm90::block_m(c));
  p.tile_heads = static_cast<i32>(kernel_problem.heads_q) * sm90::column_tiles(c);
  p.tiles *= sm90::column_tiles(c);
  if (c.pack_gqa) pack_gqa(p, kernel_problem, sm90::block_m(c));
  p.by_row_tiles = divider(p.row_tiles);
  p.by_tile_heads = divider(p.tile_heads);
  p.by_heads_per_kv = divider(p.heads_per_kv);
  p.heads_per_group = order.heads_per_group;
  p.head_groups = order.groups;
  p.rotation = order.rotation;
  p.grouped_row_tiles = p.row_tiles - (order.short_tiles_last ? 1 : 0);
  if (sm90::is_8bit_qk(c)) set_scales(p, kernel_problem, a);
  p.output = output_params(kernel_problem, a);
  if (any(c.modifiers)) p.modifiers = modifier_params(kernel_problem, a, p.scale_log2);
  p.block_mask = block_mask_params(kernel_problem, a);
  return p;
}

Result<LoadedSm90Forward> load_sm90_forward(const Gpu& gpu, const Sm90ForwardConfig& config) {
  constexpr CubinPolicy kPolicy{.allow_spills = true};  // as for sm80: better than an error
  const KernelSource source = kernel_source(config);
  const Result<cuda::Function> function =
      load_function(gpu, source, sm90::smem_bytes(config), kPolicy);
  if (!function.ok()) return function.status();
  return LoadedSm90Forward{config, *function, cache_note(gpu, source, kPolicy)};
}

Status Sm90ForwardLaunch::prepare(const Gpu& gpu, const LoadedSm90Forward& kernel,
                                  const Problem& kernel_problem, const TileOrder& order,
                                  const Arguments& arguments, Stream stream) {
  const Sm90ForwardConfig& c = kernel.config;
  function_ = kernel.function;
  params_ = sm90_forward_params(kernel_problem, arguments, c, order);
  OCTAVO_RETURN_IF_ERROR(set_tensor_maps(*gpu.driver, arguments, c, params_));
  OCTAVO_RETURN_IF_ERROR(set_score_maps(*gpu.driver, arguments, c, params_));
  mapped_ = {arguments.q.data, arguments.k.data, arguments.v.data, arguments.out.data};
  has_o_map_ = sm90::stores_o_by_tma(c);
  is_8bit_qk_ = sm90::is_8bit_qk(c);
  amax_floats_ = amax_floats(kernel_problem, arguments);
  const std::int64_t sms = sms_of_grid(gpu.info.sms, kernel_problem.options);
  config_.grid[0] =
      static_cast<unsigned>(sm90_forward_is_persistent(kernel_problem, c)
                                ? std::min<std::int64_t>(params_.tiles, sms * c.min_ctas)
                                : std::int64_t{params_.tiles} * c.cluster);
  config_.block[0] = static_cast<unsigned>(sm90::threads(c));
  config_.smem_bytes = static_cast<unsigned>(sm90::smem_bytes(c));
  config_.stream = static_cast<cuda::StreamHandle>(stream);
  config_.attributes = attributes_.data();
  config_.attribute_count = 0;
  if (c.cluster > 1) {
    cuda::LaunchAttribute& cluster = attributes_[config_.attribute_count++];
    cluster.id = cuda::LaunchAttributeId::cluster_dimension;
    cluster.value.cluster_dim[0] = static_cast<unsigned>(c.cluster);
    cluster.value.cluster_dim[1] = cluster.value.cluster_dim[2] = 1;
  }
  if (kernel.early_start) {
    cuda::LaunchAttribute& early = attributes_[config_.attribute_count++];
    early.id = cuda::LaunchAttributeId::programmatic_stream_serialization;
    early.value.programmatic_stream_serialization = 1;
  }
  return {};
}

Status Sm90ForwardLaunch::move(const Gpu& gpu, const Arguments& to, Stream stream) {
  const auto move_to = [&](const void* address, const void*& mapped, ptx::TensorMap& map) {
    if (address == mapped) return Status();
    mapped = address;
    return move_map(*gpu.driver, address, map);
  };
  OCTAVO_RETURN_IF_ERROR(move_to(to.q.data, mapped_.q, params_.q));
  OCTAVO_RETURN_IF_ERROR(move_to(to.k.data, mapped_.k, params_.k));
  OCTAVO_RETURN_IF_ERROR(move_to(to.v.data, mapped_.v, params_.v));
  if (has_o_map_) OCTAVO_RETURN_IF_ERROR(move_to(to.out.data, mapped_.o, params_.o));
  params_.out = to.out.data;
  params_.lse = static_cast<float*>(to.lse.data);
  params_.cu_seqlens_q = to.cu_seqlens_q;
  params_.cu_seqlens_kv = to.cu_seqlens_kv;
  if (is_8bit_qk_) {
    if (is_8bit(to.q.dtype)) params_.q_scales.data = to.q_scales.data;
    if (is_8bit(to.k.dtype)) params_.k_scales.data = to.k_scales.data;
    if (is_8bit(to.v.dtype)) params_.v_scales.data = to.v_scales.data;
  }
  if (is_8bit(to.out.dtype)) params_.output.scales = to.out_scales.data;
  params_.output.amax = to.out_amax;
  config_.stream = static_cast<cuda::StreamHandle>(stream);
  return {};
}

Status Sm90ForwardLaunch::launch(const Gpu& gpu, const Problem& kernel_problem,
                                 const Arguments& arguments) {
  const Driver& driver = *gpu.driver;
  if (gpu.is_emulated()) gpu.kernels->announce(kernel_problem, arguments);
  OCTAVO_RETURN_IF_ERROR(clear_amax(driver, params_.output.amax, amax_floats_, config_.stream));
  void* arguments_of_kernel[] = {&params_};
  OCTAVO_GPU_TRY(driver, driver.launch_kernel(&config_, function_, arguments_of_kernel, nullptr),
                 "cuLaunchKernelEx");
  return {};
}

Status launch_sm90_forward(const Gpu& gpu, const LoadedSm90Forward& kernel,
                           const Problem& kernel_problem, const Arguments& arguments,
                           Stream stream) {
  // A varlen batch without tokens.
  if (is_empty(arguments.q)) return {};
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  Sm90ForwardLaunch launch;
  const TileOrder order = tile_order(kernel_problem, kernel.config, gpu.info);
  OCTAVO_RETURN_IF_ERROR(launch.prepare(gpu, kernel, kernel_problem, order, arguments, stream));
  return launch.launch(gpu, kernel_problem, arguments);
}

}  // namespace octavo
