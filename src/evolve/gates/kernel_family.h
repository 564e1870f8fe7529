// SPDX-License-Identifier: Apache-2.0
// The kernels that candidates can be: their families, and a candidate's configuration as a value.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "config/ladder.h"
#include "config/sm80_forward.h"
#include "config/sm90_forward.h"
#include "evidence/cases/cases.h"
#include "gpu/jit/kernel_source.h"
#include "octavo/octavo.hpp"

namespace octavo::evolve {

enum class Family : std::uint8_t { sm80_forward, sm90_forward, ladder };
Result<Family> parse_family(std::string_view name);

// "rung=tiled,head_dim=64"; head_dim may be left out.
Result<LadderConfig> parse_ladder(std::string_view text);

using KernelConfig = std::variant<Sm80ForwardConfig, Sm90ForwardConfig, LadderConfig>;
Result<KernelConfig> parse_config(std::string_view family, std::string_view text);

// What NVRTC compiles. The ladder's kernels are compiled for the oldest chip that has them.
KernelSource source_of(const KernelConfig& config);
// The problems of evidence/cases that take every path of such a kernel.
std::vector<evidence::Case> edge_cases(const KernelConfig& config);
std::string text_of(const KernelConfig& config);

}  // namespace octavo::evolve
