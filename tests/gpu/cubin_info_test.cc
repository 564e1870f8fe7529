// SPDX-License-Identifier: Apache-2.0
// The cubin reader against ptxas' report for kernels with known properties, and against invalid
// bytes.
#include "gpu/jit/cubin_info.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <tuple>

#include "gpu/jit/nvrtc.h"

namespace octavo {
namespace {

constexpr const char* kKernels = R"(
extern "C" __global__ void __launch_bounds__(1024) spilling(float* p, int n) {
  float x[70];
#pragma unroll
  for (int i = 0; i < 70; ++i) x[i] = p[i * n];
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int i = 0; i < 70; ++i) x[i] = x[i] * x[(i * 7 + 3) % 70] + 1.0f;
#pragma unroll
  for (int i = 0; i < 70; ++i) p[i * n] = x[i];
}
extern "C" __global__ void indexed(float* p, int n) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = p[i] * n;
  for (int k = 0; k < n; ++k) x[(k * k) & 63] += x[(k + n) & 63];
  for (int i = 0; i < 64; ++i) p[i] = x[i];
}
extern "C" __global__ void clean(float* p) {
  __shared__ float s[100];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = exp2f(s[99 - threadIdx.x]) + __log2f(p[0]);
}
extern "C" __global__ void empty() {}
)";

constexpr const char* kWgmma = R"(
#define WGMMA(name, shape, type, letter, extra)                                              \
  extern "C" __global__ void name(unsigned long long a, unsigned long long b, int* o) {      \
    type r[4] = {};                                                                          \
    asm volatile("{ wgmma.fence.sync.aligned;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n8" shape " {%0,%1,%2,%3}, %4, %5, 1" extra \
                 ";\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; }"   \
                 : "+" letter(r[0]), "+" letter(r[1]), "+" letter(r[2]), "+" letter(r[3])    \
                 : "l"(a), "l"(b));                                                          \
    for (int i = 0; i < 4; ++i) o[threadIdx.x * 4 + i] = (int)r[i];                          \
  }
WGMMA(wgmma_f16, "k16.f32.f16.f16", float, "f", ", 1, 1, 0, 0")
WGMMA(wgmma_fp8, "k32.f32.e4m3.e4m3", float, "f", ", 1, 1")
WGMMA(wgmma_int8, "k32.s32.s8.s8", int, "r", "")
)";

// Compiled once per chip for all tests.
const Result<CompiledKernel>& compiled(const char* text, int arch, const std::string& option = "") {
  static std::map<std::tuple<const char*, int, std::string>, Result<CompiledKernel>> known;
  const std::tuple key(text, arch, option);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  ProgramText program;
  program.text = text;
  program.options = nvrtc_options(arch, false);
  if (!option.empty()) program.options.push_back(option);
  return known.emplace(key, compile(program)).first->second;
}

// The number before `word` in the line.
std::optional<int> number_before(const std::string& line, std::string_view word) {
  const std::size_t end = line.find(word);
  if (end == std::string::npos) return std::nullopt;
  const std::size_t before = line.find_last_not_of("0123456789", end - 1);
  return std::stoi(line.substr(before + 1, end - before - 1));
}

class CubinBytesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  }
};
class CubinInfoTest : public CubinBytesTest, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Archs, CubinInfoTest, testing::Values(80, 89, 90));

TEST_P(CubinInfoTest, AgreesWithPtxas) {
  const Result<CompiledKernel> kernel = compiled(kKernels, GetParam());
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const Result<CubinInfo> info = read_cubin(kernel->image);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->arch, GetParam());
  EXPECT_FALSE(info->debug);
  EXPECT_EQ(info->kernels.size(), 4u);
  // The output of -v: a line with the name, one with the stack, one with the registers.
  std::istringstream log(kernel->log);
  const CubinKernel* found = nullptr;
  int reported = 0;
  for (std::string line; std::getline(log, line);) {
    constexpr std::string_view kName = "Function properties for ";
    if (const std::size_t at = line.find(kName); at != std::string::npos) {
      found = info->find(line.substr(at + kName.size()));
      ASSERT_NE(found, nullptr) << line;
    }
    if (const auto stack = number_before(line, " bytes stack frame")) {
      EXPECT_EQ(found->stack_bytes, *stack) << found->symbol;
    }
    if (const auto registers = number_before(line, " registers")) {
      EXPECT_EQ(found->registers, *registers) << found->symbol;
      EXPECT_EQ(found->static_smem_bytes, number_before(line, " bytes smem").value_or(0))
          << found->symbol;
      ++reported;
    }
  }
  EXPECT_EQ(reported, 4) << kernel->log;
}

