// SPDX-License-Identifier: Apache-2.0
// Fuzz target: bundles of evidence, as archives. The first byte says whether the checksums of the
// archive's headers are made right, without which hardly any change would get past them. A bundle
// that is accepted has only paths inside it, verifies the same from a folder, and passes only if
// each of its files has its digest in the manifest.
#include "evidence/gates/bundle.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "fuzz.h"
#include "gpu/jit/sha256.h"

namespace octavo::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = 512;

void repair_checksums(std::string& tar) {
  constexpr std::size_t kMagic = 257, kSum = 148, kSumBytes = 8;
  for (std::size_t at = 0; at + kBlock <= tar.size(); at += kBlock) {
    if (tar.compare(at + kMagic, 5, "ustar") != 0) continue;
    tar.replace(at + kSum, kSumBytes, kSumBytes, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(tar[at + i]);
    char text[kSumBytes + 1];
    std::snprintf(text, sizeof text, "%06o", sum);
    tar.replace(at + kSum, 7, text, 7);
  }
}

// A folder that does not exist yet, in memory if possible: files are synced when they are written.
class FreshFolder {
 public:
  FreshFolder()
      : path_((fs::exists("/dev/shm") ? std::string("/dev/shm") : std::string("/tmp")) +
              "/octavo_fuzz_bundle_" + std::to_string(::getpid())) {
    clear();
  }
  FreshFolder(const FreshFolder&) = delete;
  FreshFolder& operator=(const FreshFolder&) = delete;
  ~FreshFolder() { clear(); }
  const std::string& path() const { return path_; }

 private:
  void clear() const {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path_;
};

Result<BundleReport> verify(const Bundle& bundle) {
  const Result<BundleReport> report =
      evidence::verify_bundle_with(bundle, [] { return std::vector<KernelInfo>(); });
  if (!report.ok()) {
    require_sentence(report.status().message());
    return report;
  }
  for (const std::string& failure : report->failures) require_sentence(failure);
  return report;
}

void check_passed(const Bundle& bundle, const BundleReport& report) {
  require(report.files > 0 && bundle.irregular.empty(), "a bundle that passes has files alone");
  require(report.gpu.find('/') == std::string::npos && !report.gpu.starts_with('.'),
          "the GPU is no path");
  const std::string& manifest = bundle.files.at(std::string(evidence::kManifest));
  for (const auto& [path, content] : bundle.files)
    if (path != evidence::kManifest)
      require(manifest.find(sha256_hex(content)) != std::string::npos, "each file has its digest");
}

// Writing may fail where a file has the name of a folder; then nothing is left.
void check_written(const Bundle& bundle, const Result<BundleReport>& report) {
  const FreshFolder folder;
  if (const Status status = write_bundle(bundle, folder.path()); !status.ok()) {
    require_sentence(status.message());
    require(!fs::exists(folder.path()), "a bundle that cannot be written leaves nothing");
    return;
  }
  const Result<Bundle> back = read_bundle_folder(folder.path());
  require(back.ok() && back->files == bundle.files, "what was written is what is read");
  if (report.ok() && bundle.irregular.empty())
    require(verify(*back)->failures == report->failures, "a folder verifies as its archive");
}

}  // namespace
}  // namespace octavo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace octavo;
  if (size == 0) return 0;
  std::string tar(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 4 != 0) fuzz::repair_checksums(tar);
  const Result<Bundle> bundle = read_bundle_archive(tar);
  if (!bundle.ok()) {
    fuzz::require_sentence(bundle.status().message());
    return 0;
  }
  for (const auto& [path, content] : bundle->files)
    fuzz::require(evidence::is_bundle_path(path), "paths stay in the bundle");
  for (const std::string& path : bundle->irregular)
    fuzz::require(evidence::is_bundle_path(path), "and so do those of links");
  const Result<BundleReport> report = fuzz::verify(*bundle);
  if (report.ok() && report->passed()) fuzz::check_passed(*bundle, *report);
  fuzz::check_written(*bundle, report);
  return 0;
}
