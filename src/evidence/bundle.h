// A bundle held against kernels that need not be this library's, for tests.
#pragma once

#include <vector>

#include "octavo/bundle.hpp"
#include "octavo/kernels.hpp"

namespace octavo::evidence {

Result<BundleReport> verify_bundle_with(const std::string& folder,
                                        const std::vector<KernelInfo>& built_here);

}  // namespace octavo::evidence
