// Checks a bundle against its manifest, and the manifest's kernels against those of this library.
//
// manifest.yaml is the YAML that repro.sh writes: "key: value" with JSON's scalars, and the lists
// `files` and `kernels`, whose items are JSON objects on one line each.
#include "evidence/gates/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "gpu/jit/sha256.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

namespace fs = std::filesystem;
constexpr const char* kManifest = "manifest.yaml";

struct Manifest {
  std::map<std::string, nlohmann::json> values;
  std::map<std::string, std::vector<nlohmann::json>> lists;
};

Result<std::string> file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file.is_open() || file.bad())
    return invalid("bundle", fmt::format("\"{}\"", path.string()), "files that can be read");
  return text;
}

Status bad_line(int number, std::string_view what) {
  return invalid("bundle", fmt::format("line {} of its manifest, {}", number, what),
                 "a manifest.yaml as repro.sh writes it");
}

Result<Manifest> read_manifest(const fs::path& path) {
  const Result<std::string> text = file_text(path);
  if (!text.ok()) return text.status();
  Manifest manifest;
  std::istringstream lines(*text);
  std::string line, list;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    constexpr std::string_view kItem = "  - ";
    const bool item = line.starts_with(kItem);
    const std::size_t colon = line.find(':');
    if (item ? list.empty() : colon == std::string::npos) return bad_line(number, "no key");
    const std::string value = item ? line.substr(kItem.size()) : line.substr(colon + 1);
    if (!item) list = value.empty() ? line.substr(0, colon) : "";
    if (!item && value.empty()) {
      manifest.lists[list];
      continue;
    }
    const nlohmann::json json = nlohmann::json::parse(value, nullptr, false);
    if (json.is_discarded() || (item && !json.is_object())) return bad_line(number, "its value");
    if (item)
      manifest.lists[list].push_back(json);
    else
      manifest.values[line.substr(0, colon)] = json;
  }
  if (manifest.values["octavo_bundle"] != 1)
    return invalid("bundle", fmt::format("version {}", manifest.values["octavo_bundle"].dump()),
                   "1");
  if (!manifest.lists.contains("files") || !manifest.lists.contains("kernels"))
    return invalid("bundle", "a manifest without files or kernels", "lists of both");
  return manifest;
}

std::string text_or_empty(const nlohmann::json& json) {
  return json.is_string() ? json.get<std::string>() : "";
}

// A path that stays in the folder.
bool is_inside(const fs::path& path) {
  return !path.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

void check_file(const fs::path& folder, const nlohmann::json& entry, BundleReport& report) {
  const std::string path = entry.at("path");
  const auto fail = [&](std::string_view what) {
    report.failures.push_back(fmt::format("{}: {}.", path, what));
  };
  ++report.files;
  std::error_code error;
  if (!is_inside(path)) return fail("is not a path inside the bundle");
  const fs::file_status status = fs::symlink_status(folder / path, error);
  if (error || !fs::exists(status)) return fail("is missing");
  if (!fs::is_regular_file(status)) return fail("is not a regular file");
  const Result<std::string> text = file_text(folder / path);
  if (!text.ok()) return fail("cannot be read");
  if (sha256_hex(*text) != entry.at("sha256").get<std::string>())
    fail("is not the file that the manifest has the digest of");
}

void check_unlisted(const fs::path& folder, const std::set<std::string>& listed,
                    BundleReport& report) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    const std::string path = entry.path().lexically_relative(folder).generic_string();
    if (path != kManifest && !listed.contains(path))
      report.failures.push_back(fmt::format("{}: is not in the manifest.", path));
  }
}

using KernelKey = std::tuple<std::string, int, std::string, std::string>;

void check_kernels(const std::vector<nlohmann::json>& kernels,
                   const std::vector<KernelInfo>& built_here, BundleReport& report) {
  std::map<KernelKey, std::string> built;
  for (const KernelInfo& info : built_here)
    if (!info.sha256.empty())
      built[{info.config, info.arch, info.ptx ? "ptx" : "cubin", info.compiler}] = info.sha256;
  for (const nlohmann::json& entry : kernels) {
    ++report.kernels;
    const auto found =
        built.find({entry.at("config"), entry.at("arch"), entry.at("kind"), entry.at("compiler")});
    if (found == built.end()) continue;
    ++report.kernels_compared;
    if (found->second != entry.at("sha256").get<std::string>())
      report.failures.push_back(fmt::format("kernel {} sm_{}: the one built here is another.",
                                            entry.at("config").get<std::string>(),
                                            entry.at("arch").get<int>()));
  }
  if (report.kernels == 0)
    report.not_compared.push_back("kernels: the bundle has none.");
  else if (built.empty())
    report.not_compared.push_back("kernels: none is compiled into this library.");
  else if (report.kernels_compared < report.kernels)
    report.not_compared.push_back(
        fmt::format("{} kernels: this library has none of their configuration and compiler.",
                    report.kernels - report.kernels_compared));
}

}  // namespace

Result<BundleReport> verify_bundle(const std::string& folder) {
  return without_exceptions([&]() -> Result<BundleReport> {
    return evidence::verify_bundle_with(folder, shipped_kernel_list());
  });
}

Result<BundleReport> evidence::verify_bundle_with(const std::string& folder,
                                                  const std::vector<KernelInfo>& built_here) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::exists(fs::path(folder) / kManifest, error))
    return invalid("bundle", fmt::format("\"{}\"", folder), "a folder with a manifest.yaml");
  Result<Manifest> manifest = read_manifest(fs::path(folder) / kManifest);
  if (!manifest.ok()) return manifest.status();
  BundleReport report;
  report.commit = text_or_empty(manifest->values["commit"]);
  report.gpu = text_or_empty(manifest->values["gpu"]);
  try {
    std::set<std::string> listed;
    for (const nlohmann::json& entry : manifest->lists["files"]) {
      check_file(folder, entry, report);
      listed.insert(entry.at("path").get<std::string>());
    }
    check_unlisted(folder, listed, report);
    check_kernels(manifest->lists["kernels"], built_here, report);
  } catch (const nlohmann::json::exception& wrong) {
    return invalid("bundle", wrong.what(), "a manifest.yaml as repro.sh writes it");
  } catch (const fs::filesystem_error& wrong) {
    return invalid("bundle", wrong.what(), "a folder that can be read");
  }
  return report;
}

std::string to_json(const BundleReport& report) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json json = {{"schema", kSchemaVersion},
                                       {"kind", "bundle"},
                                       {"version", version()},
                                       {"commit", text_or_null(report.commit)},
                                       {"gpu", text_or_null(report.gpu)},
                                       {"files", report.files},
                                       {"kernels", report.kernels},
                                       {"kernels_compared", report.kernels_compared},
                                       {"passed", report.passed()},
                                       {"failures", report.failures},
                                       {"not_compared", report.not_compared}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace octavo
