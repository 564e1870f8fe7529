// A file that is written completely or not at all: under a temporary name beside its target, then
// renamed over it. Until commit(), and on any failure, the target is unchanged.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "octavo/octavo.hpp"

namespace octavo::cli {

class OutputFile {
 public:
  // Open before a long computation, to find out early if the result cannot be written.
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
