// A file that appears whole or not at all: written beside its target under a temporary name, then
// renamed over it. Until commit(), and on any failure, the target stays as it was.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

class OutputFile {
 public:
  // Opening before a long computation finds out early that the result could not be written.
  static Result<OutputFile> open(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  Status commit();

 private:
  OutputFile() = default;
  Status failure(std::string_view action) const;

  int descriptor_ = -1;
  std::string path_;
  std::string temporary_;  // empty for a device or a pipe, which is written directly
};

}  // namespace octavo::cli
