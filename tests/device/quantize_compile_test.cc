// SPDX-License-Identifier: Apache-2.0
// The quantizers without a GPU: they compile for every chip without spills, and their text form
// round-trips.
#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>

#include "config/quantize.h"
#include "emulator/long.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

// Q, K and V in one launch, K with the scales of its mode.
struct Operands {
  Element from, to = Element::e4m3;
  int columns;
  bool amax_pass = false, one_pass = false, smooth = false;
};
constexpr QuantizeConfig of_operands(const Operands& o) {
  const bool int8 = o.to == Element::int8;
  return {.arch = 90,
          .from = o.from,
          .to = o.to,
          .group = int8 ? ScaleGroup::block : ScaleGroup::head,
          .amax_pass = o.amax_pass,
          .columns = o.columns,
          .threads = quantizer::kOperandThreads,
          .transposed = true,
          .operands = true,
          .one_pass = o.one_pass,
          .smooth = o.smooth};
}

const QuantizeConfig kConfigs[] = {
    {.arch = 89, .to = Element::e4m3},
    {.arch = 90, .from = Element::bf16, .to = Element::e5m2, .group = ScaleGroup::block},
    {.arch = 80,
     .from = Element::f32,
     .group = ScaleGroup::channel,
     .amax_pass = true,
     .columns = 256},
    {.arch = 90, .to = Element::e4m3, .group = ScaleGroup::channel, .columns = 128},
    {.arch = 80,
     .from = Element::bf16,
     .group = ScaleGroup::tensor,
     .amax_pass = true,
     .load_bytes = 2},
    {.arch = 80,
     .from = Element::f32,
     .to = Element::sim8,
     .group = ScaleGroup::head,
     .hadamard = true,
     .columns = 8,
     .load_bytes = 4},
    {.arch = 80, .from = Element::f32, .to = Element::bf16, .group = ScaleGroup::none},
    // A smoothed K: the mean pass, then quantization.
    {.arch = 90, .columns = 128, .mean_pass = 1},
    {.arch = 80, .from = Element::f32, .columns = 256, .load_bytes = 4, .mean_pass = 1},
    {.arch = 89, .mean_pass = 2},
    {.arch = 90, .to = Element::e4m3, .group = ScaleGroup::head, .columns = 128, .smooth = true},
    {.arch = 80, .group = ScaleGroup::head, .amax_pass = true, .hadamard = true, .smooth = true},
    // Dequantization.
    {.arch = 90,
     .from = Element::e4m3,
     .to = Element::f16,
     .group = ScaleGroup::none,
     .columns = 128},
    {.arch = 80,
     .from = Element::sim8,
     .to = Element::bf16,
     .group = ScaleGroup::none,
     .columns = 256,
     .load_bytes = 1},
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::channel,
     .columns = 128,
     .threads = 256,
     .transposed = true},
    // The register limit follows from the columns and the CTAs per SM.
    of_operands({.from = Element::f16, .columns = 64, .amax_pass = true}),
    of_operands({.from = Element::bf16, .columns = 128}),
    of_operands({.from = Element::f16, .columns = 128, .one_pass = true}),
    of_operands({.from = Element::bf16, .to = Element::int8, .columns = 64, .one_pass = true}),
    of_operands({.from = Element::bf16, .to = Element::int8, .columns = 128, .amax_pass = true}),
    of_operands({.from = Element::f16, .columns = 256, .one_pass = true}),
    of_operands({.from = Element::f16, .columns = 256}),
    of_operands({.from = Element::f16, .columns = 128, .one_pass = true, .smooth = true}),
    of_operands({.from = Element::bf16, .columns = 256, .amax_pass = true, .smooth = true}),
};

// Those with a limit on registers, and every other one of the rest.
TEST(Quantize, CompilesWithoutSpills) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (std::size_t i = 0; i < std::size(kConfigs); ++i) {
    const QuantizeConfig& config = kConfigs[i];
    if (!config.operands && i % 4 != 0 && !test_long()) continue;
    const Result<CompiledKernel> kernel = compile(kernel_source(config));
    ASSERT_TRUE(kernel.ok()) << to_text(config) << kernel.status().message();
    const Result<CubinInfo> info = read_cubin(kernel->image);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_TRUE(check_cubin(*info, kernel->lowered_name, {}).ok()) << to_text(config);
  }
}

TEST(Quantize, TextRoundTrips) {
  for (const QuantizeConfig& config : kConfigs) {
    const Result<QuantizeConfig> from_text = parse_quantize(to_text(config));
    ASSERT_TRUE(from_text.ok()) << from_text.status().message();
    EXPECT_EQ(*from_text, config);
    const Result<QuantizeConfig> from_brief =
        parse_quantize(brief_text(config), {.arch = config.arch});
    ASSERT_TRUE(from_brief.ok()) << from_brief.status().message();
    EXPECT_EQ(*from_brief, config);
  }
}

}  // namespace
}  // namespace octavo
