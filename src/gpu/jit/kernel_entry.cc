// Keys and meta.json of compiled kernels.
#include "gpu/jit/kernel_entry.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "gpu/jit/embedded_sources.h"
#include "gpu/jit/nvrtc.h"
#include "gpu/jit/sha256.h"

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
  const Json json = Json::parse(meta, nullptr, false);
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

}  // namespace octavo
