// SPDX-License-Identifier: Apache-2.0
// A bundle of evidence: files, a manifest with the digest of each, and the digests of the compiled
// kernels that were measured. repro.sh creates one.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

// The files of a bundle, in memory. They are read only once, so the bytes that are verified are the
// bytes that are used later.
struct Bundle {
  std::map<std::string, std::string> files;  // contents by path
  std::set<std::string> irregular;  // paths of links, devices and the like, without content
};
// The limits of both readers below.
inline constexpr std::uint64_t kMostBundleBytes = std::uint64_t{128} << 20;
inline constexpr std::size_t kMostBundleFiles = 10'000;
// Reads a folder that has a manifest.yaml, or whose only entry is such a folder.
OCTAVO_API Result<Bundle> read_bundle_folder(const std::string& folder);
// Reads an uncompressed tar archive with one folder.
OCTAVO_API Result<Bundle> read_bundle_archive(std::string_view tar);
// Writes the files into a new folder. Writes nothing on failure.
OCTAVO_API Status write_bundle(const Bundle& bundle, const std::string& folder);

struct BundleReport {
  std::string commit;  // of the sources; empty: not recorded
  std::string gpu;     // empty: none
  std::int64_t files = 0;
  std::int64_t kernels = 0;
  std::int64_t kernels_compared = 0;      // that this library also has, from the same compiler
  std::vector<std::string> failures;      // one sentence each
  std::vector<std::string> not_compared;  // what could not be compared, each with its reason
  bool passed() const { return failures.empty(); }
};
// Compares the files with the manifest and the kernels with those of this library. It is an error
// if the files are not a bundle.
OCTAVO_API Result<BundleReport> verify_bundle(const Bundle& bundle);
OCTAVO_API std::string to_json(const BundleReport& report);

}  // namespace octavo
