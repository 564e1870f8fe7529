// OutputFile on POSIX: mkstemp, write, rename.
#include "tensors/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "error.h"

namespace octavo::cli {
namespace {

mode_t permissions_for_new_files() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

}  // namespace

Status OutputFile::failure(std::string_view action) const {
  return io_failure(fmt::format("{} cannot be {}: {}.", path_, action, std::strerror(errno)));
}

Result<OutputFile> OutputFile::open(const std::string& path) {
  OutputFile file;
  file.path_ = path;
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return file.failure("written");
  }
  if (exists && !S_ISREG(info.st_mode)) {  // a rename would replace /dev/null by a file
    file.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.descriptor_ < 0) return file.failure("written");
    return file;
  }
  // Renaming over a symbolic link would replace it, so the target is the file that it points to.
  std::error_code ignored;
  if (exists) file.path_ = std::filesystem::canonical(path, ignored).string();
  std::string temporary = file.path_ + ".XXXXXX";
  file.descriptor_ = ::mkstemp(temporary.data());
  if (file.descriptor_ < 0) return file.failure("written");
  file.temporary_ = std::move(temporary);
  const mode_t mode = exists ? info.st_mode & 07777 : permissions_for_new_files();
  if (::fchmod(file.descriptor_, mode) != 0) return file.failure("written");
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return failure("written");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return {};
}

Status OutputFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status OutputFile::commit() {
  if (::close(std::exchange(descriptor_, -1)) != 0) return failure("written");
  if (temporary_.empty()) return {};
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("replaced");
  temporary_.clear();
  return {};
}

}  // namespace octavo::cli
