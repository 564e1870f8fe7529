// SPDX-License-Identifier: Apache-2.0
// The reader and the writer of files: nothing but regular files is read, names of others lead to no
// link, and a file is written completely or not at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "files/bounded_json.h"
#include "gpu/temporary_directory.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class Files : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(path("inner"));
    write("inner/file", "content");
    descriptor_ = ::open(path("").c_str(), O_RDONLY | O_DIRECTORY);
    ASSERT_GE(descriptor_, 0);
  }
  void TearDown() override { ::close(descriptor_); }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string reason(std::string_view name) const {
    return InputFile::open_inside(descriptor_, name).status().message();
  }
  std::size_t names() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path("")), {}));
  }

  TemporaryDirectory directory_;
  int descriptor_ = -1;
};

TEST_F(Files, ReadsARegularFile) {
  const Result<InputFile> file = InputFile::open(path("inner/file"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->size(), 7U);
  EXPECT_EQ(file->owner(), ::geteuid());
  EXPECT_EQ(file->read_all(7).value(), "content");
  EXPECT_EQ(file->read_all(6).status().message(), "is 7 bytes long; supported: up to 6.");
  std::byte two[2] = {};
  EXPECT_TRUE(file->read(5, two).ok());
  EXPECT_EQ(file->read(6, two).message(), "ends at byte 7; 2 bytes are wanted from 6.");
  EXPECT_FALSE(file->read(UINT64_MAX, two).ok());
  EXPECT_EQ(InputFile::open_inside(descriptor_, "inner/file")->read_all(7).value(), "content");
}

TEST_F(Files, FollowsALinkOnlyOnThePathOfTheUser) {
  fs::create_symlink("file", path("inner/link"));
  fs::create_directory_symlink("inner", path("linked"));
  EXPECT_TRUE(InputFile::open(path("linked/link")).ok());
  EXPECT_EQ(reason("inner/link"), "is not a regular file.");
  EXPECT_EQ(reason("linked/file"), "is not a regular file.") << "through a linked folder";
}

TEST_F(Files, NamesOfOthersStayInTheFolder) {
  for (const char* name : {"", "/etc/passwd", "../x", "inner/../../x", "inner//file",
                           "./inner/file", "inner/", ".", ".."})
    EXPECT_EQ(reason(name), "is not a path inside its folder.") << name;
  EXPECT_EQ(reason(std::string_view("inner/file\0x", 12)), "is not a path inside its folder.");
  EXPECT_EQ(reason("inner/none"), "is missing.");
  EXPECT_EQ(reason("inner/file/x"), "is not a regular file.");
}

TEST_F(Files, FifosFoldersAndDevicesAreNotRead) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  for (const std::string& name : {path("fifo"), path("inner"), std::string("/dev/zero")})
    EXPECT_EQ(InputFile::open(name).status().message(), "is not a regular file.") << name;
  EXPECT_EQ(reason("fifo"), "is not a regular file.");
}

TEST_F(Files, WritesAllOrNothing) {
  write("out", "old");
  {
    Result<OutputFile> file = OutputFile::open(path("out"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write("half").ok());
    EXPECT_EQ(read("out"), "old");
  }
  EXPECT_EQ(read("out"), "old");
  EXPECT_EQ(names(), 2U) << "a temporary file was left";
  Result<OutputFile> file = OutputFile::open(path("out"));
  ASSERT_TRUE(file->write("whole").ok());
  ASSERT_TRUE(file->commit().ok());
  EXPECT_EQ(read("out"), "whole");
  EXPECT_EQ(names(), 2U);
}

TEST_F(Files, NewFilesHaveThePermissionsOfTheUmask) {
  const mode_t mask = ::umask(0027);
  Result<OutputFile> file = OutputFile::open(path("out"));
  const bool written = file.ok() && file->commit().ok();
  ::umask(mask);
  ASSERT_TRUE(written);
  struct stat info {};
  ASSERT_EQ(::stat(path("out").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640U);
}

TEST_F(Files, ALinkOfAnotherUserIsNotWrittenThrough) {
  write("precious", "mine");
  fs::create_symlink("precious", path("out"));
  if (::geteuid() != 0 || ::lchown(path("out").c_str(), 12345, 12345) != 0)
    GTEST_SKIP() << "only root can make a link of another user";
  const Status status = OutputFile::open(path("out")).status();
  EXPECT_EQ(status.message(),
            path("out") + " cannot be written: it is a link that another user made.");
  EXPECT_EQ(read("precious"), "mine");
}

TEST_F(Files, CreatesOnlyNewFilesInsideAFolder) {
  write("precious", "mine");
  fs::create_symlink("precious", path("link"));
  EXPECT_FALSE(OutputFile::create_inside(descriptor_, "precious").ok());
  EXPECT_FALSE(OutputFile::create_inside(descriptor_, "link").ok());
  EXPECT_EQ(read("precious"), "mine");
  Result<OutputFile> file = OutputFile::create_inside(descriptor_, "new");
  ASSERT_TRUE(file.ok() && file->write("x").ok() && file->commit().ok());
  EXPECT_EQ(read("new"), "x");
}

TEST(BoundedJson, MeasuresNestingBeforeItParses) {
  EXPECT_EQ(nesting_of("1"), 0);
  EXPECT_EQ(nesting_of(R"({"a": [1, {"b": []}], "c": [[2]]})"), 4);
  EXPECT_EQ(nesting_of(R"(["[[[[", "\"[[[[", "\\"])"), 1) << "brackets in strings";
  EXPECT_EQ(parse_bounded("[[1]]", 2), nlohmann::json::parse("[[1]]"));
  EXPECT_TRUE(parse_bounded("[[1]]", 1).is_discarded());
  EXPECT_TRUE(parse_bounded("[1", 1).is_discarded());
}

}  // namespace
}  // namespace octavo
