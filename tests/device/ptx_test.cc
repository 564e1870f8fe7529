// SPDX-License-Identifier: Apache-2.0
// Every Hopper wrapper assembles to the instruction it names.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "gpu/jit/cubin_info.h"
#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

std::string text_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

class PtxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  }
};

TEST_F(PtxTest, EveryHopperWrapperAssembles) {
  ProgramText program;
  program.text = text_of(OCTAVO_SOURCE_DIR "/tests/device/ptx_calls.cu");
  program.options = nvrtc_options(90, false);
  const Result<CompiledKernel> compiled = compile(program);
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  // C7510 to C7514: the compiler could not keep the accumulators in place.
  EXPECT_EQ(compiled->log.find("serialized"), std::string::npos) << compiled->log;
  const Result<CubinInfo> info = read_cubin(compiled->image);
  ASSERT_TRUE(info.ok()) << info.status().message();

  std::map<std::string, int> shapes;  // by accumulator and operands
  for (const CubinKernel& kernel : info->kernels) {
    const std::string kind = kernel.symbol.substr(0, kernel.symbol.find("_n"));
    const InstructionCounts& n = kernel.instructions;
    ++shapes[kind];
    EXPECT_FALSE(kernel.spills()) << kernel.symbol;
    const bool product = kernel.symbol.find("_n") != std::string::npos;
    EXPECT_EQ(n.mma(), product ? 2 : 0) << kernel.symbol;
    EXPECT_EQ(n.wgmma_f16, kind == "f32_f16" ? 2 : 0) << kernel.symbol;
    EXPECT_EQ(n.wgmma_fp8, kind == "f32_f8" || kind == "f16_f8" ? 2 : 0) << kernel.symbol;
    EXPECT_EQ(n.wgmma_int8, kind == "s32_s8" ? 2 : 0) << kernel.symbol;
  }
  EXPECT_EQ(shapes["f32_f16"], 32);
  EXPECT_EQ(shapes["f32_f8"], 4);
  EXPECT_EQ(shapes["f16_f8"], 32);
  EXPECT_EQ(shapes["s32_s8"], 18);
  EXPECT_EQ(shapes["synchronisation"], 1);
  EXPECT_EQ(shapes["registers"], 1);
  EXPECT_EQ(shapes["global_memory"], 1);
}

}  // namespace
}  // namespace octavo
