// SPDX-License-Identifier: Apache-2.0
// The Hopper forward kernel on the host: which problems it serves, the choice of its configuration,
// its parameters, loading, launch and repeated launch.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "config/sm90_forward.h"
#include "config/sm90_shipped.h"
#include "device/sm90/params.cuh"
#include "gpu/driver/context.h"
#include "gpu/driver/driver.h"
#include "gpu/forward/sm80_forward.h"
#include "gpu/jit/load_function.h"
#include "gpu/quantize/launch_quantize.h"
#include "gpu/quantize/prepare_operands.h"
#include "octavo/octavo.hpp"

namespace octavo {

// The columns of Q and K, and of V, for which there are kernels.
inline constexpr std::array kSm90HeadDims = {64, 96, 128, 192, 256, 384, 512};

// Checks whether a chip can run a configuration. A pure function, used by chooser, tuner and tests.
// `arch` and `smem_bytes` are the chip's; only sm_90 has these instructions.
Status feasible(const Sm90ForwardConfig& config, int arch, int smem_bytes);
inline Status feasible(const Sm90ForwardConfig& config, int arch) {
  return feasible(config, arch, max_smem_bytes(arch));
}

// Whether the Hopper kernel supports a problem that GPUs support, if TMA can address its tensors:
// 16-bit, FP8 or INT8 operands, or 8-bit Q and K with 16-bit V, given or quantized first, on sm_90
// with a driver that can encode tensor maps. Modifiers of the scores and padding: 16-bit operands.
bool sm90_forward_supports(const Resolved& resolved, const GpuInfo& gpu);

// The load of the SM with the most work: the terms of the table's time estimate.
struct SmLoad {
  double waves = 0;   // tiles, divided by how many an SM holds at once
  double blocks = 0;  // blocks of block_n keys in all its tiles
  double chain = 0;   // the largest number of those blocks that run one after another
};
SmLoad busiest_sm(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

// The time that the table estimates for a problem with one of its rows.
double estimated_us(const sm90::TableRow& row, const Problem& problem, const GpuInfo& gpu);

struct ChosenSm90Forward {
  Sm90ForwardConfig config;
  std::string reason;
  bool early_start = false;  // programmatic dependent launch: may start before earlier grids end
};
ChosenSm90Forward choose_sm90_forward(const Resolved& resolved, const GpuInfo& gpu);

// With pack_gqa each head has 2^query_bits rows: seqlen_q rounded up to a power of two.
int query_bits(std::int64_t seqlen_q);

// The layout of V that the kernel of a configuration reads.
inline VLayout v_layout(const Sm90ForwardConfig& config) {
  return sm90::is_8bit_pv(config) ? VLayout::transposed : VLayout::rows;
}

// Whether the kernel can address every tensor of its arguments: by TMA, and an 8-bit output by
// stores of 8 bytes.
bool sm90_forward_can_address(const Arguments& arguments);

// Whether CTAs take tile after tile. The host does not know the lengths of a varlen or padded
// batch, so it gets one CTA for each tile, unless SMs must stay free.
bool sm90_forward_is_persistent(const Problem& kernel_problem, const Sm90ForwardConfig& config);

// Whether TMA can load tiles of bias and mask, as kernels with `score_tiles` need. With padding on
// the left, a sequence's columns may begin anywhere, and a box may not.
bool sm90_forward_has_score_tiles(const Arguments& arguments);

// All parameters except the tensor maps. `kernel_problem` must be validated and supported by the
// kernel, and `config` must fit it. A kernel with fewer parameters reads a prefix of the struct. An
// 8-bit V must be transposed.
Sm90ForwardBlockMaskParams sm90_forward_params(const Problem& kernel_problem,
                                               const Arguments& arguments,
                                               const Sm90ForwardConfig& config,
                                               const TileOrder& order);

// A kernel that is loaded on a GPU.
struct LoadedSm90Forward {
  Sm90ForwardConfig config;
  cuda::Function function = nullptr;
  std::string note{};        // a problem with the kernel cache
  bool early_start = false;  // programmatic dependent launch: may start before earlier grids end
};
Result<LoadedSm90Forward> load_sm90_forward(const Gpu& gpu, const Sm90ForwardConfig& config);

// The arguments of a driver launch, kept so that a repeated run only updates addresses.
class Sm90ForwardLaunch {
 public:
  Sm90ForwardLaunch() = default;
  Sm90ForwardLaunch(const Sm90ForwardLaunch&) = delete;
  Sm90ForwardLaunch& operator=(const Sm90ForwardLaunch&) = delete;

  // There must be queries. `order`: tile_order() of the problem and the kernel's configuration.
  Status prepare(const Gpu& gpu, const LoadedSm90Forward& kernel, const Problem& kernel_problem,
                 const TileOrder& order, const Arguments& arguments, Stream stream);
  // Changes the addresses; everything else must be unchanged. Not for calls with modifiers of the
  // scores or padding.
  Status move(const Gpu& gpu, const Arguments& to, Stream stream);
  // `kernel_problem` and `arguments` are those of prepare() or move().
  Status launch(const Gpu& gpu, const Problem& kernel_problem, const Arguments& arguments);

 private:
  struct Mapped {  // the addresses in the tensor maps
    const void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
  };

  cuda::Function function_ = nullptr;
  Sm90ForwardBlockMaskParams params_{};
  Mapped mapped_{};
  std::int64_t amax_floats_ = 0;  // cleared before the launch
  bool has_o_map_ = false;
  bool is_8bit_qk_ = false;
  cuda::LaunchConfig config_;
  std::array<cuda::LaunchAttribute, 2> attributes_;
};

// A single launch, which computes the tile order itself.
Status launch_sm90_forward(const Gpu& gpu, const LoadedSm90Forward& kernel,
                           const Problem& kernel_problem, const Arguments& arguments,
                           Stream stream);

// Each thread keeps the last call of a plan with a Hopper kernel: its quantizer launches, if there
// are any, and the forward launch. A call with the same shapes, strides and scale only replaces the
// addresses in them.
class RepeatedSm90Forward {
 public:
  RepeatedSm90Forward();
  RepeatedSm90Forward(const RepeatedSm90Forward&) = delete;
  RepeatedSm90Forward& operator=(const RepeatedSm90Forward&) = delete;

  // `arguments` must be validated and match `resolved`, and those of the forward kernel be
  // addressable by TMA. `call` has the quantizers; null if there are none. `workspace_bytes`: that
  // a repeated call must have.
  Status launch(LoadedQuantizers& quantizers, const LoadedSm90Forward& kernel,
                const Resolved& resolved, const Arguments& arguments, const PreparedCall* call,
                std::size_t workspace_bytes, Stream stream) const;

  // Returns false if the arguments differ from the last ones in more than addresses, or need full
  // validation, or the workspace is too small. Otherwise `status` is the result of the launches.
  bool launch_again(const Gpu& gpu, const Arguments& arguments, Workspace workspace, Stream stream,
                    Status& status) const;

  // A number that no other plan of the process has.
  std::uint64_t plan() const { return plan_; }

 private:
  const std::uint64_t plan_;
};

}  // namespace octavo
