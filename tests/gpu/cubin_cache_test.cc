// SPDX-License-Identifier: Apache-2.0
// The cache in one process: what is loaded, damaged and foreign entries, and unusable caches, which
// must not cause failures.
#include "gpu/jit/cubin_cache.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "gpu/cache_kernels.h"
#include "gpu/jit/kernel_archive.h"
#include "gpu/temporary_directory.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class CubinCacheTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  const CubinCache cache_{directory_.path() + "/a/b"};
  const std::string key_ = fake_key("one");
  const CompiledKernel kernel_ = fake_kernel("one");
  std::string entry() const { return cache_.root() + "/" + key_; }

  static std::string read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  // Ends with 0 if the damaged entry is listed as such without much memory.
  void list_in_little_memory() const {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    const auto list = cache_.list();
    getrusage(RUSAGE_SELF, &after);
    constexpr long kMostKiB = 64 << 10;
    const bool small = after.ru_maxrss - before.ru_maxrss < kMostKiB;
    _exit(small && list.ok() && !(*list)[0].status.ok() ? 0 : 1);
  }
  // A damaged entry is not loaded, but removed and rebuilt, and is then complete again.
  void expect_rebuilt(const std::string& why) {
    const Result<CompiledKernel> loaded = cache_.load(key_);
    EXPECT_FALSE(loaded.ok()) << why;
    EXPECT_EQ(loaded.status().code(), ErrorCode::io_error) << why;
    EXPECT_FALSE(fs::exists(entry())) << why;
    int compiled = 0;
    const auto compile = [&]() -> Result<CompiledKernel> { return ++compiled, kernel_; };
    ASSERT_TRUE(get_or_compile(cache_, key_, compile).ok()) << why;
    EXPECT_EQ(compiled, 1) << why;
    ASSERT_TRUE(cache_.load(key_).ok()) << why;
    EXPECT_EQ(cache_.load(key_)->image, kernel_.image) << why;
  }
};

TEST_F(CubinCacheTest, LoadsWhatWasStored) {
  EXPECT_EQ(cache_.load(key_).status().code(), ErrorCode::unsupported);
  ASSERT_TRUE(cache_.store(key_, kernel_).ok()) << cache_.store(key_, kernel_).message();
  const Result<CompiledKernel> loaded = cache_.load(key_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->image, kernel_.image);
  EXPECT_EQ(loaded->name_expression, kernel_.name_expression);
  EXPECT_EQ(loaded->lowered_name, kernel_.lowered_name);
  EXPECT_EQ(loaded->options, kernel_.options);
  EXPECT_EQ(loaded->compiler, kernel_.compiler);
  EXPECT_EQ(loaded->arch, kernel_.arch);
  EXPECT_EQ(loaded->compile_ms, kernel_.compile_ms);
  EXPECT_FALSE(loaded->ptx);
  EXPECT_TRUE(cache_.store(key_, kernel_).ok()) << "a second time: the race that is lost";
}

TEST_F(CubinCacheTest, KeepsPtxToo) {
  CompiledKernel ptx = kernel_;
  ptx.ptx = true;
  ASSERT_TRUE(cache_.store(key_, ptx).ok());
  EXPECT_TRUE(fs::exists(entry() + "/kernel.ptx"));
  ASSERT_TRUE(cache_.load(key_).ok());
  EXPECT_TRUE(cache_.load(key_)->ptx);
}

TEST_F(CubinCacheTest, IsPrivateToItsOwner) {
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  const auto mode = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode(cache_.root()), 0700u);
  EXPECT_EQ(mode(directory_.path() + "/a"), 0700u);
  EXPECT_EQ(mode(entry()), 0700u);
  EXPECT_EQ(mode(entry() + "/kernel.cubin"), 0600u);
  EXPECT_EQ(mode(entry() + "/meta.json"), 0600u);
}

TEST_F(CubinCacheTest, TruncatedEntriesAreRebuilt) {
  for (const char* file : {"/kernel.cubin", "/meta.json"}) {
    ASSERT_TRUE(cache_.store(key_, kernel_).ok());
    const std::string whole = read(entry() + file);
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
      write(entry() + file, whole.substr(0, size));
      // meta.json without its last newline is still the same JSON.
      if (std::string_view(file) == "/meta.json" && size == whole.size() - 1) {
        EXPECT_TRUE(cache_.load(key_).ok());
        continue;
      }
      expect_rebuilt(file + std::to_string(size));
    }
  }
}

