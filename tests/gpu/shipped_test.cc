// SPDX-License-Identifier: Apache-2.0
// Properties of the shipped kernels, read from the built cubins: no spills, the tensor instructions
// of their type, and P that never passes through shared memory.
#include "gpu/jit/shipped.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "gpu/forward/sm80_forward.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_archive.h"

namespace octavo {
namespace {

TEST(ShippedTable, IsFeasibleAndHasNoDuplicates) {
  std::set<std::string> texts;
  for (const int arch : kShippedArchs) {
    const std::vector<Sm80ForwardConfig> configs = shipped_configs(arch);
    EXPECT_GE(configs.size(), 12u) << arch;
    for (const Sm80ForwardConfig& config : configs) {
      EXPECT_TRUE(feasible(config, arch).ok()) << to_text(config);
      EXPECT_TRUE(texts.insert(to_text(config)).second) << to_text(config);
    }
  }
  const std::vector<Sm90ForwardConfig> hopper = shipped_sm90_configs();
  EXPECT_GE(hopper.size(), 12u);
  EXPECT_LE(hopper.size(), 60u) << "ten rows of three head dimensions in two types; each costs the "
                                   "build a second and more";
  for (const Sm90ForwardConfig& config : hopper) {
    EXPECT_TRUE(feasible(config, 90).ok()) << to_text(config);
    EXPECT_TRUE(texts.insert(to_text(config)).second) << to_text(config);
  }
}

TEST(CodeFor, EveryChipHasItsFamily) {
  EXPECT_EQ(code_for(75).arch, 0);
  for (const int chip : {80, 86, 87}) EXPECT_EQ(code_for(chip).arch, 80) << chip;
  EXPECT_EQ(code_for(89).arch, 89);
  EXPECT_EQ(code_for(90).arch, 90);
  EXPECT_FALSE(code_for(90).ptx);
  for (const int chip : {100, 103, 120}) {
    EXPECT_EQ(code_for(chip).arch, 89) << chip;
    EXPECT_TRUE(code_for(chip).ptx) << chip;
  }
}

class ShippedTest : public testing::Test {
 protected:
  struct Shipped {
    Sm80ForwardConfig config;
    CompiledKernel kernel;
    CubinKernel info;
  };
  void SetUp() override {
    if (embedded_kernels().size() == 0) GTEST_SKIP() << "built without NVRTC: nothing is embedded";
    for (const int arch : kShippedArchs) {
      for (const Sm80ForwardConfig& config : shipped_configs(arch)) add(config);
    }
  }
  void add(const Sm80ForwardConfig& config) {
    Result<CompiledKernel> kernel = embedded_kernels().load(cache_key(kernel_source(config), ""));
    if (!kernel.ok()) {
      left_out_ += to_text(config) + "\n";
      return;
    }
    const Result<CubinInfo> info = read_cubin(kernel->image);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->arch, config.arch);
    EXPECT_FALSE(info->debug);
    const CubinKernel* found = info->find(kernel->lowered_name);
    ASSERT_NE(found, nullptr) << kernel->lowered_name;
    shipped_.push_back({config, std::move(*kernel), *found});
  }
  std::vector<Shipped> shipped_;
  std::string left_out_;  // did not compile, or spilled: the build log says which
};

TEST_F(ShippedTest, EveryKernelIsShipped) { EXPECT_EQ(left_out_, ""); }

TEST_F(ShippedTest, NothingSpills) {
  for (const Shipped& s : shipped_) {
    EXPECT_FALSE(s.info.spills()) << to_text(s.config) << ": " << s.info.stack_bytes;
    EXPECT_GT(s.info.registers, 0);
    EXPECT_LE(s.info.registers, 255);
    EXPECT_EQ(s.info.static_smem_bytes, 0) << "shared memory is dynamic";
    EXPECT_GT(s.info.instructions.ldmatrix, 0);
    EXPECT_GT(s.info.instructions.exp2, 0);
    EXPECT_GT(s.info.instructions.async_copies, 0);
  }
}

TEST_F(ShippedTest, TensorInstructionsOfTheirType) {
  for (const Shipped& s : shipped_) {
    const InstructionCounts& n = s.info.instructions;
    const std::string text = to_text(s.config);
    const bool fp8 = s.config.element == Element::e4m3 || s.config.element == Element::e5m2;
    if (fp8 && s.config.arch == 89) {
      EXPECT_GT(n.qmma, 0) << text;
      EXPECT_EQ(n.hmma, 0) << text << ": FP8 must not be widened";
      EXPECT_EQ(n.imma, 0) << text;
    } else if (s.config.element == Element::int8) {
      EXPECT_GT(n.imma, 0) << text;
      EXPECT_EQ(n.hmma, 0) << text;
    } else {
      EXPECT_GT(n.hmma, 0) << text;  // FP8 too on sm_90, which has no FP8 mma.sync
      EXPECT_EQ(n.qmma + n.imma, 0) << text;
    }
  }
}

// The mma instructions of one block of keys, times how often the compiler repeats its code: the
// loop is not unrolled, and masks do not duplicate it.
TEST_F(ShippedTest, TheLoopBodyExistsOnce) {
  for (const Shipped& s : shipped_) {
    const Sm80ForwardConfig& c = s.config;
    const bool fp8 = c.element == Element::e4m3 || c.element == Element::e5m2;
    const int step = element_bytes(c.element) == 1 && c.element != Element::sim8 ? 32 : 16;
    const int rows = c.block_m / c.warps_m / 16;
    const int qk = rows * (c.block_n / 8) * (c.head_dim / step);
    const int pv = rows * (c.head_dim / 8) * (c.block_n / step);
    const int emulated = fp8 && c.arch == 90 ? 2 : 1;  // two k16 halves for each k32
    EXPECT_EQ(s.info.instructions.mma(), (qk + pv * c.p_terms) * emulated) << to_text(c);
  }
}

// P stays in registers: the only stores to shared memory are those of the epilogue (O, and the
// partial results of warps that divide the keys), at most as many as a thread has values, plus the
// loop that clears sim8's padding.
TEST_F(ShippedTest, NoSharedMemoryRoundTripOfP) {
  for (const Shipped& s : shipped_) {
    const Sm80ForwardConfig& c = s.config;
    const int rows = c.block_m / c.warps_m / 16;
    const int values = rows * (c.head_dim / 8) * 4;           // of O, per thread
    const int state = c.warps_n > 1 ? values + rows * 4 : 0;  // plus two maxima and two sums
    const int o = c.output.element != Element::f32 ? values / 2
                                                   : values;  // 16-bit values are stored in pairs
    const int clearing = c.element == Element::sim8 ? 1 : 0;
    EXPECT_LE(s.info.instructions.shared_stores, state + o + clearing) << to_text(c);
    EXPECT_GT(s.info.instructions.shared_stores, 0) << to_text(c);
  }
}

TEST_F(ShippedTest, CompileInUnderFiveSeconds) {
  for (const Shipped& s : shipped_) EXPECT_LT(s.kernel.compile_ms, 5000) << to_text(s.config);
}

// The Hopper kernels are present, without spills, and use only wgmma: each product is in the code
// before the loop and in it, or in it and after it, and with the schedule in_turn once.
TEST_F(ShippedTest, HopperKernelsUseOnlyWgmmaAndDoNotSpill) {
  for (const Sm90ForwardConfig& config : shipped_sm90_configs()) {
    const Result<CompiledKernel> kernel =
        embedded_kernels().load(cache_key(kernel_source(config), ""));
    ASSERT_TRUE(kernel.ok()) << to_text(config) << kernel.status().message();
    // Wall time, of a build that may share the machine.
    EXPECT_LT(kernel->compile_ms, 30000) << to_text(config);
    const Result<CubinInfo> info = read_cubin(kernel->image);
    ASSERT_TRUE(info.ok()) << info.status().message();
    const CubinKernel* found = info->find(kernel->lowered_name);
    ASSERT_NE(found, nullptr) << kernel->lowered_name;
    EXPECT_FALSE(found->spills()) << to_text(config);
    const int copies = config.schedule == Schedule::in_turn ? 1 : 2;
    EXPECT_EQ(found->instructions.wgmma_f16, copies * (config.head_dim / 16 + config.block_n / 16))
        << to_text(config);
    EXPECT_EQ(found->instructions.mma(), found->instructions.wgmma_f16) << to_text(config);
  }
}

TEST_F(ShippedTest, PtxForNewerChips) {
  std::map<int, int> count;
  for (const int arch : kShippedPtxArchs) {
    for (const Sm80ForwardConfig& config : shipped_configs(arch)) {
      const Result<CompiledKernel> kernel =
          embedded_kernels().load(cache_key(kernel_source(config, true), ""));
      ASSERT_TRUE(kernel.ok()) << to_text(config);
      const std::string_view text(reinterpret_cast<const char*>(kernel->image.data()),
                                  kernel->image.size());
      EXPECT_NE(text.find(".entry " + kernel->lowered_name), std::string_view::npos);
      EXPECT_NE(text.find(".target sm_" + std::to_string(arch)), std::string_view::npos);
      ++count[arch];
    }
  }
  EXPECT_GT(count[80], 0);
  EXPECT_GT(count[89], count[80]) << "FP8 too";
}

TEST_F(ShippedTest, FitsTheSizeBudget) {
  EXPECT_LT(detail::embedded_archive_bytes().size(), std::size_t{20} << 20);
}

}  // namespace
}  // namespace octavo
