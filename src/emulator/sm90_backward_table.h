// The configurations to instantiate.
#pragma once

#include <array>

#include "emulator/sm90_backward.h"

namespace octavo::emulator {

inline constexpr std::array<Sm90BackwardConfig, 6> kSm90BackwardConfigs = {{
    {.element = Element::bf16, .head_dim = 64, .block_m = 128},
    {.element = Element::bf16, .head_dim = 128, .block_m = 64},
    {.element = Element::f16, .head_dim = 64, .block_m = 128},
    {.element = Element::f16, .head_dim = 128, .block_m = 64},
    {.element = Element::f16,
     .head_dim = 64,
     .block_m = 128,
     .modifiers = {.softcap = true, .alibi = true, .padded = true}},
    {.element = Element::bf16,
     .head_dim = 128,
     .block_m = 64,
     .modifiers = {.softcap = true, .alibi = true, .padded = true}},
}};

// The kernels of one configuration. Each is a source file of its own, so that they compile in
// parallel.
template <int kIndex>
EmulatedSm90Backward sm90_backward_part();

}  // namespace octavo::emulator
