// SPDX-License-Identifier: Apache-2.0
// Reads and writes cache entries. All files are accessed by file descriptor, so every check is made
// on the file that is then used, and no symbolic link is followed below the root.
#include "gpu/jit/cubin_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <span>

#include "gpu/jit/kernel_archive.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

constexpr std::size_t kKeyLength = 64;
constexpr std::uint64_t kLargestImage = 64 << 20;  // a typical cubin has 50 KB
constexpr std::uint64_t kLargestMeta = 64 << 10;   // and its meta.json 2 KB
constexpr std::string_view kTemporary = ".tmp-";
// A writer takes milliseconds; older temporary files were left by a killed writer.
constexpr std::time_t kStaleSeconds = 3600;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

Status io_error(std::string_view action, std::string_view path) {
  return {ErrorCode::io_error,
          fmt::format("The kernel cache cannot {} {}: {}.", action, path, std::strerror(errno))};
}

Descriptor open_directory(int at, const char* name) {
  return Descriptor(openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool is_key(std::string_view name) {
  return name.size() == kKeyLength &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  const int copy = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = copy < 0 ? nullptr : fdopendir(copy);
  if (stream == nullptr) {
    if (copy >= 0) close(copy);
    return names;
  }
  while (const dirent* const entry = readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(stream);
  return names;
}

// An entry holds only files. If it contains anything else, the entry is kept.
bool remove_directory(int root, const std::string& name) {
  {
    const Descriptor directory = open_directory(root, name.c_str());
    if (!directory.ok()) return unlinkat(root, name.c_str(), 0) == 0;
    for (const std::string& file : names_in(directory.get())) {
      unlinkat(directory.get(), file.c_str(), 0);
    }
  }
  return unlinkat(root, name.c_str(), AT_REMOVEDIR) == 0;
}

std::string temporary_name() {
  static std::atomic<unsigned> count{0};
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return fmt::format("{}{}-{}-{}", kTemporary, getpid(), now.tv_nsec, count++);
}

// Renames the entry first, so that no process sees half of it.
bool remove_entry(int root, const std::string& key) {
  const std::string temporary = temporary_name();
  if (renameat(root, key.c_str(), root, temporary.c_str()) != 0) return false;
  remove_directory(root, temporary);
  return true;
}

// The process that wrote a temporary name; 0 if the name has none.
pid_t writer_of(std::string_view name) {
  pid_t pid = 0;
  name.remove_prefix(std::min(name.size(), kTemporary.size()));
  std::from_chars(name.data(), name.data() + name.size(), pid);
  return pid;
}

// Removes old temporary entries and, with `of_the_dead`, those of processes that no longer exist.
void remove_leftovers(int root, bool of_the_dead) {
  const std::time_t now = std::time(nullptr);
  for (const std::string& name : names_in(root)) {
    struct stat info {};
    if (!name.starts_with(kTemporary) ||
        fstatat(root, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    const bool dead = of_the_dead && kill(writer_of(name), 0) != 0 && errno == ESRCH;
    if (dead || now - info.st_mtime >= kStaleSeconds) remove_directory(root, name);
  }
}

// Adds the name of the file to an error of the reader or the writer.
Status in_entry(std::string_view name, const Status& status) {
  return {status.code(), fmt::format("The cache entry's {} {}", name, status.message())};
}

Result<InputFile> open_file(int directory, std::string_view name, std::uint64_t most_bytes) {
  Result<InputFile> file = InputFile::open_inside(directory, name);
  if (!file.ok()) return in_entry(name, file.status());
  if (file->owner() != geteuid() || file->size() > most_bytes) {
    return Status(ErrorCode::io_error,
                  fmt::format("The cache entry's {} was not written by Octavo.", name));
  }
  return file;
}

Result<std::string> read_meta(int directory) {
  constexpr std::string_view kName = "meta.json";
  const Result<InputFile> file = open_file(directory, kName, kLargestMeta);
  if (!file.ok()) return file.status();
  Result<std::string> text = file->read_all(kLargestMeta);
  return text.ok() ? text : in_entry(kName, text.status());
}

Result<std::vector<std::byte>> read_image(int directory, std::string_view name) {
  const Result<InputFile> file = open_file(directory, name, kLargestImage);
  if (!file.ok()) return file.status();
  std::vector<std::byte> bytes(file->size());
  const Status status = file->read(0, bytes);
  return status.ok() ? Result<std::vector<std::byte>>(std::move(bytes)) : in_entry(name, status);
}

Status write_file(int directory, const std::string& name, std::span<const std::byte> bytes) {
  Result<OutputFile> file = OutputFile::create_inside(directory, name);
  Status status = file.status();
  if (status.ok()) status = file->write(bytes);
  if (status.ok()) status = file->commit();
  return status.ok() ? status
                     : Status(status.code(), fmt::format("The kernel cache: {}", status.message()));
}

Result<CompiledKernel> read_entry(int directory, std::string_view key) {
  const Result<std::string> meta = read_meta(directory);
  if (!meta.ok()) return meta.status();
  const Result<CompiledKernel> described = parse_meta(key, *meta);
  if (!described.ok()) return described;
  Result<std::vector<std::byte>> image = read_image(directory, image_name(described->ptx));
  if (!image.ok()) return image.status();
  return parse_entry(key, *meta, std::move(*image));
}

// Creates the root and its missing parents, accessible only by the owner.
Descriptor create_root(const std::string& root) {
  for (std::size_t slash = root.find('/', 1); slash != std::string::npos;
       slash = root.find('/', slash + 1)) {
    mkdir(root.substr(0, slash).c_str(), 0700);
  }
  mkdir(root.c_str(), 0700);
  return Descriptor(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

Status write_entry(int root, const std::string& temporary, std::string_view key,
                   const CompiledKernel& kernel) {
  const Descriptor directory = open_directory(root, temporary.c_str());
  if (!directory.ok()) return io_error("open", temporary);
  if (Status status = write_file(directory.get(), image_name(kernel.ptx), kernel.image);
      !status.ok()) {
    return status;
  }
  const std::string meta = meta_text(key, kernel);
  if (Status status = write_file(directory.get(), "meta.json", std::as_bytes(std::span(meta)));
      !status.ok()) {
    return status;
  }
  return fsync(directory.get()) == 0 ? Status() : io_error("write", temporary);
}

CubinCache::Entry describe_entry(int root, const std::string& key) {
  CubinCache::Entry entry;
  entry.key = key;
  const Descriptor directory = open_directory(root, key.c_str());
  struct stat info {};
  if (!directory.ok() || fstat(directory.get(), &info) != 0) {
    entry.status = io_error("open", key);
    return entry;
  }
  entry.modified = info.st_mtime;
  for (const std::string& name : names_in(directory.get())) {
    if (fstatat(directory.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      entry.bytes += static_cast<std::uint64_t>(info.st_size);
    }
  }
  const Result<std::string> meta = read_meta(directory.get());
  if (!meta.ok()) {
    entry.status = meta.status();
    return entry;
  }
  Result<CompiledKernel> kernel = parse_meta(key, *meta);
  entry.status = kernel.status();
  if (kernel.ok()) entry.kernel = std::move(*kernel);
  return entry;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string CubinCache::default_root() {
  if (const std::string root = environment("OCTAVO_CACHE_DIR"); !root.empty()) return root;
  if (const std::string base = environment("XDG_CACHE_HOME"); !base.empty()) {
    return base + "/octavo";
  }
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/octavo";
}

Result<CompiledKernel> CubinCache::load(std::string_view key) const {
  const Status absent(ErrorCode::unsupported, "The kernel is not in the cache.");
  const std::string name(key);
  if (root_.empty() || !is_key(key)) return absent;
  const Descriptor root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok()) return absent;
  const Descriptor directory = open_directory(root.get(), name.c_str());
  if (!directory.ok() && errno == ENOENT) return absent;
  struct stat info {};
  if (directory.ok() && fstat(directory.get(), &info) == 0 && info.st_uid != geteuid()) {
    return Status(ErrorCode::io_error,
                  fmt::format("The cache entry {} belongs to another user and is ignored.", key));
  }
  Result<CompiledKernel> kernel = read_entry(directory.get(), key);
  // The entry disappeared during the read: another process removed it.
  if (!kernel.ok() && faccessat(root.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0) {
    return absent;
  }
  if (!kernel.ok()) remove_entry(root.get(), name);
  return kernel;
}

Status CubinCache::store(std::string_view key, const CompiledKernel& kernel) const {
  if (root_.empty()) {
    return {ErrorCode::io_error,
            "The kernel cache has no directory: none of OCTAVO_CACHE_DIR, XDG_CACHE_HOME, HOME is "
            "set."};
  }
  if (!is_key(key)) return {ErrorCode::io_error, "The kernel cache takes only its own keys."};
  const Descriptor root = create_root(root_);
  if (!root.ok()) return io_error("open", root_);
  remove_leftovers(root.get(), false);
  const std::string temporary = temporary_name();
  if (mkdirat(root.get(), temporary.c_str(), 0700) != 0) return io_error("write to", root_);
  Status status = write_entry(root.get(), temporary, key, kernel);
  if (status.ok() &&
      renameat(root.get(), temporary.c_str(), root.get(), std::string(key).c_str()) == 0) {
    return fsync(root.get()) == 0 ? Status() : io_error("write to", root_);
  }
  const bool lost_race = status.ok() && (errno == EEXIST || errno == ENOTEMPTY);
  if (status.ok() && !lost_race) status = io_error("rename an entry in", root_);
  remove_directory(root.get(), temporary);
  return status;
}

Result<std::vector<CubinCache::Entry>> CubinCache::list() const {
  std::vector<Entry> entries;
  const Descriptor root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok() && (errno == ENOENT || root_.empty())) return entries;
  if (!root.ok()) return io_error("open", root_);
  for (const std::string& name : names_in(root.get())) {
    if (is_key(name)) entries.push_back(describe_entry(root.get(), name));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.modified, a.key) < std::pair(b.modified, b.key);
  });
  return entries;
}

Result<int> CubinCache::remove(std::string_view prefix) const {
  const Descriptor root(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.ok() && (errno == ENOENT || root_.empty())) return 0;
  if (!root.ok()) return io_error("open", root_);
  int removed = 0;
  for (const std::string& name : names_in(root.get())) {
    if (!is_key(name) || !name.starts_with(prefix)) continue;
    if (remove_entry(root.get(), name))
      ++removed;
    else if (errno != ENOENT)  // ENOENT: another process removed it first
      return io_error("remove", name);
  }
  if (prefix.empty()) remove_leftovers(root.get(), true);
  return removed;
}

Result<Cached> get_or_compile(const CubinCache& cache, std::string_view key,
                              const std::function<Result<CompiledKernel>()>& compile) {
  Cached cached;
  Result<CompiledKernel> loaded = cache.load(key);
  if (loaded.ok()) {
    cached.kernel = std::move(*loaded);
    cached.from_disk = true;
    return cached;
  }
  if (loaded.status().code() != ErrorCode::unsupported) cached.note = loaded.status().message();
  Result<CompiledKernel> compiled = compile();
  if (!compiled.ok()) return compiled.status();
  cached.kernel = std::move(*compiled);
  if (const Status stored = cache.store(key, cached.kernel); !stored.ok()) {
    cached.note = stored.message();
  }
  return cached;
}

Result<CompiledKernel> load_of_any_compiler(const CubinCache& cache, const KernelSource& source) {
  const Result<std::vector<CubinCache::Entry>> entries = cache.list();
  if (!entries.ok()) return entries.status();
  for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
    if (!entry->status.ok() || entry->key != cache_key(source, entry->kernel.compiler)) continue;
    Result<CompiledKernel> kernel = cache.load(entry->key);
    if (kernel.ok()) return kernel;
  }
  return Status(ErrorCode::unsupported, "The kernel is not in the cache.");
}

}  // namespace octavo