TEST_F(CubinCacheTest, TamperedEntriesAreRebuilt) {
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  std::string image = read(entry() + "/kernel.cubin");
  image[image.size() / 3] ^= 1;
  write(entry() + "/kernel.cubin", image);
  expect_rebuilt("a bit of the image");

  for (const char* field : {"name_expression", "lowered_name", "options", "compiler", "sha256"}) {
    nlohmann::ordered_json meta = nlohmann::ordered_json::parse(read(entry() + "/meta.json"));
    meta[field] = "other";
    write(entry() + "/meta.json", meta.dump());
    expect_rebuilt(field);
  }
  for (const char* text :
       {"", "{}", "[]", "null", "{\"sha256\":1}", "\xff\xfe", "{\"arch\":1e99}"}) {
    write(entry() + "/meta.json", text);
    expect_rebuilt(text);
  }
}

// A test that waits for a writer of the FIFO has failed, without stopping the others.
TEST_F(CubinCacheTest, FifosAreNotRead) {
  for (const char* file : {"/meta.json", "/kernel.cubin"}) {
    ASSERT_TRUE(cache_.store(key_, kernel_).ok());
    fs::remove(entry() + file);
    ASSERT_EQ(mkfifo((entry() + file).c_str(), 0600), 0);
    EXPECT_EXIT(
        {
          alarm(20);
          const auto list = cache_.list();
          const bool listed = list.ok() && list->size() == 1 &&
                              (*list)[0].status.ok() == (std::string_view(file) != "/meta.json");
          _exit(listed && !cache_.load(key_).ok() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << file;
    fs::remove_all(entry());
  }
}

TEST_F(CubinCacheTest, BracketsInMetaTakeNoMemory) {
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  for (const std::size_t size : {std::size_t{60} << 10, std::size_t{48} << 20}) {
    write(entry() + "/meta.json", std::string(size, '['));
    EXPECT_EXIT(list_in_little_memory(), testing::ExitedWithCode(0), "") << size;
  }
  expect_rebuilt("brackets");
}

TEST_F(CubinCacheTest, EntryUnderAnotherKeyIsRefused) {
  const std::string other = fake_key("two");
  ASSERT_TRUE(cache_.store(other, fake_kernel("two")).ok());
  fs::rename(cache_.root() + "/" + other, entry());
  expect_rebuilt("the entry of another kernel");
}

TEST_F(CubinCacheTest, MissingFilesFilesAndLinksInPlaceOfAnEntry) {
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  fs::remove(entry() + "/kernel.cubin");
  expect_rebuilt("no image");
  fs::remove(entry() + "/meta.json");
  expect_rebuilt("no meta.json");

  fs::remove_all(entry());
  write(entry(), "a file");
  expect_rebuilt("a file");

  const CubinCache elsewhere(directory_.path() + "/elsewhere");
  ASSERT_TRUE(elsewhere.store(key_, kernel_).ok());
  fs::remove_all(entry());
  fs::create_directory_symlink(elsewhere.root() + "/" + key_, entry());
  expect_rebuilt("a link to a good entry");
  EXPECT_TRUE(elsewhere.load(key_).ok()) << "what the link pointed to is untouched";

  fs::remove(entry() + "/kernel.cubin");
  fs::create_symlink(elsewhere.root() + "/" + key_ + "/kernel.cubin", entry() + "/kernel.cubin");
  expect_rebuilt("a link to a good image");
}

TEST_F(CubinCacheTest, KeysAreNotPaths) {
  for (const char* key : {"", "..", "../x", "/etc", "ABC", "abc"}) {
    EXPECT_FALSE(cache_.store(key, kernel_).ok()) << key;
    EXPECT_EQ(cache_.load(key).status().code(), ErrorCode::unsupported) << key;
  }
}

TEST_F(CubinCacheTest, EntriesOfOtherUsersAreIgnored) {
  if (geteuid() != 0) GTEST_SKIP() << "giving an entry to another user needs root";
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  ASSERT_EQ(chown(entry().c_str(), 12345, 12345), 0);
  EXPECT_FALSE(cache_.load(key_).ok());
  EXPECT_TRUE(fs::exists(entry())) << "it is not ours to remove";
  const auto compile = [&]() -> Result<CompiledKernel> { return kernel_; };
  const Result<Cached> got = get_or_compile(cache_, key_, compile);
  ASSERT_TRUE(got.ok());
  EXPECT_FALSE(got->from_disk);
  EXPECT_NE(got->note.find("another user"), std::string::npos) << got->note;

  ASSERT_EQ(chown(entry().c_str(), 0, 0), 0);
  ASSERT_TRUE(cache_.load(key_).ok());
  ASSERT_EQ(chown((entry() + "/kernel.cubin").c_str(), 12345, 12345), 0);
  EXPECT_FALSE(cache_.load(key_).ok());
}

// With every unusable cache the kernel is still compiled, with a note.
void expect_works_without(const CubinCache& cache) {
  const CompiledKernel kernel = fake_kernel("one");
  const auto compile = [&]() -> Result<CompiledKernel> { return kernel; };
  const Result<Cached> got = get_or_compile(cache, fake_key("one"), compile);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->kernel.image, kernel.image);
  EXPECT_FALSE(got->from_disk);
  EXPECT_FALSE(got->note.empty());
}

TEST_F(CubinCacheTest, AReadOnlyDirectory) {
  ASSERT_TRUE(cache_.store(fake_key("two"), fake_kernel("two")).ok());
  if (geteuid() != 0) {
    ASSERT_EQ(chmod(cache_.root().c_str(), 0500), 0);
    expect_works_without(cache_);
    EXPECT_TRUE(cache_.load(fake_key("two")).ok()) << "what is there can be read";
    ASSERT_EQ(chmod(cache_.root().c_str(), 0700), 0);
    return;
  }
  // Root may write anywhere, so another user tries, in a separate process.
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(12345) != 0 || setuid(12345) != 0) _exit(3);
    expect_works_without(cache_);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CubinCacheTest, NoCacheDirectory) {
  expect_works_without(CubinCache(""));
  expect_works_without(CubinCache("/proc/octavo"));
  expect_works_without(CubinCache("/dev/null/octavo"));
  write(directory_.path() + "/file", "x");
  expect_works_without(CubinCache(directory_.path() + "/file"));
}

TEST_F(CubinCacheTest, AFullDisk) {
  const std::string disk = directory_.path() + "/disk";
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=128k,mode=0700") != 0) {
    GTEST_SKIP() << "a small disk cannot be mounted here";
  }
  {
    const CubinCache cache(disk + "/cache");
    EXPECT_TRUE(cache.store(fake_key("small"), fake_kernel("small", 20000)).ok());
    const CompiledKernel large = fake_kernel("large", 500000);
    const auto compile = [&]() -> Result<CompiledKernel> { return large; };
    const Result<Cached> got = get_or_compile(cache, fake_key("large"), compile);
    EXPECT_TRUE(got.ok());
    EXPECT_TRUE(got.ok() && got->kernel.image == large.image);
    EXPECT_TRUE(got.ok() && got->note.find("No space left") != std::string::npos);
    EXPECT_TRUE(cache.load(fake_key("small")).ok());
    EXPECT_EQ(cache.load(fake_key("large")).status().code(), ErrorCode::unsupported);
    // An entry that did not fit was removed again.
    EXPECT_EQ(std::distance(fs::directory_iterator(cache.root()), fs::directory_iterator()), 1);
  }
  EXPECT_EQ(umount(disk.c_str()), 0);
}

