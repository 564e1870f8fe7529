#include "text_file.h"

#include <fmt/format.h>

#include "error.h"
#include "tensors/byte_source.h"

namespace octavo::cli {

Result<std::string> read_text_file(std::string_view flag, const std::string& path) {
  constexpr std::uint64_t kMostBytes = 64 << 20;
  const std::string context = fmt::format("{} {}", flag, in_quotes(path));
  const Result<FileSource> source = FileSource::open(path);
  if (!source.ok()) return in_context(context, source.status());
  if (source->size() > kMostBytes)
    return bad_input(context, fmt::format("{} bytes long", source->size()), "up to 64 MiB");
  std::string text(source->size(), '\0');
  const Status read = source->read(0, std::as_writable_bytes(std::span(text)));
  if (!read.ok()) return in_context(context, read);
  return text;
}

}  // namespace octavo::cli
