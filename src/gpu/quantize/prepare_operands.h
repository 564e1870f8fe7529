// SPDX-License-Identifier: Apache-2.0
// Prepares Q, K and V if a precision rounds them first or a kernel needs another layout: the
// quantizer launches and their memory. These are pure functions that do not touch a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "config/quantize.h"
#include "device/quantize/params.cuh"
#include "gpu/forward/resolved.h"
#include "gpu/quantize/operand_conversion.h"
#include "octavo/octavo.hpp"

namespace octavo {

// "; Q becomes e4m3, K becomes e4m3 first", or nothing: for explanations. `exp_by_integers`: the
// kernel computes the 8-bit P by integer arithmetic instead of exp.
std::string describe_quantizers(const Resolved& resolved, bool exp_by_integers = false);

// The quantizers that a problem needs, in launch order, for an architecture and a row alignment in
// bytes.
std::vector<QuantizeConfig> quantizers_of(const Resolved& resolved, int arch, int alignment);

// The memory of one operand of a launch.
struct QuantizeMemory {
  ConstTensor from{};  // the tensor at params.x
  // The sizes of the arrays at params.out, scales, partial_amax, mean_sums and means.
  std::size_t out_bytes = 0, scale_bytes = 0, partial_bytes = 0, sum_bytes = 0, mean_bytes = 0;
};

struct QuantizeLaunch {
  QuantizeConfig config;
  OperandsParams params;    // a launch for a single operand uses params.q for it
  std::size_t operand = 0;  // of such a launch: 0 for Q, 1 for K, 2 for V
  std::array<QuantizeMemory, 3> memory;
  std::int64_t blocks = 0;
  int cluster = 1;
};

// Where an operand of the forward kernel and its scales are: in the workspace, or with the caller.
struct OperandPlace {
  OperandOffsets offsets{};
  bool converted = false;
  bool own_scales = false;   // the quantizer's
  bool dequantized = false;  // the forward kernel needs no scales
};

// The quantizer launches of a call, and the arguments of the forward kernel after them.
struct PreparedCall {
  Arguments arguments;
  std::array<OperandPlace, 3> places;
  std::array<QuantizeLaunch, 8> launches;
  std::size_t count = 0;  // of launches
  bool overlap_launch = false;
};

// Replaces a chosen configuration, because the emulator does not have every one. Both passes of a
// channel-wise quantization must use the same `columns`.
using SubstituteQuantize =
    std::function<QuantizeConfig(const QuantizeConfig& chosen, std::int64_t head_dim)>;

// `workspace` has resolved.workspace_bytes bytes and is 64-byte aligned. With `substitute`, the
// problem must be resolved for any columns.
PreparedCall prepare_call(const Resolved& resolved, const Arguments& arguments, void* workspace,
                          int arch, const SubstituteQuantize& substitute = {});

// The launches that quantize one tensor to where the caller wants it, and their workspace. Only the
// launches of the result are set. `max_quantized`: as options, but never 0.
Conversion conversion_of(const QuantizeArguments& arguments, const QuantizeOptions& options,
                         float max_quantized, bool any_columns);
std::size_t quantize_workspace_bytes(const Conversion& x);
PreparedCall prepare_quantize(const Conversion& x, const QuantizeArguments& arguments,
                              void* workspace, int arch, const SubstituteQuantize& substitute = {});

// Replaces every address of a prepared call; everything else of the arguments must be unchanged.
void set_addresses(PreparedCall& call, const Arguments& arguments, void* workspace);

}  // namespace octavo
