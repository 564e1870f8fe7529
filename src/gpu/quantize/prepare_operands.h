// Prepares Q, K and V if a precision rounds them first or a kernel needs another layout: the
// problem that the forward kernel then gets, the quantizer launches, and the workspace. These are
// pure functions that do not touch a GPU.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "config/quantize.h"
#include "device/quantize/params.cuh"
#include "octavo/octavo.hpp"

namespace octavo {

// Below, `layout` is the layout of V that the forward kernel reads.

// Checks that the quantizers support the problem's quantization options.
Status quantizers_serve(const Problem& problem);

// The problem of the forward kernel, after the quantizers; the same problem if nothing is rounded.
Problem prepared_problem(const Problem& problem);

// "; Q becomes e4m3, K becomes e4m3 first", or nothing: for explanations. `codes`: the kernel
// computes the 8-bit P by integer arithmetic instead of exp.
std::string describe_quantizers(const Problem& problem, VLayout layout = VLayout::rows,
                                bool codes = false);

// The quantizers that a problem needs, in launch order, for an architecture and a row alignment in
// bytes.
std::vector<QuantizeConfig> quantizers_of(const Problem& problem, int arch, int alignment,
                                          VLayout layout = VLayout::rows);

// The workspace bytes of all results. Without arguments, a varlen batch counts every sequence at
// its maximum length. `any_columns`: a quantizer of more columns may replace the chosen one.
std::size_t prepared_bytes(const Problem& run_problem, const Arguments* arguments,
                           VLayout layout = VLayout::rows, bool any_columns = false);

// The memory of one operand of a launch.
struct QuantizeMemory {
  ConstTensor from{};  // the tensor at params.x
  // The sizes of the arrays at params.out, scales, partial_amax, mean_sums and means.
  std::size_t out_bytes = 0, scale_bytes = 0, partial_bytes = 0, sum_bytes = 0, mean_bytes = 0;
};

struct QuantizeLaunch {
  QuantizeConfig config;
  OperandsParams params;  // a launch for a single operand uses params.q for it
  std::array<QuantizeMemory, 3> memory;
  std::int64_t blocks = 0;
  int cluster = 1;
};

// The quantizer launches of a call, and the problem and arguments of the forward kernel after them.
struct PreparedCall {
  Problem problem;
  Arguments arguments;
  std::array<QuantizeLaunch, 8> launches;
  std::size_t count = 0;  // of launches
};

// Replaces a chosen configuration, because the emulator does not have every one. Both passes of a
// channel-wise quantization must use the same `columns`.
using SubstituteQuantize =
    std::function<QuantizeConfig(const QuantizeConfig& chosen, std::int64_t head_dim)>;

// `workspace` has prepared_bytes() bytes, for any columns with `substitute`, and is 64-byte
// aligned.
PreparedCall prepare_call(const Problem& run_problem, const Arguments& arguments, void* workspace,
                          int arch, const SubstituteQuantize& substitute = {},
                          VLayout layout = VLayout::rows);

}  // namespace octavo
