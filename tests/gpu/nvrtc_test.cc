// SPDX-License-Identifier: Apache-2.0
// The compiler: a kernel is compiled, reproducibly; errors are reported.
#include "gpu/jit/nvrtc.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu/jit/config_text.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/sha256.h"

namespace octavo {
namespace {

// The fastest kernel to compile.
Sm80ForwardConfig small_config(int arch) {
  return parse_sm80_forward("block_m=16,warps_m=1,block_n=16,head_dim=16,stages=1,arch=" +
                            std::to_string(arch))
      .value();
}

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  }
};

TEST_F(NvrtcTest, CompilesCubinAndPtx) {
  for (const int arch : {80, 89, 90}) {
    const Result<CompiledKernel> kernel = compile(kernel_source(small_config(arch)));
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    ASSERT_GT(kernel->image.size(), 1000u);
    EXPECT_EQ(std::memcmp(kernel->image.data(),
                          "\x7f"
                          "ELF",
                          4),
              0);
    EXPECT_NE(kernel->lowered_name.find("sm80_forward"), std::string::npos);
    EXPECT_EQ(kernel->arch, arch);
    EXPECT_EQ(kernel->sha256, sha256_hex(kernel->image));
    EXPECT_GT(kernel->compile_ms, 0);
    EXPECT_LT(kernel->compile_ms, 5000);
    EXPECT_NE(kernel->options.find("sm_" + std::to_string(arch)), std::string::npos);
  }
  const Result<CompiledKernel> ptx = compile(kernel_source(small_config(80), true));
  ASSERT_TRUE(ptx.ok()) << ptx.status().message();
  const std::string_view text(reinterpret_cast<const char*>(ptx->image.data()), ptx->image.size());
  EXPECT_NE(text.find(".target sm_80"), std::string_view::npos);
  EXPECT_NE(text.find(".entry " + ptx->lowered_name), std::string_view::npos);
  EXPECT_EQ(text.back(), '\0');
}

// Each header of config/ and device/ compiles alone, to PTX, which needs no assembler;
// headers_test.sh asks nvcc and g++.
TEST_F(NvrtcTest, EveryHeaderCompilesAlone) {
  for (const EmbeddedSource& source : embedded_sources()) {
    ProgramText program;
    program.text = "#include \"" + std::string(source.name) + "\"\n";
    program.options = nvrtc_options(90, true);
    program.ptx = true;
    const Result<CompiledKernel> compiled = compile(program);
    EXPECT_TRUE(compiled.ok()) << source.name << ": " << compiled.status().message();
  }
}

TEST_F(NvrtcTest, FailureContainsTheErrorAndTheConfig) {
  Sm80ForwardConfig config = small_config(80);
  config.block_m = 24;  // a static_assert of the kernel
  const Result<CompiledKernel> kernel = compile(kernel_source(config));
  ASSERT_FALSE(kernel.ok());
  EXPECT_EQ(kernel.status().code(), ErrorCode::device_error);
  EXPECT_NE(kernel.status().message().find(to_text(config)), std::string::npos);
  EXPECT_NE(kernel.status().message().find("error"), std::string::npos);
  EXPECT_NE(kernel.status().message().find("16-row mma tiles"), std::string::npos)
      << kernel.status().message();
}

TEST_F(NvrtcTest, ManyThreadsAtOnce) {
  std::vector<std::string> digests(3);
  std::vector<std::thread> threads;
  threads.reserve(digests.size());
  for (std::string& digest : digests) {
    threads.emplace_back([&digest] {
      const Result<CompiledKernel> kernel = compile(kernel_source(small_config(80)));
      digest = kernel.ok() ? kernel->sha256 : kernel.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& digest : digests) {
    EXPECT_EQ(digest.size(), 64u) << digest;
    EXPECT_EQ(digest, digests[0]);
  }
}

TEST(Nvrtc, BadSourcesAreRefusedBeforeTheCompilerIsOpened) {
  KernelSource source = kernel_source(small_config(80));
  source.include = "device/none.cuh";
  EXPECT_EQ(compile(source).status().code(), ErrorCode::invalid_argument);
  source = kernel_source(small_config(80));
  source.arch = 75;
  EXPECT_EQ(compile(source).status().message(), "arch is 75; supported: 80, 89, 90.");
}

// In a child, because a process looks for the compiler only once.
TEST(NvrtcDeathTest, MissingCompilerIsReported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("OCTAVO_NVRTC", "libnvrtc_that_is_not_there.so", 1);
        const Status status = compile(kernel_source(small_config(80))).status();
        std::fprintf(stderr, "%s\n", status.message().c_str());
        std::exit(status.code() == ErrorCode::unsupported ? 0 : 1);
      },
      testing::ExitedWithCode(0), "libnvrtc_that_is_not_there.so.*set OCTAVO_NVRTC");
}

}  // namespace
}  // namespace octavo
