// SPDX-License-Identifier: Apache-2.0
// ByteSource over a buffer and over a file.
#include "tensors/byte_source.h"

#include <fmt/format.h>

#include <algorithm>
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
  Result<InputFile> file = InputFile::open(path);
  if (!file.ok()) return file.status();
  return FileSource(std::move(*file));
}

}  // namespace octavo::cli
