// SPDX-License-Identifier: Apache-2.0
// Loads kernels onto a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gpu/driver/context.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo {

struct AppendCall;
struct QuantizeLaunch;

// The kernels of a driver that has a fixed set of kernels and checks every memory access. Only the
// emulator is such a driver; it shares all other host code with GPUs.
class KernelSet {
 public:
  KernelSet() = default;
  virtual ~KernelSet() = default;
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;

  // The kernel to run for the chosen configuration, which may be that one or another; none if no
  // kernel computes the problem.
  virtual std::optional<Sm80ForwardConfig> nearest(const Sm80ForwardConfig& chosen,
                                                   const Problem& problem) const = 0;
  virtual std::optional<Sm90ForwardConfig> nearest(const Sm90ForwardConfig& chosen,
                                                   const Problem& problem) const = 0;
  virtual std::optional<DecodeConfig> nearest(const DecodeConfig& chosen,
                                              const Problem& problem) const = 0;
  virtual std::optional<QuantizeConfig> nearest(const QuantizeConfig& chosen,
                                                std::int64_t head_dim) const = 0;
  virtual std::optional<AppendConfig> nearest(const AppendConfig& chosen,
                                              std::int64_t head_dim) const = 0;
  virtual Result<cuda::Function> function(const KernelSource& source) const = 0;
  virtual std::string reason() const = 0;  // why it is one of these kernels, for explanations

  // Announces the memory that this thread's next launch may access.
  virtual void announce(const Problem& kernel_problem, const Arguments& arguments) const = 0;
  virtual void announce(const QuantizeLaunch& launch) const = 0;
  virtual void announce(const AppendCall& call) const = 0;
  // The same for the decode kernel, or for the kernel that combines its partial results.
  virtual void announce_decode(const Problem& run_problem, const Arguments& arguments,
                               Workspace workspace, bool combines) const = 0;
};

// Finds or compiles the kernel and loads it, once per process: plans of one kernel share its
// module, which stays loaded. `dynamic_smem_bytes` is the most that its launches may use.
Result<cuda::Function> load_function(const Gpu& gpu, const KernelSource& source,
                                     int dynamic_smem_bytes, const CubinPolicy& policy = {});

// What went wrong with the disk cache when this kernel was loaded; empty if nothing did.
std::string cache_note(const Gpu& gpu, const KernelSource& source, const CubinPolicy& policy = {});

}  // namespace octavo
