// SPDX-License-Identifier: Apache-2.0
// A directory that is deleted at the end of the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace octavo {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = testing::TempDir() + "octavo_cache_XXXXXX";
    const char* const made = mkdtemp(name.data());
    EXPECT_NE(made, nullptr);
    path_ = made;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace octavo