TEST_F(CubinCacheTest, ListsAndRemoves) {
  EXPECT_TRUE(cache_.list().ok());
  EXPECT_TRUE(cache_.list()->empty());
  EXPECT_EQ(*cache_.remove(""), 0);
  for (const char* name : {"one", "two", "three"}) {
    ASSERT_TRUE(cache_.store(fake_key(name), fake_kernel(name)).ok());
  }
  fs::create_directory(cache_.root() + "/not-an-entry");
  write(entry() + "/meta.json", "{}");
  const Result<std::vector<CubinCache::Entry>> list = cache_.list();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 3u);
  for (const CubinCache::Entry& entry : *list) {
    EXPECT_EQ(entry.status.ok(), entry.key != key_) << entry.key;
    EXPECT_GE(entry.bytes, 50000u);
    EXPECT_GT(entry.modified, 0);
  }
  EXPECT_EQ(*cache_.remove(key_.substr(0, 12)), 1);
  EXPECT_EQ(cache_.list()->size(), 2u);
  EXPECT_EQ(*cache_.remove("not-an-entry"), 0);
  EXPECT_EQ(*cache_.remove(""), 2);
  EXPECT_TRUE(cache_.list()->empty());
  EXPECT_TRUE(fs::exists(cache_.root() + "/not-an-entry"));
}

