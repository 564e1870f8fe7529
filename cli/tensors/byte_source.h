// Random access to the bytes of a file or a buffer, so that the readers read a tensor directly into
// its memory and do not touch the rest of a large file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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
  FileSource(FileSource&& other) noexcept;
  FileSource& operator=(FileSource&&) = delete;
  ~FileSource() override;

  std::uint64_t size() const override { return size_; }
  Status read(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  FileSource(int descriptor, std::uint64_t size) : descriptor_(descriptor), size_(size) {}
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace octavo::cli
