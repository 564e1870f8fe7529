// A bundle of evidence: files, a manifest with the digest of each, and the digests of the compiled
// kernels that were measured. repro.sh creates one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"

namespace octavo {

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
// Verifies the unpacked bundle in a folder. An error if it is not a bundle.
OCTAVO_API Result<BundleReport> verify_bundle(const std::string& folder);
OCTAVO_API std::string to_json(const BundleReport& report);

}  // namespace octavo
