// SPDX-License-Identifier: Apache-2.0
// Checks a bundle against its manifest, and the manifest's kernels against those of this library.
//
// manifest.yaml is the YAML that repro.sh writes: "key: value" with JSON's scalars, and the lists
// `files` and `kernels`, whose items are JSON objects on one line each.
#include "evidence/gates/bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "files/bounded_json.h"
#include "gpu/jit/sha256.h"
#include "octavo/evidence.hpp"

namespace octavo {
namespace {

using evidence::is_bundle_path;
using evidence::kManifest;
using evidence::ListKernels;

struct Manifest {
  std::map<std::string, nlohmann::json> values;
  std::map<std::string, std::vector<nlohmann::json>> lists;
};

Status bad_line(int number, std::string_view what) {
  return invalid("bundle", fmt::format("line {} of its manifest, {}", number, what),
                 "a manifest.yaml as repro.sh writes it");
}

Result<Manifest> read_lines(std::string_view text) {
  constexpr std::string_view kItem = "  - ";
  constexpr int kDeepest = 2;
  Manifest manifest;
  std::string list;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    const bool item = line.starts_with(kItem);
    const std::size_t colon = line.find(':');
    if (item ? list.empty() : colon == std::string_view::npos) return bad_line(number, "no key");
    const std::string key(item ? list : line.substr(0, colon));
    const std::string_view value = line.substr(item ? kItem.size() : colon + 1);
    if (!item && (manifest.values.contains(key) || manifest.lists.contains(key)))
      return bad_line(number, "a key for the second time");
    if (!item) list = value.empty() ? key : "";
    if (!item && value.empty()) {
      manifest.lists[key];
      continue;
    }
    nlohmann::json json = parse_bounded(value, kDeepest);
    if (json.is_discarded() || (item && !json.is_object())) return bad_line(number, "its value");
    if (item)
      manifest.lists[key].push_back(std::move(json));
    else
      manifest.values[key] = std::move(json);
  }
  return manifest;
}

Result<Manifest> read_manifest(const std::string& text) {
  constexpr std::size_t kMostBytes = 4 << 20;  // one with 300 kernels has 150 KB
  if (text.size() > kMostBytes)
    return invalid("bundle", fmt::format("a manifest of {} bytes", text.size()), "up to 4 MiB");
  Result<Manifest> manifest = read_lines(text);
  if (!manifest.ok()) return manifest;
  if (manifest->values["octavo_bundle"] != 1)
    return invalid("bundle", fmt::format("version {}", manifest->values["octavo_bundle"].dump()),
                   "1");
  if (!manifest->lists.contains("files") || !manifest->lists.contains("kernels"))
    return invalid("bundle", "a manifest without files or kernels", "lists of both");
  return manifest;
}

// Checks commit and GPU, which are printed and become parts of paths: only letters, digits and the
// other characters of GPU names are allowed.
std::string checked_name(const nlohmann::json& json, std::string_view key, BundleReport& report) {
  constexpr std::size_t kLongest = 100;
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const bool sound = text.size() <= kLongest &&
                     (text.empty() || std::isalnum(static_cast<unsigned char>(text[0]))) &&
                     std::all_of(text.begin(), text.end(), [](char c) {
                       return std::isalnum(static_cast<unsigned char>(c)) ||
                              std::string_view(" ._-()").find(c) != std::string_view::npos;
                     });
  if (sound && (json.is_string() || json.is_null())) return text;
  report.failures.push_back(
      fmt::format("{}: is not a name in letters, digits and \" ._-()\".", key));
  return "";
}

void check_file(const Bundle& bundle, const nlohmann::json& entry, BundleReport& report) {
  const std::string path = entry.at("path");
  const auto fail = [&](std::string_view what) {
    report.failures.push_back(fmt::format("{}: {}.", printable(path), what));
  };
  ++report.files;
  if (!is_bundle_path(path)) return fail("is not a path inside the bundle");
  if (bundle.irregular.contains(path)) return fail("is not a regular file");
  const auto found = bundle.files.find(path);
  if (found == bundle.files.end()) return fail("is missing");
  if (sha256_hex(found->second) != entry.at("sha256").get<std::string>())
    fail("does not have the digest that the manifest states");
}

void check_files(const Bundle& bundle, const std::vector<nlohmann::json>& entries,
                 BundleReport& report) {
  std::set<std::string> listed;
  for (const nlohmann::json& entry : entries) {
    check_file(bundle, entry, report);
    if (const std::string path = entry.at("path"); !listed.insert(path).second)
      report.failures.push_back(fmt::format("{}: is in the manifest twice.", printable(path)));
  }
  const auto check_listed = [&](const std::string& path) {
    if (path != kManifest && !listed.contains(path))
      report.failures.push_back(fmt::format("{}: is not in the manifest.", printable(path)));
  };
  for (const auto& [path, content] : bundle.files) check_listed(path);
  for (const std::string& path : bundle.irregular) check_listed(path);
  if (report.files == 0) report.failures.push_back("files: the bundle has none.");
}

using KernelKey = std::tuple<std::string, int, std::string, std::string>;

void check_kernels(const std::vector<nlohmann::json>& kernels, const ListKernels& built_here,
                   BundleReport& report) {
  if (kernels.empty()) {
    report.not_compared.push_back("kernels: the bundle has none.");
    return;
  }
  std::map<KernelKey, std::string> built;
  for (const KernelInfo& info : built_here())
    if (!info.sha256.empty())
      built[{info.config, info.arch, info.ptx ? "ptx" : "cubin", info.compiler}] = info.sha256;
  for (const nlohmann::json& entry : kernels) {
    ++report.kernels;
    const auto found =
        built.find({entry.at("config"), entry.at("arch"), entry.at("kind"), entry.at("compiler")});
    if (found == built.end()) continue;
    ++report.kernels_compared;
    if (found->second != entry.at("sha256").get<std::string>())
      report.failures.push_back(fmt::format("kernel {} sm_{}: the one in this build is different.",
                                            printable(entry.at("config").get<std::string>()),
                                            entry.at("arch").get<int>()));
  }
  if (built.empty())
    report.not_compared.push_back("kernels: none is compiled into this library.");
  else if (report.kernels_compared < report.kernels)
    report.not_compared.push_back(
        fmt::format("{} kernels: this library has none of their configuration and compiler.",
                    report.kernels - report.kernels_compared));
}

}  // namespace

Result<BundleReport> verify_bundle(const Bundle& bundle) {
  return without_exceptions([&]() -> Result<BundleReport> {
    return evidence::verify_bundle_with(bundle, shipped_kernel_list);
  });
}

Result<BundleReport> evidence::verify_bundle_with(const Bundle& bundle,
                                                  const ListKernels& built_here) {
  const auto text = bundle.files.find(std::string(kManifest));
  if (text == bundle.files.end())
    return invalid("bundle", "one without manifest.yaml", "one that repro.sh packed");
  Result<Manifest> manifest = read_manifest(text->second);
  if (!manifest.ok()) return manifest.status();
  BundleReport report;
  report.commit = checked_name(manifest->values["commit"], "commit", report);
  report.gpu = checked_name(manifest->values["gpu"], "gpu", report);
  try {
    check_files(bundle, manifest->lists["files"], report);
    check_kernels(manifest->lists["kernels"], built_here, report);
  } catch (const nlohmann::json::exception& wrong) {
    return invalid("bundle", wrong.what(), "a manifest.yaml as repro.sh writes it");
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
