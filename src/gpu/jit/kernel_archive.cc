// SPDX-License-Identifier: Apache-2.0
// Keys, meta.json and archives of compiled kernels.
#include "gpu/jit/kernel_archive.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "files/bounded_json.h"
#include "gpu/jit/kernel_source.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/sha256.h"
#include "numeric/fork_safe.h"

namespace octavo {
namespace {

using Json = nlohmann::ordered_json;

// A change of meta.json's layout, or of what a key covers, makes older entries invisible.
constexpr std::string_view kFormat = "octavo kernel 1";

Json fields(std::string_view key, const CompiledKernel& kernel) {
  return {{"format", kFormat},
          {"key", key},
          {"name_expression", kernel.name_expression},
          {"lowered_name", kernel.lowered_name},
          {"arch", kernel.arch},
          {"kind", kernel.ptx ? "ptx" : "cubin"},
          {"options", kernel.options},
          {"compiler", kernel.compiler},
          {"compile_ms", kernel.compile_ms},
          {"sha256", kernel.sha256}};
}

Status damaged(std::string_view what) {
  return {ErrorCode::io_error, fmt::format("The cache entry is damaged: {}.", what)};
}

}  // namespace

std::string cache_key(const KernelSource& source, std::string_view compiler) {
  return Sha256()
      .field(kFormat)
      .field(sources_digest(source.include))
      .field(source.include)
      .field(source.name_expression)
      .field(fmt::format("{}", fmt::join(nvrtc_options(source.arch, source.ptx), " ")))
      .field(compiler)
      .field(std::to_string(source.arch))
      .finish_hex();
}

std::string meta_text(std::string_view key, const CompiledKernel& kernel) {
  Json json = fields(key, kernel);
  json["check"] = sha256_hex(json.dump());
  return json.dump(1) + "\n";
}

Result<CompiledKernel> parse_meta(std::string_view key, std::string_view meta) {
  const Json json = parse_bounded_in_order(meta, 1);
  if (!json.is_object()) return damaged("meta.json is not a JSON object");
  try {
    CompiledKernel kernel;
    kernel.name_expression = json.at("name_expression").get<std::string>();
    kernel.lowered_name = json.at("lowered_name").get<std::string>();
    kernel.arch = json.at("arch").get<int>();
    kernel.ptx = json.at("kind").get<std::string>() == "ptx";
    kernel.options = json.at("options").get<std::string>();
    kernel.compiler = json.at("compiler").get<std::string>();
    kernel.compile_ms = json.at("compile_ms").get<double>();
    kernel.sha256 = json.at("sha256").get<std::string>();
    const std::string check = sha256_hex(fields(key, kernel).dump());
    if (json.at("check").get<std::string>() != check) return damaged("meta.json was changed");
    return kernel;
  } catch (const Json::exception&) {
    return damaged("meta.json lacks a field");
  }
}

Result<CompiledKernel> parse_entry(std::string_view key, std::string_view meta,
                                   std::vector<std::byte> image) {
  Result<CompiledKernel> kernel = parse_meta(key, meta);
  if (!kernel.ok()) return kernel;
  if (sha256_hex(image) != kernel->sha256) return damaged("the image is not the one compiled");
  kernel->image = std::move(image);
  return kernel;
}

namespace {

constexpr std::string_view kMagic = "octavo kernels 1\n";

Status damaged_archive() { return {ErrorCode::io_error, "The archive of kernels is damaged."}; }

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
  if (!text.starts_with(kMagic)) return damaged_archive();
  text.remove_prefix(kMagic.size());
  KernelArchive archive;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return damaged_archive();
    const std::string key(text.substr(0, space));
    text.remove_prefix(space + 1);
    std::size_t meta = 0, image = 0;
    if (!take_number(text, meta) || !take_number(text, image)) return damaged_archive();
    if (meta > text.size() || image > text.size() - meta) return damaged_archive();
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
