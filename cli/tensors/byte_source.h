// SPDX-License-Identifier: Apache-2.0
// Random access to the bytes of a file or a buffer, so that the readers read a tensor directly into
// its memory and do not touch the rest of a large file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "octavo/file.hpp"
#include "octavo/octavo.hpp"

namespace octavo::cli {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `out` from `offset`; fails if that reaches beyond size().
  virtual Status read(std::uint64_t offset, std::span<std::byte> out) const = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Status read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::span<const std::byte> bytes_;
};

// A regular file: pipes and devices have no size to check an untrusted header against.
class FileSource final : public ByteSource {
 public:
  static Result<FileSource> open(const std::string& path);

  std::uint64_t size() const override { return file_.size(); }
  Status read(std::uint64_t offset, std::span<std::byte> out) const override {
    return file_.read(offset, out);
  }

 private:
  explicit FileSource(InputFile file) : file_(std::move(file)) {}
  InputFile file_;
};

}  // namespace octavo::cli
