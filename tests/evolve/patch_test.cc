// SPDX-License-Identifier: Apache-2.0
// Unified diffs: what applies, and the sentence for everything that does not.
#include "evolve/gates/patch.h"

#include <gtest/gtest.h>

namespace octavo::evolve {
namespace {

constexpr char kFile[] = "device/ladder/scalar.cuh";

std::vector<std::string> lines_of(const std::string& name) {
  std::vector<std::string> lines;
  std::string_view text = find_embedded_source(name)->text;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

// A hunk that puts `added` before line `at` (from 1) of a file, with the line itself as context.
std::string hunk(const std::string& name, std::size_t at, const std::string& added) {
  const std::string line = lines_of(name)[at - 1];
  return "@@ -" + std::to_string(at) + ",1 +" + std::to_string(at) + ",2 @@\n+" + added + "\n " +
         line + "\n";
}
std::string headers(const std::string& name) {
  return "--- a/src/" + name + "\n+++ b/src/" + name + "\n";
}

std::string error_of(const std::string& diff) {
  const Result<Patched> patched = apply_patch(diff);
  return patched.ok() ? "applies" : patched.status().message();
}

TEST(EvolvePatch, AppliesToTheEmbeddedSources) {
  const Result<Patched> patched = apply_patch(headers(kFile) + hunk(kFile, 3, "// added"));
  ASSERT_TRUE(patched.ok()) << patched.status().message();
  ASSERT_EQ(patched->sources.size(), 1u);
  const std::string& after = patched->sources[0].after;
  std::string expected;
  const std::vector<std::string> lines = lines_of(kFile);
  for (std::size_t i = 0; i < lines.size(); ++i)
    expected += (i == 2 ? "// added\n" : "") + lines[i] + "\n";
  EXPECT_EQ(after, expected);
  EXPECT_EQ(patched->overlay().at(kFile), after);
}

TEST(EvolvePatch, NothingIsNoChange) {
  const Result<Patched> patched = apply_patch(" \n");
  ASSERT_TRUE(patched.ok());
  EXPECT_TRUE(patched->sources.empty());
}

// The patches of two levers are both written against the embedded sources.
TEST(EvolvePatch, SeveralDiffsOfOneFileFollowEachOther) {
  const Result<Patched> patched = apply_patch(
      headers(kFile) + hunk(kFile, 3, "// one\n+// two").replace(0, 15, "@@ -3,1 +3,3 @@") +
      headers(kFile) + hunk(kFile, 60, "// three"));
  ASSERT_TRUE(patched.ok()) << patched.status().message();
  const std::string& after = patched->sources[0].after;
  EXPECT_NE(after.find("// one\n// two\n" + lines_of(kFile)[2]), std::string::npos);
  EXPECT_NE(after.find("// three\n" + lines_of(kFile)[59]), std::string::npos);
}

TEST(EvolvePatch, BadDiffsAreNamed) {
  const std::string head = headers(kFile);
  EXPECT_EQ(error_of("make it faster"), "The patch has no file header (\"--- a/device/...\").");
  EXPECT_EQ(error_of(headers("gpu/driver/driver.cc") + "@@ -1,1 +1,1 @@\n-a\n+b\n"),
            "The patch changes 'gpu/driver/driver.cc', which is outside the device sources.");
  EXPECT_EQ(error_of(headers("device/../gpu/x.h") + "@@ -1,1 +1,1 @@\n-a\n+b\n"),
            "The patch changes 'device/../gpu/x.h', which is outside the device sources.");
  EXPECT_EQ(error_of(headers("device/sm80/none.cuh") + "@@ -1,1 +1,1 @@\n-a\n+b\n"),
            "The patch changes 'device/sm80/none.cuh', and there is no such source.");
  EXPECT_EQ(
      error_of("--- /dev/null\n+++ b/src/device/new.cuh\n@@ -0,0 +1 @@\n+x\n"),
      "The patch creates the file 'device/new.cuh'; only existing device sources may change.");
  EXPECT_EQ(error_of("new file mode 100644\n" + head + hunk(kFile, 3, "x")),
            "The patch creates a file; only existing device sources may change.");
  EXPECT_EQ(error_of("--- a/" + std::string(kFile) + "\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
            "The patch deletes the file 'device/ladder/scalar.cuh'.");
  EXPECT_EQ(error_of("--- a/device/ladder/scalar.cuh\n+++ b/device/ladder/tiled.cuh\n"),
            "The patch renames 'device/ladder/scalar.cuh' to 'device/ladder/tiled.cuh'.");
  EXPECT_EQ(error_of(head), "The patch of device/ladder/scalar.cuh has no hunk.");
  EXPECT_EQ(
      error_of(head + "@@ -1,2 +1,1 @@\n-not there\n-nor this\n+x\n"),
      "Hunk 1 of device/ladder/scalar.cuh does not apply at line 1: 'not there' is not in the "
      "file.");
  EXPECT_EQ(error_of(head + "@@ -1,3 +1,1 @@\n-a\n+b\n"),
            "Hunk 1 of device/ladder/scalar.cuh ends before the lines that its header counts.");
  EXPECT_EQ(error_of(head + "@@ -1,1 +1,1 @@\n-a\n+b\n+c\n"),
            "Hunk 1 of device/ladder/scalar.cuh has more lines than its header counts.");
  EXPECT_EQ(error_of(head + "@@ one @@\n-a\n+b\n"),
            "Hunk 1 of device/ladder/scalar.cuh has a header that is not '@@ -line,count "
            "+line,count @@'.");
  const std::string empty = "@@ -5000,1 +5000,2 @@\n+x\n \n";
  EXPECT_EQ(error_of(head + empty),
            "Hunk 1 of device/ladder/scalar.cuh does not apply at line 5000, and its lines occur "
            "more than once elsewhere.");
  EXPECT_EQ(error_of(head + hunk(kFile, 3, "caf\xc3\xa9")),
            "The patch has the character 0xc3; supported: ASCII text with line feeds.");
  EXPECT_EQ(error_of(std::string(kMostPatchBytes + 1, 'x')),
            "The patch has 262145 bytes; supported: up to 262144.");
  EXPECT_EQ(error_of(head + hunk(kFile, 3, std::string(kMostSourceBytes, 'x'))).substr(0, 42),
            "The patch makes device/ladder/scalar.cuh 6");
  const std::string same = lines_of(kFile)[2];
  EXPECT_EQ(error_of(head + "@@ -3,1 +3,1 @@\n-" + same + "\n+" + same + "\n"),
            "The patch changes nothing.");
}

}  // namespace
}  // namespace octavo::evolve
