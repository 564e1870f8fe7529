// SPDX-License-Identifier: Apache-2.0
// A GPU without enough memory: the error has the size, and everything allocated is freed.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

// dlopen returns a library of that name that is already loaded, so the fake driver is found.
class OutOfMemory : public testing::Test {
 protected:
  void SetUp() override {
    void* const library = dlopen(OCTAVO_FAKE_CUDA "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    live_bytes_ = reinterpret_cast<std::size_t (*)()>(dlsym(library, "fake_cuda_live_bytes"));
    live_modules_ = reinterpret_cast<int (*)()>(dlsym(library, "fake_cuda_live_modules"));
    ASSERT_NE(live_bytes_, nullptr);
    ASSERT_NE(live_modules_, nullptr);
    // PTX from a fake compiler, so that kernels take no time to compile.
    setenv("FAKE_CUDA_ARCH", "120", 1);
    setenv("OCTAVO_NVRTC", OCTAVO_FAKE_NVRTC, 1);
    setenv("OCTAVO_CACHE_DIR", "/proc/octavo", 1);
    ASSERT_EQ(devices()[1].description.substr(0, 8), "Fake GPU");
  }
  void TearDown() override {
    unsetenv("FAKE_CUDA_MEMORY");
    unsetenv("FAKE_CUDA_NO_FUNCTION");
  }
  static void limit(std::size_t bytes) {
    setenv("FAKE_CUDA_MEMORY", std::to_string(bytes).c_str(), 1);
  }

  std::size_t (*live_bytes_)() = nullptr;
  int (*live_modules_)() = nullptr;
};

TEST_F(OutOfMemory, BufferErrorContainsItsSize) {
  limit(1000);
  const Result<Buffer> refused = Buffer::make(kGpu, 1001);
  EXPECT_EQ(refused.status().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.status().message(), "1001 bytes could not be allocated on cuda:0.");
  {
    const Result<Buffer> held = Buffer::make(kGpu, 600);
    ASSERT_TRUE(held.ok()) << held.status().message();
    EXPECT_EQ(live_bytes_(), 600u);
    EXPECT_FALSE(Buffer::make(kGpu, 600).ok());
  }
  EXPECT_EQ(live_bytes_(), 0u);
  EXPECT_TRUE(Buffer::make(kGpu, 600).ok());
}

// Whichever of its tensors is the first that does not fit.
TEST_F(OutOfMemory, CallFromTheHostFreesItsMemory) {
  constexpr std::int64_t kRows = 64, kColumns = 64;
  constexpr std::size_t kBytes = kRows * kColumns * 2;
  std::vector<std::uint16_t> q(kRows * kColumns), k(q), v(q), out(q);
  const auto view = [](std::vector<std::uint16_t>& x) {
    return Tensor::bhsd(x.data(), DType::f16, 1, 1, kRows, kColumns);
  };
  Arguments arguments;
  arguments.q = view(q);
  arguments.k = view(k);
  arguments.v = view(v);
  arguments.out = view(out);
  for (std::size_t tensors = 0; tensors < 4; ++tensors) {
    limit(tensors * (kBytes + 16) + 100);
    const Status status = attention_from_host(arguments, {}, kGpu);
    EXPECT_EQ(status.code(), ErrorCode::out_of_memory) << tensors << ": " << status.message();
    EXPECT_NE(status.message().find("bytes could not be allocated on cuda:0."), std::string::npos)
        << status.message();
    EXPECT_EQ(live_bytes_(), 0u) << tensors;
  }
  limit(1 << 20);
  EXPECT_TRUE(attention_from_host(arguments, {}, kGpu).ok());
  EXPECT_EQ(live_bytes_(), 0u);
}

TEST_F(OutOfMemory, UnusableModuleIsUnloaded) {
  Problem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.seqlen_q = problem.seqlen_kv = 64;
  problem.head_dim = problem.head_dim_v = 256;
  problem.q = problem.k = problem.v = problem.out = DType::f16;
  const int before = live_modules_();
  setenv("FAKE_CUDA_NO_FUNCTION", "2", 1);
  const Result<Plan> refused = plan(problem, kGpu);
  EXPECT_EQ(refused.status().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.status().message(),
            "cuModuleGetFunction failed with CUDA error 2: CUDA_ERROR_OUT_OF_MEMORY, out of "
            "memory.");
  EXPECT_EQ(live_modules_(), before);
  unsetenv("FAKE_CUDA_NO_FUNCTION");
  EXPECT_TRUE(plan(problem, kGpu).ok()) << "the failure is not remembered";
  EXPECT_EQ(live_modules_(), before + 1);
}

}  // namespace
}  // namespace octavo
