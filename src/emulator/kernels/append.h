// SPDX-License-Identifier: Apache-2.0
// The kernels that append to a KV cache, compiled for the emulator.
#pragma once

#include <vector>

#include "config/append.h"
#include "device/cache/params.cuh"

namespace octavo::emulator {

struct EmulatedAppend {
  AppendConfig config;
  void (*entry)(const append::Params&) = nullptr;
};

// Kernels for every type of new rows and of cache, in two widths: up to 64 columns with 16-byte
// loads, and up to 256 columns element by element.
const std::vector<EmulatedAppend>& append_kernels();

// A kernel of this list with the same result as `wanted`, for rows of head_dim columns; null: there
// is none.
const EmulatedAppend* find_append(const AppendConfig& wanted, int head_dim);

}  // namespace octavo::emulator
