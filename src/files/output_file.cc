// SPDX-License-Identifier: Apache-2.0
// OutputFile on POSIX: a new file under a random name, write, fsync, rename.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

// O_EXCL: an existing file or link under this name is an error and is never written to.
constexpr int kNewFile = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;

// Links of other users may be traps: a link in a shared folder would let its owner choose which of
// this user's files is overwritten.
bool is_link_of_another_user(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && info.st_uid != 0 &&
         info.st_uid != ::geteuid();
}

}  // namespace

Status OutputFile::failure(std::string_view action) const {
  return {ErrorCode::io_error,
          fmt::format("{} cannot be {}: {}.", printable(path_), action, std::strerror(errno))};
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  return without_exceptions([&]() -> Result<OutputFile> {
    OutputFile file;
    file.path_ = path;
    if (is_link_of_another_user(path))
      return Status(ErrorCode::io_error, fmt::format("{} cannot be written: it is a link that "
                                                     "another user made.",
                                                     printable(path)));
    struct stat info {};
    const bool exists = ::stat(path.c_str(), &info) == 0;
    if (exists && S_ISDIR(info.st_mode)) {
      errno = EISDIR;
      return file.failure("written");
    }
    if (exists && !S_ISREG(info.st_mode)) {  // a rename would replace /dev/null by a file
      file.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
      if (file.descriptor_ < 0) return file.failure("written");
      return file;
    }
    // Renaming over a symbolic link would replace it, so the target is the file that it points to.
    std::error_code ignored;
    if (exists) file.path_ = std::filesystem::canonical(path, ignored).string();
    OCTAVO_RETURN_IF_ERROR(file.create_temporary());
    if (exists && ::fchmod(file.descriptor_, info.st_mode & 0777) != 0)
      return file.failure("written");
    return file;
  });
}

// The name is random, as in mkstemp, whose files however do not get the permissions of the umask.
Status OutputFile::create_temporary() {
  constexpr int kAttempts = 100;
  regular_ = true;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != sizeof random) continue;
    std::string temporary = fmt::format("{}.{:016x}", path_, random);
    descriptor_ = ::open(temporary.c_str(), kNewFile, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    if (descriptor_ < 0) break;
    temporary_ = std::move(temporary);
    return {};
  }
  return failure("written");
}

Result<OutputFile> OutputFile::create_inside(int directory, const std::string& name) {
  return without_exceptions([&]() -> Result<OutputFile> {
    OutputFile file;
    file.path_ = name;
    file.regular_ = true;
    file.descriptor_ = ::openat(directory, name.c_str(), kNewFile, 0600);
    if (file.descriptor_ < 0) return file.failure("created");
    return file;
  });
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      regular_(other.regular_),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  return without_exceptions([&]() -> Status {
    std::span<const std::byte> rest = bytes;
    while (!rest.empty()) {
      const ssize_t put = ::write(descriptor_, rest.data(), rest.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failure("written");
      rest = rest.subspan(static_cast<std::size_t>(put));
    }
    return {};
  });
}

Status OutputFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status OutputFile::commit() {
  return without_exceptions([&]() -> Status {
    // A full disk may be reported only here, and a rename must not overtake the content.
    if (regular_ && ::fsync(descriptor_) != 0) return failure("written");
    if (::close(std::exchange(descriptor_, -1)) != 0) return failure("written");
    if (temporary_.empty()) return {};
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("replaced");
    temporary_.clear();
    return {};
  });
}

}  // namespace octavo