TEST_P(CubinInfoTest, DetectsSpills) {
  const Result<CompiledKernel> kernel = compiled(kKernels, GetParam());
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const CubinInfo info = read_cubin(kernel->image).value();
  for (const char* name : {"spilling", "indexed"}) {
    EXPECT_TRUE(info.find(name)->spills()) << name;
    EXPECT_GT(info.find(name)->instructions.local_loads, 0) << name;
    EXPECT_GT(info.find(name)->instructions.local_stores, 0) << name;
    EXPECT_EQ(check_cubin(info, name, {}).code(), ErrorCode::unsupported);
    CubinPolicy policy;
    policy.allow_spills = true;
    EXPECT_TRUE(check_cubin(info, name, policy).ok());
  }
  EXPECT_TRUE(check_cubin(info, "clean", {}).ok());
  EXPECT_FALSE(check_cubin(info, "absent", {}).ok());
  const InstructionCounts& clean = info.find("clean")->instructions;
  EXPECT_EQ(clean.local_loads + clean.local_stores, 0);
  EXPECT_EQ(clean.shared_stores, 1);
  EXPECT_EQ(clean.shared_loads, 1);
  EXPECT_EQ(clean.exp2, 1) << "and not the logarithm";
  EXPECT_EQ(clean.mma(), 0);
  EXPECT_EQ(static_cast<std::size_t>(clean.total) * 16, info.find("clean")->code_bytes);
}

TEST_P(CubinInfoTest, RefusesDebugBuildsButNotLineInfo) {
  const Result<CompiledKernel> debug = compiled(kKernels, GetParam(), "-G");
  ASSERT_TRUE(debug.ok()) << debug.status().message();
  const CubinInfo info = read_cubin(debug->image).value();
  EXPECT_TRUE(info.debug);
  CubinPolicy policy;
  policy.allow_spills = true;
  EXPECT_EQ(check_cubin(info, "empty", policy).code(), ErrorCode::unsupported);
  policy.allow_debug = true;
  EXPECT_TRUE(check_cubin(info, "empty", policy).ok());
  const Result<CompiledKernel> lines = compiled(kKernels, GetParam(), "-lineinfo");
  ASSERT_TRUE(lines.ok()) << lines.status().message();
  EXPECT_FALSE(read_cubin(lines->image)->debug);
}

TEST_F(CubinBytesTest, Wgmma) {
  const Result<CompiledKernel> kernel = compiled(kWgmma, 90);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const CubinInfo info = read_cubin(kernel->image).value();
  EXPECT_EQ(info.find("wgmma_f16")->instructions.wgmma_f16, 1);
  EXPECT_EQ(info.find("wgmma_fp8")->instructions.wgmma_fp8, 1);
  EXPECT_EQ(info.find("wgmma_int8")->instructions.wgmma_int8, 1);
  for (const CubinKernel& each : info.kernels) EXPECT_EQ(each.instructions.mma(), 1);
}

// Any result is fine, but not a crash (and the sanitizers run).
TEST_F(CubinBytesTest, HostileBytes) {
  const Result<CompiledKernel> kernel = compiled(kKernels, 90);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  const std::vector<std::byte>& good = kernel->image;
  for (std::size_t size = 0; size < good.size(); size += 37) {
    (void)read_cubin(std::span(good).first(size));
  }
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bad = good;
    for (int n = 0; n < 3; ++n) {
      // Wrong numbers in the headers and the section table are the most harmful.
      const std::size_t place = i % 3 == 0   ? random() % 64
                                : i % 3 == 1 ? bad.size() - 1 - random() % 2500
                                             : random() % bad.size();
      bad[place] = static_cast<std::byte>(random() % 4 == 0 ? 0xff : random());
    }
    (void)read_cubin(bad);
  }
  EXPECT_FALSE(read_cubin({}).ok());
  const std::vector<std::byte> zeros(4096);
  EXPECT_FALSE(read_cubin(zeros).ok());
}

}  // namespace
}  // namespace octavo
