// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "gpu/jit/kernel_source.h"

namespace octavo {
namespace {

class KernelFamilyTest : public testing::Test {
 protected:
  ~KernelFamilyTest() override { unsetenv("OCTAVO_KERNELS"); }

  static Result<std::optional<KernelFamily>> with(const char* value) {
    setenv("OCTAVO_KERNELS", value, 1);
    return forced_kernel_family();
  }
};

TEST_F(KernelFamilyTest, NothingIsForcedUnlessNamed) {
  unsetenv("OCTAVO_KERNELS");
  EXPECT_EQ(forced_kernel_family().value(), std::nullopt);
  EXPECT_EQ(with("").value(), std::nullopt);
}

TEST_F(KernelFamilyTest, TheNamedFamilyIsForced) {
  EXPECT_EQ(with("sm80").value(), KernelFamily::sm80);
  EXPECT_EQ(with("sm90").value(), KernelFamily::sm90);
}

TEST_F(KernelFamilyTest, UnknownFamilyErrorListsTheKnownOnes) {
  EXPECT_EQ(with("sm70").status().message(),
            "OCTAVO_KERNELS is 'sm70'; supported: sm80, sm90, decode, or nothing.");
}

}  // namespace
}  // namespace octavo
