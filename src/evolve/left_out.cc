// SPDX-License-Identifier: Apache-2.0
// The functions of octavo/evolve.hpp in a build without evolve (OCTAVO_EVOLVE is OFF).
#include "base/error.h"
#include "octavo/evolve.hpp"

namespace octavo {
namespace {

Status left_out() {
  return unsupported("OCTAVO_EVOLVE", "OFF in this build of the library",
                     "ON, as `make build` has it");
}

}  // namespace

Result<EvolveReport> evolve_run(const EvolveOptions&, const EvolveSession&) { return left_out(); }
Result<EvolveReport> evolve_resume(const std::string&, const EvolveSession&) { return left_out(); }
Result<EvolveReport> evolve_report(const std::string&) { return left_out(); }
Result<EvolveReport> evolve_replay(const std::string&) { return left_out(); }
std::string to_json(const EvolveReport&) { return "{}"; }
Result<std::string> evolve_html(const std::string&) { return left_out(); }
Result<EvolveExport> evolve_export(const std::string&) { return left_out(); }
Status evolve_examine(const std::string&) { return left_out(); }

}  // namespace octavo
