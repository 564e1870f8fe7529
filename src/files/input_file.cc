// SPDX-License-Identifier: Apache-2.0
// InputFile on POSIX: openat, fstat, pread.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "octavo/file.hpp"

namespace octavo {
namespace {

// O_NONBLOCK: opening a FIFO for reading would otherwise wait for a writer.
constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

Status failure(std::string message) { return {ErrorCode::io_error, std::move(message)}; }

Status system_failure(std::string_view action) {
  return failure(fmt::format("cannot be {}: {}.", action, std::strerror(errno)));
}

// Opens one part of a name after another, because O_NOFOLLOW covers only the last part.
int open_parts(int directory, const std::string& name) {
  int parent = directory;
  for (std::size_t begin = 0; parent >= 0;) {
    const std::size_t slash = name.find('/', begin);
    const bool last = slash == std::string::npos;
    const std::string part = name.substr(begin, last ? slash : slash - begin);
    const int flags = kFlags | O_NOFOLLOW | (last ? 0 : O_DIRECTORY);
    const int opened = ::openat(parent, part.c_str(), flags);
    const int error = errno;
    if (parent != directory) ::close(parent);
    errno = error;
    if (last) return opened;
    parent = opened;
    begin = slash + 1;
  }
  return -1;
}

bool stays_inside(std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos) return false;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  return without_exceptions([&]() -> Result<InputFile> {
    const int descriptor = ::open(path.c_str(), kFlags);
    return descriptor < 0 ? Result<InputFile>(system_failure("opened")) : examine(descriptor);
  });
}

Result<InputFile> InputFile::open_inside(int directory, std::string_view name) {
  return without_exceptions([&]() -> Result<InputFile> {
    if (!stays_inside(name)) return failure("is not a path inside its folder.");
    const int descriptor = open_parts(directory, std::string(name));
    if (descriptor < 0 && errno == ENOENT) return failure("is missing.");
    if (descriptor < 0 && (errno == ELOOP || errno == ENXIO || errno == ENOTDIR))
      return failure("is not a regular file.");
    return descriptor < 0 ? Result<InputFile>(system_failure("opened")) : examine(descriptor);
  });
}

Result<InputFile> InputFile::examine(int descriptor) {
  InputFile file(descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return system_failure("examined");
  if (!S_ISREG(info.st_mode)) return failure("is not a regular file.");
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  file.owner_ = info.st_uid;
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), owner_(other.owner_), size_(other.size_) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  return without_exceptions([&]() -> Status {
    if (offset > size_ || out.size() > size_ - offset)
      return failure(
          fmt::format("ends at byte {}; {} bytes are wanted from {}.", size_, out.size(), offset));
    std::span<std::byte> rest = out;
    for (std::uint64_t from = offset; !rest.empty();) {
      const ssize_t got = ::pread(descriptor_, rest.data(), rest.size(), static_cast<off_t>(from));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return system_failure("read");
      if (got == 0) return failure("became shorter while it was read.");
      rest = rest.subspan(static_cast<std::size_t>(got));
      from += static_cast<std::uint64_t>(got);
    }
    return {};
  });
}

Result<std::string> InputFile::read_all(std::uint64_t most_bytes) const {
  return without_exceptions([&]() -> Result<std::string> {
    if (size_ > most_bytes)
      return failure(fmt::format("is {} bytes long; supported: up to {}.", size_, most_bytes));
    std::string text(size_, '\0');
    OCTAVO_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(text))));
    return text;
  });
}

}  // namespace octavo
