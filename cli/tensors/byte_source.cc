// ByteSource over a buffer and over a file (pread).
#include "tensors/byte_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "error.h"

namespace octavo::cli {
namespace {

Status check_range(std::uint64_t offset, std::uint64_t count, std::uint64_t size) {
  if (offset <= size && count <= size - offset) return {};
  return io_failure(
      fmt::format("the file ends at byte {}; {} bytes are wanted from {}.", size, count, offset));
}

}  // namespace

Status MemorySource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (Status status = check_range(offset, out.size(), size()); !status.ok()) return status;
  std::ranges::copy(bytes_.subspan(offset, out.size()), out.begin());
  return {};
}

Result<FileSource> FileSource::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO for reading would otherwise wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return io_failure(fmt::format("cannot be opened: {}.", std::strerror(errno)));
  FileSource source(descriptor, 0);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    return io_failure(fmt::format("cannot be examined: {}.", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) return io_failure("is not a regular file.");
  source.size_ = static_cast<std::uint64_t>(info.st_size);
  return source;
}

FileSource::FileSource(FileSource&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

FileSource::~FileSource() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status FileSource::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (Status status = check_range(offset, out.size(), size_); !status.ok()) return status;
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_failure(fmt::format("cannot be read: {}.", std::strerror(errno)));
    if (got == 0) return io_failure("became shorter while it was read.");
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

}  // namespace octavo::cli
