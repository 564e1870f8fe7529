// Reads and writes archives of compiled kernels.
#include "gpu/jit/kernel_archive.h"

#include <fmt/format.h>

#include <charconv>

#include "gpu/jit/kernel_entry.h"
#include "numeric/fork_safe.h"

namespace octavo {
namespace {

constexpr std::string_view kMagic = "octavo kernels 1\n";

Status damaged() { return {ErrorCode::io_error, "The archive of kernels is damaged."}; }

// Removes a number and the character after it from the front.
bool take_number(std::string_view& text, std::size_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() + text.size()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

Result<KernelArchive> KernelArchive::open(std::span<const std::byte> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) return damaged();
  text.remove_prefix(kMagic.size());
  KernelArchive archive;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return damaged();
    const std::string key(text.substr(0, space));
    text.remove_prefix(space + 1);
    std::size_t meta = 0, image = 0;
    if (!take_number(text, meta) || !take_number(text, image)) return damaged();
    if (meta > text.size() || image > text.size() - meta) return damaged();
    const std::string_view image_text = text.substr(meta, image);
    archive.entries_[key] = {text.substr(0, meta), std::as_bytes(std::span(image_text))};
    text.remove_prefix(meta + image);
  }
  return archive;
}

std::vector<std::string> KernelArchive::keys() const {
  std::vector<std::string> list;
  for (const auto& [key, entry] : entries_) list.push_back(key);
  return list;
}

Result<CompiledKernel> KernelArchive::load(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    return Status(ErrorCode::unsupported, "The kernel is not in the ahead-of-time set.");
  }
  const auto& image = found->second.image;
  return parse_entry(key, found->second.meta, {image.begin(), image.end()});
}

std::string KernelArchive::write(const std::vector<Item>& items) {
  std::string out(kMagic);
  for (const Item& item : items) {
    const std::string meta = meta_text(item.key, item.kernel);
    out += fmt::format("{} {} {}\n", item.key, meta.size(), item.kernel.image.size());
    out += meta;
    out.append(reinterpret_cast<const char*>(item.kernel.image.data()), item.kernel.image.size());
  }
  return out;
}

const KernelArchive& embedded_kernels() {
  static constinit MadeOnce<KernelArchive> archive;
  return archive.get([] {
    const std::span<const std::byte> bytes = detail::embedded_archive_bytes();
    Result<KernelArchive> opened =
        bytes.empty() ? Result<KernelArchive>(KernelArchive()) : KernelArchive::open(bytes);
    return opened.ok() ? std::move(*opened) : KernelArchive();
  });
}

}  // namespace octavo
