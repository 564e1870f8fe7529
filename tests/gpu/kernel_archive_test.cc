// SPDX-License-Identifier: Apache-2.0
// Archives of kernels: they round-trip, and no bytes crash the reader.
#include "gpu/jit/kernel_archive.h"

#include <gtest/gtest.h>

#include <random>

#include "gpu/cache_kernels.h"

namespace octavo {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string two_kernels() {
  return KernelArchive::write(
      {{fake_key("a"), fake_kernel("a", 700)}, {fake_key("b"), fake_kernel("b", 900)}});
}

TEST(KernelArchive, RoundTrips) {
  const std::string text = two_kernels();
  const Result<KernelArchive> archive = KernelArchive::open(bytes_of(text));
  ASSERT_TRUE(archive.ok()) << archive.status().message();
  EXPECT_EQ(archive->size(), 2u);
  for (const char* name : {"a", "b"}) {
    const Result<CompiledKernel> kernel = archive->load(fake_key(name));
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    EXPECT_EQ(kernel->lowered_name, fake_kernel(name).lowered_name);
    EXPECT_EQ(kernel->sha256, fake_kernel(name, name[0] == 'a' ? 700 : 900).sha256);
  }
  EXPECT_EQ(archive->load(fake_key("c")).status().code(), ErrorCode::unsupported);
  EXPECT_EQ(KernelArchive::open(bytes_of(KernelArchive::write({})))->size(), 0u);
}

TEST(KernelArchive, DamageIsDetected) {
  const std::string text = two_kernels();
  std::mt19937 random(3);
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string broken = text;
    if (i % 3 == 0)
      broken.resize(random() % text.size());
    else
      broken[random() % broken.size()] = static_cast<char>(random());
    if (broken == text) continue;
    const Result<KernelArchive> archive = KernelArchive::open(bytes_of(broken));
    if (!archive.ok()) {
      ++found;
      continue;
    }
    // Either the damaged kernel is refused or the key differs.
    bool whole = archive->size() == 2;
    for (const char* name : {"a", "b"}) whole = whole && archive->load(fake_key(name)).ok();
    found += !whole;
    // Changed white space in meta.json is the one change that does not matter.
    EXPECT_FALSE(whole && i % 3 == 0);
  }
  EXPECT_GT(found, 2900);
}

}  // namespace
}  // namespace octavo
