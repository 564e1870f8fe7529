// SPDX-License-Identifier: Apache-2.0
// Reads and writes files; no other code of the library or the command does. Files are untrusted: a
// FIFO or a device may stand where a file is expected, and a link may lead anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo {

// A regular file, opened for reading. Every check is made on the opened file, so replacing the file
// meanwhile has no effect. Error messages have no subject ("is not a regular file."); the caller
// puts the name before them.
class OCTAVO_API InputFile {
 public:
  // Opens a path that the user chose. Links are followed.
  static Result<InputFile> open(const std::string& path);
  // Opens a name that the user did not choose, relative to the directory with descriptor
  // `directory`. Names with "..", and links in any part of the name, are refused.
  static Result<InputFile> open_inside(int directory, std::string_view name);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  std::uint64_t size() const { return size_; }
  std::uint32_t owner() const { return owner_; }  // user id
  int descriptor() const { return descriptor_; }
  // Fills `out` from `offset`; fails if that reaches beyond size().
  Status read(std::uint64_t offset, std::span<std::byte> out) const;
  // Reads the whole file. A file of more than `most_bytes` is an error, and nothing is allocated
  // for it.
  Result<std::string> read_all(std::uint64_t most_bytes) const;

 private:
  explicit InputFile(int descriptor) : descriptor_(descriptor) {}
  static Result<InputFile> examine(int descriptor);

  int descriptor_ = -1;
  std::uint32_t owner_ = 0;
  std::uint64_t size_ = 0;
};

// A file that is written completely or not at all. Until commit(), and on any failure, the target
// is unchanged.
class OCTAVO_API OutputFile {
 public:
  // Writes under a random temporary name beside `path` and renames. A device or a pipe is written
  // directly. A link is followed if this user or root made it. Open before a long computation, to
  // find out early if the result cannot be written.
  static Result<OutputFile> open(const std::string& path);
  // Creates a file in the directory with descriptor `directory`, readable only by this user. Fails
  // if the name exists. The caller removes the file on failure.
  static Result<OutputFile> create_inside(int directory, const std::string& name);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  Status commit();

 private:
  OutputFile() = default;
  Status failure(std::string_view action) const;
  Status create_temporary();

  int descriptor_ = -1;
  bool regular_ = false;
  std::string path_;
  std::string temporary_;  // empty if the file is written under its own name
};

}  // namespace octavo
