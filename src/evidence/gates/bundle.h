// SPDX-License-Identifier: Apache-2.0
// Verifies a bundle against given kernels, so that tests can supply other ones.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "octavo/bundle.hpp"
#include "octavo/kernels.hpp"

namespace octavo::evidence {

inline constexpr std::string_view kManifest = "manifest.yaml";

// Kernels are listed only if the bundle has some: that reads the code of each one.
using ListKernels = std::function<std::vector<KernelInfo>()>;
Result<BundleReport> verify_bundle_with(const Bundle& bundle, const ListKernels& built_here);

// A relative path without "." and "..".
bool is_bundle_path(std::string_view path);

}  // namespace octavo::evidence