TEST_F(CubinCacheTest, OldTemporaryFilesAreRemoved) {
  ASSERT_TRUE(cache_.store(fake_key("two"), fake_kernel("two")).ok());
  // No process has these numbers.
  const std::string old_one = cache_.root() + "/.tmp-99999998-1";
  const std::string new_one = cache_.root() + "/.tmp-99999999-1";
  for (const std::string& path : {old_one, new_one}) {
    fs::create_directory(path);
    write(path + "/kernel.cubin", "half");
  }
  fs::last_write_time(old_one, fs::file_time_type::clock::now() - std::chrono::hours(2));
  ASSERT_TRUE(cache_.store(key_, kernel_).ok());
  EXPECT_FALSE(fs::exists(old_one));
  EXPECT_TRUE(fs::exists(new_one)) << "its writer may still be at work";
  EXPECT_EQ(*cache_.remove(""), 2);
  EXPECT_FALSE(fs::exists(new_one));
}

TEST_F(CubinCacheTest, AFailedCompilationStoresNothing) {
  const auto compile = []() -> Result<CompiledKernel> {
    return Status(ErrorCode::device_error, "no");
  };
  EXPECT_EQ(get_or_compile(cache_, key_, compile).status().message(), "no");
  EXPECT_TRUE(cache_.list()->empty());
}

TEST_F(CubinCacheTest, LoadsInUnderFiveMilliseconds) {
  ASSERT_TRUE(cache_.store(key_, fake_kernel("one", 200000)).ok());
  double best_ms = 1e9;  // the best of several: the machine may be busy
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(cache_.load(key_).ok());
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, took.count());
  }
  RecordProperty("best_ms", std::to_string(best_ms));
#if defined(NDEBUG)
  EXPECT_LT(best_ms, 5.0);
#endif
}

TEST(CubinCache, DefaultRootFollowsTheEnvironment) {
  const auto keep = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  const std::string home = keep("HOME"), xdg = keep("XDG_CACHE_HOME"),
                    own = keep("OCTAVO_CACHE_DIR");
  setenv("HOME", "/h", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("OCTAVO_CACHE_DIR", "/o", 1);
  EXPECT_EQ(CubinCache::default_root(), "/o");
  unsetenv("OCTAVO_CACHE_DIR");
  EXPECT_EQ(CubinCache::default_root(), "/x/octavo");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CubinCache::default_root(), "/h/.cache/octavo");
  unsetenv("HOME");
  EXPECT_EQ(CubinCache::default_root(), "");
  if (!home.empty()) setenv("HOME", home.c_str(), 1);
  if (!xdg.empty()) setenv("XDG_CACHE_HOME", xdg.c_str(), 1);
  if (!own.empty()) setenv("OCTAVO_CACHE_DIR", own.c_str(), 1);
}

TEST(CacheKey, CoversEveryInput) {
  const KernelSource source = kernel_source(Sm80ForwardConfig{});
  const std::string key = cache_key(source, "NVRTC 13.0");
  EXPECT_EQ(key.size(), 64u);
  EXPECT_EQ(cache_key(source, "NVRTC 13.0"), key);
  EXPECT_NE(cache_key(source, "NVRTC 12.9"), key);
  EXPECT_NE(cache_key(kernel_source(Sm80ForwardConfig{}, true), "NVRTC 13.0"), key);
  Sm80ForwardConfig other;
  other.stages = 3;
  EXPECT_NE(cache_key(kernel_source(other), "NVRTC 13.0"), key);
  KernelSource changed = source;
  changed.arch = 89;
  EXPECT_NE(cache_key(changed, "NVRTC 13.0"), key);
  changed = source;
  changed.include = "config/element.h";
  EXPECT_NE(cache_key(changed, "NVRTC 13.0"), key);
}

}  // namespace
}  // namespace octavo
