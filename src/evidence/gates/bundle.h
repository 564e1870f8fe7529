// Verifies a bundle against given kernels, so that tests can supply other ones.
#pragma once

#include <vector>

#include "octavo/bundle.hpp"
#include "octavo/kernels.hpp"

namespace octavo::evidence {

Result<BundleReport> verify_bundle_with(const std::string& folder,
                                        const std::vector<KernelInfo>& built_here);

}  // namespace octavo::evidence
