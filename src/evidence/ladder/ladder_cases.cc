// SPDX-License-Identifier: Apache-2.0
#include "evidence/ladder/ladder_cases.h"

#include "base/error.h"
#include "gpu/jit/load_function.h"
#include "gpu/ladder/ladder.h"
#include "runtime/emulated/emulated_gpu.h"

namespace octavo::evidence {

MakeKernel kernel_of_ladder(const LadderConfig& config) {
  return [config](const Problem& problem, Device device) -> Result<Kernel> {
    const Result<const Gpu*> gpu =
        device.kind == Device::Kind::cuda ? open_gpu(device.index) : emulated_gpu(device);
    if (!gpu.ok()) return gpu.status();
    OCTAVO_RETURN_IF_ERROR(ladder_serves(problem));
    OCTAVO_RETURN_IF_ERROR(ladder_runs_on(config.rung, (*gpu)->info.arch));
    const Result<cuda::Function> function =
        load_function(**gpu, kernel_source(config, (*gpu)->info.arch), shape_of(config).smem_bytes);
    if (!function.ok()) return function.status();
    return Kernel{[](const Arguments&) { return std::size_t{0}; },
                  [gpu = *gpu, config, function = *function, problem](const Arguments& arguments,
                                                                      Workspace, Stream stream) {
                    return launch_ladder(*gpu, config, function, problem, arguments, stream);
                  }};
  };
}

std::vector<Case> cases_for(const LadderConfig& config) {
  const LadderShape shape = shape_of(config);
  Case c;
  c.lse = false;
  c.head_dim = config.head_dim;
  c.heads_q = c.heads_kv = 2;
  // Rows and keys that end inside a tile, and more blocks than the rung has stages.
  c.seqlen_q = 70;
  c.seqlen_kv = (config.rung < Rung::async_copies ? 2 : 5) * shape.keys + 9;
  std::vector<Case> cases{c};
  // The diagonal cuts through blocks; the last rows see all keys.
  c.options.causal = Causal::top_left;
  c.heads_q = c.heads_kv = 1;
  c.seqlen_q = 150;
  c.seqlen_kv = 141;
  cases.push_back(c);
  // A single block, a single row.
  c.seqlen_q = 1;
  c.seqlen_kv = 3;
  c.options.causal = Causal::none;
  cases.push_back(c);
  return cases;
}

}  // namespace octavo::evidence
