// SPDX-License-Identifier: Apache-2.0
// The store: where a kernel comes from, that it is compiled once, and refused kernels.
#include "gpu/jit/kernel_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "gpu/cache_kernels.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/shipped.h"
#include "gpu/temporary_directory.h"

namespace octavo {
namespace {

// Nothing is compiled ahead of time. PTX, so that the store parses no cubin.
class KernelStoreTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  KernelArchive archive_;
  std::atomic<int> compiled_{0};
  const KernelSource source_ = kernel_source(Sm80ForwardConfig{}, true);

  static Result<std::string> no_compiler() {
    return Status(ErrorCode::unsupported, "There is no compiler.");
  }

  KernelStore::Parts parts() {
    KernelStore::Parts parts;
    parts.archive = &archive_;
    parts.cache = CubinCache(directory_.path() + "/cache");
    parts.compiler_version = [] { return Result<std::string>(std::string("NVRTC 1.0")); };
    parts.compile = [this](const KernelSource& source) -> Result<CompiledKernel> {
      ++compiled_;
      CompiledKernel kernel = fake_kernel("stored");
      kernel.ptx = source.ptx;
      return kernel;
    };
    return parts;
  }
};

TEST_F(KernelStoreTest, CompiledThenMemoryThenDisk) {
  KernelStore first(parts());
  const auto made = first.get(source_);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)->origin, KernelOrigin::compiled);
  EXPECT_EQ(*first.get(source_), *made) << "the same object";
  EXPECT_EQ(compiled_, 1);
  KernelStore second(parts());  // another process
  EXPECT_EQ((*second.get(source_))->origin, KernelOrigin::disk);
  EXPECT_EQ(compiled_, 1);
}

TEST_F(KernelStoreTest, TheAheadOfTimeSetNeedsNoCompiler) {
  CompiledKernel kernel = fake_kernel("shipped");
  kernel.ptx = true;
  const std::string bytes = KernelArchive::write({{cache_key(source_, ""), kernel}});
  archive_ = KernelArchive::open(std::as_bytes(std::span(bytes))).value();
  KernelStore::Parts without = parts();
  without.compiler_version = no_compiler;
  KernelStore store(without);
  ASSERT_TRUE(store.get(source_).ok());
  EXPECT_EQ((*store.get(source_))->origin, KernelOrigin::embedded);
  EXPECT_EQ(compiled_, 0);
  const auto other = store.get(kernel_source(Sm80ForwardConfig{}));
  EXPECT_EQ(other.status().message(), "There is no compiler.");
}

TEST_F(KernelStoreTest, TheCacheNeedsNoCompiler) {
  KernelStore::Parts older = parts();
  older.compile = [](const KernelSource&) -> Result<CompiledKernel> {
    CompiledKernel kernel = fake_kernel("older");
    kernel.ptx = true;
    kernel.compiler = "NVRTC 1.0";
    return kernel;
  };
  ASSERT_TRUE(KernelStore(older).get(source_).ok());
  KernelStore::Parts without = parts();
  without.compiler_version = no_compiler;
  const auto found = KernelStore(without).get(source_);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)->origin, KernelOrigin::disk);
  EXPECT_EQ((*found)->kernel.lowered_name, "_Zolder");
  EXPECT_EQ(compiled_, 0);

  Sm80ForwardConfig other;
  other.stages = 3;
  EXPECT_EQ(KernelStore(without).get(kernel_source(other, true)).status().message(),
            "There is no compiler.");
}

TEST_F(KernelStoreTest, WithoutACompilerInvalidCacheEntriesAreRefused) {
  KernelStore::Parts without = parts();
  without.compiler_version = no_compiler;
  CompiledKernel kernel = fake_kernel("kernel");
  kernel.ptx = true;
  kernel.name_expression = source_.name_expression;
  // An entry under the key of another source, whatever its own metadata.
  ASSERT_TRUE(without.cache.store(fake_key("another source"), kernel).ok());
  EXPECT_FALSE(KernelStore(without).get(source_).ok());

  const std::string key = cache_key(source_, kernel.compiler);
  ASSERT_TRUE(without.cache.store(key, kernel).ok());
  ASSERT_TRUE(KernelStore(without).get(source_).ok());
  std::ofstream(without.cache.root() + "/" + key + "/kernel.ptx") << "not what was compiled";
  EXPECT_EQ(KernelStore(without).get(source_).status().message(), "There is no compiler.");
}

