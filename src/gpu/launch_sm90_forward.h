// The Hopper forward kernel from the host's side: what it is told, and how it is launched.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "config/sm90_forward.h"
#include "device/sm90/params.cuh"
#include "gpu/context.h"
#include "gpu/prepare_operands.h"
#include "octavo/octavo.hpp"

namespace octavo {

// Where heads are packed, each has 2^this rows: its queries, and no more than twice as many.
int query_bits(std::int64_t len_q);

// How the kernel with a configuration wants V.
inline VLayout v_layout(const Sm90ForwardConfig& config) {
  return sm90::is_8bit_pv(config) ? VLayout::transposed : VLayout::rows;
}

// That TMA reaches every tensor of a call, as the kernel is to get them.
bool sm90_forward_reaches(const Arguments& arguments);

// All but the tensor maps. `run_problem` is validated and served by the kernel; `config` fits it. A
// kernel that needs less takes the first part of this. An 8-bit V of the arguments is transposed.
Sm90ForwardOutputParams sm90_forward_params(const Problem& run_problem, const Arguments& arguments,
                                            const Sm90ForwardConfig& config, const GpuInfo& gpu);

// A kernel in a GPU's memory.
struct LoadedSm90Forward {
  Sm90ForwardConfig config;
  cuda::Function function = nullptr;
  std::string note{};        // what was wrong with the cache
  bool early_start = false;  // launched so that it may start before earlier grids have ended
};
Result<LoadedSm90Forward> load_sm90_forward(const Gpu& gpu, const Sm90ForwardConfig& config);

// A launch as the driver is given it: what it costs beyond that is the host's.
class Sm90ForwardLaunch {
 public:
  Sm90ForwardLaunch() = default;
  Sm90ForwardLaunch(const Sm90ForwardLaunch&) = delete;
  Sm90ForwardLaunch& operator=(const Sm90ForwardLaunch&) = delete;

  // Where there are queries.
  Status prepare(const Gpu& gpu, const LoadedSm90Forward& kernel, const Problem& run_problem,
                 const Arguments& arguments, Stream stream);
  // To other addresses, where all else is as it was.
  Status move(const Driver& driver, const Arguments& from, const Arguments& to, Stream stream);
  Status launch(const Driver& driver);

 private:
  cuda::Function function_ = nullptr;
  Sm90ForwardOutputParams params_{};
  std::int64_t amax_floats_ = 0;  // to be cleared before
  bool has_o_map_ = false;
  cuda::LaunchConfig config_;
  std::array<cuda::LaunchAttribute, 2> attributes_;
};

Status launch_sm90_forward(const Gpu& gpu, const LoadedSm90Forward& kernel,
                           const Problem& run_problem, const Arguments& arguments, Stream stream);

}  // namespace octavo
