// SPDX-License-Identifier: Apache-2.0
// The embedded sources equal the tree, and a digest covers exactly the files that a file includes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gpu/jit/kernel_source.h"

namespace octavo {
namespace {

TEST(EmbeddedSources, EqualTheFilesOfTheTree) {
  const std::filesystem::path root = OCTAVO_SOURCE_DIR "/src";
  std::size_t files = 0;
  for (const char* room : {"config", "device"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / room)) {
      if (!entry.is_regular_file()) continue;
      ++files;
      const std::string name = std::filesystem::relative(entry.path(), root).generic_string();
      const EmbeddedSource* source = find_embedded_source(name);
      ASSERT_NE(source, nullptr) << name;
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      EXPECT_TRUE(source->text == text.str()) << name << " was changed since this was built";
    }
  }
  EXPECT_EQ(embedded_sources().size(), files);
  EXPECT_GT(files, 10u);
}

TEST(EmbeddedSources, DigestFollowsIncludes) {
  const std::string kernel = sources_digest("device/sm80/forward.cuh");
  const std::string header = sources_digest("config/portable.h");
  EXPECT_EQ(kernel.size(), 64u);
  EXPECT_NE(kernel, header);
  EXPECT_NE(sources_digest("config/element.h"), header);
  EXPECT_EQ(sources_digest("device/not_there.cuh"), "");
}

}  // namespace
}  // namespace octavo