TEST_F(KernelStoreTest, ConcurrentRequestsCompileOnce) {
  KernelStore::Parts slow = parts();
  slow.compile = [inner = slow.compile](const KernelSource& source) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return inner(source);
  };
  KernelStore store(slow);
  std::vector<std::thread> threads;
  threads.reserve(8);
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { good += store.get(source_).ok(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(compiled_, 1);
}

TEST_F(KernelStoreTest, FailureIsNotCached) {
  KernelStore::Parts failing = parts();
  int calls = 0;
  failing.compile = [&](const KernelSource&) -> Result<CompiledKernel> {
    if (++calls == 1) return Status(ErrorCode::device_error, "not now");
    CompiledKernel kernel = fake_kernel("stored");
    kernel.ptx = true;
    return kernel;
  };
  KernelStore store(failing);
  EXPECT_FALSE(store.get(source_).ok());
  EXPECT_TRUE(store.get(source_).ok());
}

TEST_F(KernelStoreTest, UnwritableCacheGivesANote) {
  KernelStore::Parts nowhere = parts();
  nowhere.cache = CubinCache("/proc/octavo");
  KernelStore store(nowhere);
  const auto made = store.get(source_);
  ASSERT_TRUE(made.ok());
  EXPECT_NE((*made)->note.find("/proc/octavo"), std::string::npos) << (*made)->note;
}

TEST_F(KernelStoreTest, InvalidCubinIsRefused) {
  KernelStore store(parts());
  const auto made = store.get(kernel_source(Sm80ForwardConfig{}));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("not a 64-bit"), std::string::npos);
}

// 64 registers per thread, and 70 live values.
TEST_F(KernelStoreTest, SpillingKernelIsRefusedUnlessAllowed) {
  if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  KernelStore::Parts real = parts();
  real.compile = [](const KernelSource& source) -> Result<CompiledKernel> {
    ProgramText program;
    program.text =
        "extern \"C\" __global__ void __launch_bounds__(1024) spilling(float* p, int n) {\n"
        "  float x[70];\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 70; ++i) x[i] = p[i * n];\n"
        "  for (int k = 0; k < n; ++k)\n"
        "#pragma unroll\n"
        "    for (int i = 0; i < 70; ++i) x[i] = x[i] * x[(i * 7 + 3) % 70] + 1.0f;\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 70; ++i) p[i * n] = x[i];\n"
        "}\n";
    program.options = nvrtc_options(source.arch, false);
    Result<CompiledKernel> kernel = compile(program);
    if (kernel.ok()) kernel->lowered_name = "spilling";
    return kernel;
  };
  KernelStore store(real);
  const KernelSource source = kernel_source(Sm80ForwardConfig{});
  const auto refused = store.get(source);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::unsupported);
  EXPECT_NE(refused.status().message().find("spills"), std::string::npos)
      << refused.status().message();
  CubinPolicy policy;
  policy.allow_spills = true;
  const auto allowed = store.get(source, policy);
  ASSERT_TRUE(allowed.ok()) << allowed.status().message();
  EXPECT_GT((*allowed)->info.kernels[0].stack_bytes, 0);
  EXPECT_FALSE(store.get(source).ok()) << "still refused to others";
}

TEST(KernelStore, LibraryStoreFindsShippedKernels) {
  if (embedded_kernels().size() == 0) GTEST_SKIP() << "built without NVRTC: nothing is embedded";
  const auto kernel = kernel_store().get(shipped_kernels().front());
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_EQ((*kernel)->origin, KernelOrigin::embedded);
}

}  // namespace
}  // namespace octavo
