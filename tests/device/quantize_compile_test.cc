// The quantizers without a GPU: for every chip they compile without spills, and their text form is
// what it says.
#include <gtest/gtest.h>

#include "config/quantize.h"
#include "gpu/config_text.h"
#include "gpu/cubin_info.h"
#include "gpu/nvrtc.h"

namespace octavo {
namespace {

const Quantize kConfigs[] = {
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
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::channel,
     .columns = 128,
     .threads = 256,
     .transposed = true},
    // As many registers as the columns and CTAs of an SM ask for.
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::head,
     .amax_pass = true,
     .threads = 256,
     .transposed = true,
     .operands = true},
    {.arch = 90,
     .from = Element::bf16,
     .to = Element::e4m3,
     .group = ScaleGroup::head,
     .columns = 128,
     .threads = 256,
     .transposed = true,
     .operands = true},
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::head,
     .columns = 128,
     .threads = 256,
     .transposed = true,
     .operands = true,
     .hold = true},
    {.arch = 90,
     .from = Element::bf16,
     .to = Element::int8,
     .group = ScaleGroup::block,
     .threads = 256,
     .transposed = true,
     .operands = true,
     .hold = true},
    {.arch = 90,
     .from = Element::bf16,
     .to = Element::int8,
     .group = ScaleGroup::block,
     .amax_pass = true,
     .columns = 128,
     .threads = 256,
     .transposed = true,
     .operands = true},
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::head,
     .columns = 256,
     .threads = 256,
     .transposed = true,
     .operands = true,
     .hold = true},
    {.arch = 90,
     .to = Element::e4m3,
     .group = ScaleGroup::head,
     .columns = 256,
     .threads = 256,
     .transposed = true,
     .operands = true},
};

TEST(Quantize, CompilesWithoutSpills) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  for (const Quantize& config : kConfigs) {
    const Result<CompiledKernel> kernel = compile(kernel_source(config));
    ASSERT_TRUE(kernel.ok()) << to_text(config) << kernel.status().message();
    const Result<CubinInfo> info = read_cubin(kernel->image);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_TRUE(check_cubin(*info, kernel->lowered_name, {}).ok()) << to_text(config);
  }
}

TEST(Quantize, TextIsReadBack) {
  for (const Quantize& config : kConfigs) {
    const Result<Quantize> from_text = parse_quantize(to_text(config));
    ASSERT_TRUE(from_text.ok()) << from_text.status().message();
    EXPECT_EQ(*from_text, config);
    const Result<Quantize> from_brief = parse_quantize(brief_text(config), {.arch = config.arch});
    ASSERT_TRUE(from_brief.ok()) << from_brief.status().message();
    EXPECT_EQ(*from_brief, config);
  }
}

}  // namespace
}  // namespace octavo
