// SPDX-License-Identifier: Apache-2.0
// octavo_kernel_compiler OUTPUT [CACHE]: compiles the shipped kernels, at build time, into the
// archive that the library embeds. A kernel that is in the cache is not compiled again: builds
// share the cache, and an edit of one kernel recompiles only that one.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <thread>

#include "gpu/jit/cubin_cache.h"
#include "gpu/jit/cubin_info.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/shipped.h"

namespace octavo {

// The library has an embedded archive, which this tool produces; the tool itself has none.
std::span<const std::byte> detail::embedded_archive_bytes() { return {}; }

namespace {

constexpr std::size_t kLargestArchive = 20 << 20;

struct Work {
  Work(const std::string& cache_root, std::string compiler)
      : cache(cache_root), version(std::move(compiler)) {}

  const std::vector<KernelSource> sources = shipped_kernels();
  const CubinCache cache;
  const std::string version;
  std::vector<KernelArchive::Item> items = std::vector<KernelArchive::Item>(sources.size());
  std::atomic<std::size_t> next{0};
  std::atomic<int> compiled{0};
  std::mutex mutex;
  std::vector<std::string> failures;

  void fail(std::string message) {
    const std::lock_guard lock(mutex);
    failures.push_back(std::move(message));
  }

  void make(std::size_t i) {
    const KernelSource& source = sources[i];
    Result<Cached> made =
        get_or_compile(cache, cache_key(source, version), [&source] { return compile(source); });
    if (!made.ok()) return fail(made.status().message());
    if (!made->from_disk) ++compiled;
    if (!source.ptx) {
      const Result<CubinInfo> info = read_cubin(made->kernel.image);
      if (!info.ok()) return fail(info.status().message());
      const Status status = check_cubin(*info, made->kernel.lowered_name, {});
      if (!status.ok()) return fail(source.name_expression + ": " + status.message());
    }
    items[i] = {cache_key(source, ""), std::move(made->kernel)};
  }

  void run() {
    while (true) {
      const std::size_t i = next++;
      if (i >= sources.size()) return;
      make(i);
    }
  }
};

int fail(const std::string& message) {
  fmt::print(stderr, "octavo_kernel_compiler: {}\n", message);
  return 1;
}

int compile_all(const std::string& output, const std::string& cache) {
  const auto start = std::chrono::steady_clock::now();
  const Result<std::string> version = nvrtc_version();
  if (!version.ok()) return fail(version.status().message());
  Work work(cache, *version);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&work] { work.run(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& message : work.failures) fail("left out: " + message);
  std::erase_if(work.items, [](const KernelArchive::Item& item) { return item.key.empty(); });
  const std::string bytes = KernelArchive::write(work.items);
  if (bytes.size() > kLargestArchive) {
    return fail(fmt::format("the archive has {} bytes; supported: up to {}.", bytes.size(),
                            kLargestArchive));
  }
  std::ofstream file(output, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) return fail(fmt::format("{} cannot be written.", output));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{} kernels, {} of them compiled now, {} KB, {:.1f} s\n", work.items.size(),
             work.compiled.load(), bytes.size() / 1024, seconds.count());
  return 0;
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return octavo::fail("usage: octavo_kernel_compiler OUTPUT [CACHE]");
  const std::string cache = argc == 3 ? argv[2] : "";
  return octavo::compile_all(argv[1], cache.empty() ? octavo::CubinCache::default_root() : cache);
}
