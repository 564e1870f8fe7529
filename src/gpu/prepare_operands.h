// Q, K and V that a precision mode rounds first, or that a kernel wants otherwise than they come:
// what the forward kernel then sees, the quantizers that make it, and the workspace it lies in.
// Pure: nothing here touches a GPU.
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

// Below, `layout` is how the forward kernel wants V.

// That the quantizers can do what the problem asks for.
Status quantizers_serve(const Problem& problem);

// The problem that the forward kernel is left with: the same where nothing is rounded.
Problem prepared_problem(const Problem& problem);

// "; Q becomes e4m3, K becomes e4m3 first", or nothing: for explanations. `codes`: of a kernel that
// computes P's codes by arithmetic.
std::string describe_quantizers(const Problem& problem, VLayout layout = VLayout::rows,
                                bool codes = false);

// The quantizers that a problem needs, in the order of their launches, for a chip and rows aligned
// to so many bytes.
std::vector<QuantizeConfig> quantizers_of(const Problem& problem, int arch, int alignment,
                                          VLayout layout = VLayout::rows);

// Bytes of all results. Without arguments, packed batches count as many rows as sequences of the
// maximum length have.
std::size_t prepared_bytes(const Problem& run_problem, const Arguments* arguments,
                           VLayout layout = VLayout::rows);

// Of one operand of a launch.
struct QuantizeMemory {
  ConstTensor from{};  // what params.x points to
  // Bytes behind params.out, scales, partial_amax, mean_sums and means.
  std::size_t out_bytes = 0, scale_bytes = 0, partial_bytes = 0, sum_bytes = 0, mean_bytes = 0;
};

struct QuantizeLaunch {
  QuantizeConfig config;
  OperandsParams params;  // of a single operand: q, whichever it is
  std::array<QuantizeMemory, 3> memory;
  std::int64_t blocks = 0;
  int cluster = 1;
};

// A call on its way to the forward kernel.
struct PreparedCall {
  Problem problem;
  Arguments arguments;
  std::array<QuantizeLaunch, 8> launches;
  std::size_t count = 0;  // of launches
};

// The configuration to launch in place of one that would be chosen: the emulator has not every one.
// Both passes over channels must have the same columns.
using SubstituteQuantize =
    std::function<QuantizeConfig(const QuantizeConfig& chosen, std::int64_t head_dim)>;

// `workspace` has prepared_bytes and lies at a multiple of 64.
PreparedCall prepare_call(const Problem& run_problem, const Arguments& arguments, void* workspace,
                          int arch, const SubstituteQuantize& substitute = {},
                          VLayout layout = VLayout::rows);

}  // namespace octavo
