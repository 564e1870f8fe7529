// SPDX-License-Identifier: Apache-2.0
// Reads the files of a bundle from a folder or a tar archive, and writes them.
//
// Archives are parsed here and not unpacked by tar, which would create links, devices and files of
// any size, and for two members of the same name would keep the last.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "evidence/gates/bundle.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

namespace fs = std::filesystem;
using evidence::is_bundle_path;
using evidence::kManifest;

Status too_large() {
  return invalid("bundle", "larger",
                 fmt::format("up to {} MiB in {} files", kMostBundleBytes >> 20, kMostBundleFiles));
}

// Counts what a bundle holds, before it is allocated.
class Budget {
 public:
  bool take(std::uint64_t bytes) {
    if (files_ == kMostBundleFiles || bytes > kMostBundleBytes - bytes_) return false;
    ++files_;
    bytes_ += bytes;
    return true;
  }

 private:
  std::size_t files_ = 0;
  std::uint64_t bytes_ = 0;
};

class Directory {
 public:
  explicit Directory(int descriptor) : stream_(descriptor < 0 ? nullptr : ::fdopendir(descriptor)) {
    if (stream_ == nullptr && descriptor >= 0) ::close(descriptor);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() {
    if (stream_ != nullptr) ::closedir(stream_);
  }
  bool ok() const { return stream_ != nullptr; }
  int descriptor() const { return ::dirfd(stream_); }
  // The names in a folder, sorted, so that messages do not depend on the file system. Stops at one
  // name more than are allowed.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    while (const dirent* const entry = ::readdir(stream_)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      if (names.size() > kMostBundleFiles) break;
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  DIR* stream_;
};

constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

class FolderReader {
 public:
  Status read(const Directory& directory, const std::string& prefix, int depth) {
    constexpr int kDeepest = 8;
    if (!directory.ok() || depth > kDeepest)
      return invalid("bundle", fmt::format("the folder \"{}\"", prefix),
                     "up to 8 folders inside each other that can be read");
    for (const std::string& name : directory.names()) {
      struct stat info {};
      if (::fstatat(directory.descriptor(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
        continue;  // it was removed
      if (S_ISDIR(info.st_mode)) {
        const Directory inner(
            ::openat(directory.descriptor(), name.c_str(), kDirectoryFlags | O_NOFOLLOW));
        if (!budget_.take(0)) return too_large();
        OCTAVO_RETURN_IF_ERROR(read(inner, prefix + name + "/", depth + 1));
      } else {
        OCTAVO_RETURN_IF_ERROR(add(directory, name, prefix + name));
      }
    }
    return {};
  }
  Bundle take() { return std::move(bundle_); }

 private:
  Status add(const Directory& directory, const std::string& name, const std::string& path) {
    const Result<InputFile> file = InputFile::open_inside(directory.descriptor(), name);
    if (!budget_.take(file.ok() ? file->size() : 0)) return too_large();
    if (!file.ok()) {
      bundle_.irregular.insert(path);
      return {};
    }
    Result<std::string> text = file->read_all(kMostBundleBytes);
    if (!text.ok())
      return invalid("bundle", fmt::format("\"{}\", which {}", path, text.status().message()),
                     "files that can be read");
    bundle_.files[path] = std::move(*text);
    return {};
  }

  Bundle bundle_;
  Budget budget_;
};

// --- tar: blocks of 512 bytes, a header before each member (POSIX ustar, and GNU's and pax's long
// names).
constexpr std::size_t kBlock = 512;

Status bad_archive(std::string_view what) {
  return invalid("bundle", fmt::format("an archive with {}", what), "a .tar.gz of repro.sh");
}

struct Member {
  std::string path;
  char type = 0;
  std::string_view content;
};

std::string_view field(std::string_view header, std::size_t at, std::size_t size) {
  const std::string_view text = header.substr(at, size);
  return text.substr(0, text.find('\0'));
}

std::optional<std::uint64_t> octal(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool checksum_holds(std::string_view header) {
  constexpr std::size_t kSum = 148, kSumBytes = 8;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i)
    sum += i >= kSum && i < kSum + kSumBytes ? ' ' : static_cast<unsigned char>(header[i]);
  return octal(field(header, kSum, kSumBytes)) == sum;
}

// The value of `key` in a pax header, which has lines of "<length> <key>=<value>\n".
std::optional<std::string> pax_value(std::string_view text, std::string_view key) {
  std::optional<std::string> found;
  while (!text.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || length < digits + 2 || length > text.size()) return std::nullopt;
    const std::string_view line = text.substr(digits + 1, length - digits - 2);
    if (line.starts_with(key) && line.substr(key.size()).starts_with('='))
      found = line.substr(key.size() + 1);
    text.remove_prefix(length);
  }
  return found;
}

class ArchiveReader {
 public:
  explicit ArchiveReader(std::string_view tar) : rest_(tar) {}

  Result<Bundle> read() {
    while (true) {
      if (rest_.size() < kBlock) return bad_archive("no end");
      if (rest_.find_first_not_of('\0') == std::string_view::npos) break;
      Result<Member> member = next();
      if (!member.ok()) return member.status();
      OCTAVO_RETURN_IF_ERROR(add(std::move(*member)));
    }
    return without_top_folder();
  }

 private:
  Result<Member> next() {
    const std::string_view header = rest_.substr(0, kBlock);
    if (!checksum_holds(header)) return bad_archive("a damaged header");
    const std::optional<std::uint64_t> size = octal(field(header, 124, 12));
    rest_.remove_prefix(kBlock);
    // The data take whole blocks. The comparison avoids a sum that could overflow.
    if (!size || *size > rest_.size() || (*size + kBlock - 1) / kBlock > rest_.size() / kBlock)
      return bad_archive("a member of impossible size");
    Member member;
    member.type = header[156];
    member.path = field(header, 0, 100);
    const std::string_view prefix = field(header, 345, 155);
    // GNU's own format has "ustar  " here, and other fields in place of the prefix.
    if (header.substr(257, 6) == std::string_view("ustar\0", 6) && !prefix.empty())
      member.path = fmt::format("{}/{}", prefix, member.path);
    member.content = rest_.substr(0, *size);
    rest_.remove_prefix((*size + kBlock - 1) / kBlock * kBlock);
    return member;
  }

  Status add(Member member) {
    if (member.type == 'g') return {};  // comments on the archive
    if (member.type == 'L' || member.type == 'x') {
      const std::optional<std::string> name =
          member.type == 'L' ? std::string(field(member.content, 0, member.content.size()))
                             : pax_value(member.content, "path");
      if (member.type == 'x' && pax_value(member.content, "size"))
        return bad_archive("a member of impossible size");
      if (name) long_name_ = *name;
      return {};
    }
    if (!long_name_.empty()) member.path = std::exchange(long_name_, {});
    std::string_view path = member.path;
    while (path.starts_with("./")) path.remove_prefix(2);
    while (path.ends_with('/')) path.remove_suffix(1);
    if (member.type == '5' && (path.empty() || path == ".")) return {};
    if (!is_bundle_path(path))
      return bad_archive(fmt::format("the path \"{}\"", path.substr(0, 100)));
    if (!budget_.take(member.content.size())) return too_large();
    if (member.type == '5') return {};
    const bool regular = member.type == '0' || member.type == '\0';
    const bool added = regular ? all_.files.try_emplace(std::string(path), member.content).second
                               : all_.irregular.insert(std::string(path)).second;
    if (!added || (regular ? all_.irregular.contains(std::string(path))
                           : all_.files.contains(std::string(path))))
      return bad_archive(fmt::format("two members of the name \"{}\"", path));
    return {};
  }

  // All members must be in one folder: a second one would have its own manifest.
  Result<Bundle> without_top_folder() {
    if (all_.files.contains(std::string(kManifest))) return std::move(all_);
    Bundle bundle;
    std::string top;
    const auto inner = [&top](const std::string& path) {
      const std::size_t slash = path.find('/');
      if (slash == std::string::npos) return std::string();
      if (top.empty()) top = path.substr(0, slash + 1);
      return path.starts_with(top) ? path.substr(top.size()) : std::string();
    };
    const Status several = bad_archive("more than one folder");
    for (auto& [path, content] : all_.files) {
      const std::string name = inner(path);
      if (name.empty()) return several;
      bundle.files[name] = std::move(content);
    }
    for (const std::string& path : all_.irregular) {
      const std::string name = inner(path);
      if (name.empty()) return several;
      bundle.irregular.insert(name);
    }
    if (!bundle.files.contains(std::string(kManifest))) return bad_archive("no manifest.yaml");
    return bundle;
  }

  std::string_view rest_;
  std::string long_name_;  // of the next member
  Bundle all_;
  Budget budget_;
};

// Returns the folder itself or, if it has no manifest, its only entry.
fs::path folder_with_manifest(const std::string& folder) {
  const fs::path path(folder);
  std::error_code error;
  if (fs::exists(fs::symlink_status(path / kManifest, error))) return path;
  const Directory directory(::open(folder.c_str(), kDirectoryFlags));
  if (!directory.ok()) return path;
  const std::vector<std::string> names = directory.names();
  return names.size() == 1 ? path / names.front() : path;
}

}  // namespace

bool evidence::is_bundle_path(std::string_view path) {
  constexpr std::size_t kLongest = 1000;
  if (path.empty() || path.size() > kLongest || path.find('\0') != std::string_view::npos)
    return false;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

Result<Bundle> read_bundle_folder(const std::string& folder) {
  return without_exceptions([&]() -> Result<Bundle> {
    const Directory directory(::open(folder_with_manifest(folder).c_str(), kDirectoryFlags));
    if (!directory.ok() || !InputFile::open_inside(directory.descriptor(), kManifest).ok())
      return invalid("bundle", fmt::format("\"{}\"", folder), "a folder with a manifest.yaml");
    FolderReader reader;
    OCTAVO_RETURN_IF_ERROR(reader.read(directory, "", 0));
    return reader.take();
  });
}

Result<Bundle> read_bundle_archive(std::string_view tar) {
  return without_exceptions([&]() -> Result<Bundle> { return ArchiveReader(tar).read(); });
}

Status write_bundle(const Bundle& bundle, const std::string& folder) {
  return without_exceptions([&]() -> Status {
    if (::mkdir(folder.c_str(), 0700) != 0)
      return invalid("folder", fmt::format("\"{}\"", folder),
                     "a path of a new folder, in one that can be written to");
    const auto write = [&]() -> Status {
      for (const auto& [path, content] : bundle.files) {
        if (!is_bundle_path(path)) return bad_archive(fmt::format("the path \"{}\"", path));
        const fs::path target = fs::path(folder) / path;
        std::error_code error;  // the file then cannot be opened
        fs::create_directories(target.parent_path(), error);
        Result<OutputFile> file = OutputFile::open(target.string());
        if (!file.ok()) return file.status();
        OCTAVO_RETURN_IF_ERROR(file->write(content));
        OCTAVO_RETURN_IF_ERROR(file->commit());
      }
      return {};
    };
    Status status = write();
    std::error_code ignored;
    if (!status.ok()) fs::remove_all(folder, ignored);
    return status;
  });
}

}  // namespace octavo
