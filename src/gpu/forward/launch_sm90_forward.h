// Parameters, loading and launch of the Hopper forward kernel.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "config/sm90_forward.h"
#include "device/sm90/params.cuh"
#include "gpu/driver/context.h"
#include "gpu/quantize/prepare_operands.h"
#include "octavo/octavo.hpp"

namespace octavo {

// With pack_gqa each head has 2^query_bits rows: seqlen_q rounded up to a power of two.
int query_bits(std::int64_t seqlen_q);

// The layout of V that the kernel of a configuration reads.
inline VLayout v_layout(const Sm90ForwardConfig& config) {
  return sm90::is_8bit_pv(config) ? VLayout::transposed : VLayout::rows;
}

// Whether TMA can address every tensor of the prepared arguments.
bool sm90_forward_reaches(const Arguments& arguments);

// All parameters except the tensor maps. `run_problem` must be validated and supported by the
// kernel, and `config` must fit it. A kernel with fewer parameters reads a prefix of the struct. An
// 8-bit V must be transposed.
Sm90ForwardOutputParams sm90_forward_params(const Problem& run_problem, const Arguments& arguments,
                                            const Sm90ForwardConfig& config, const GpuInfo& gpu);

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

  // There must be queries.
  Status prepare(const Gpu& gpu, const LoadedSm90Forward& kernel, const Problem& run_problem,
                 const Arguments& arguments, Stream stream);
  // Changes the addresses; everything else must be unchanged.
  Status move(const Driver& driver, const Arguments& from, const Arguments& to, Stream stream);
  Status launch(const Driver& driver);

 private:
  cuda::Function function_ = nullptr;
  Sm90ForwardOutputParams params_{};
  std::int64_t amax_floats_ = 0;  // cleared before the launch
  bool has_o_map_ = false;
  cuda::LaunchConfig config_;
  std::array<cuda::LaunchAttribute, 2> attributes_;
};

Status launch_sm90_forward(const Gpu& gpu, const LoadedSm90Forward& kernel,
                           const Problem& run_problem, const Arguments& arguments, Stream stream);

}  // namespace octavo
