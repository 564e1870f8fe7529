// SPDX-License-Identifier: Apache-2.0
// The library's reports as readable text.
#pragma once

#include <string>

#include "octavo/accuracy.hpp"
#include "octavo/bundle.hpp"
#include "octavo/counters.hpp"
#include "octavo/evidence.hpp"
#include "octavo/evolve.hpp"
#include "octavo/gate.hpp"
#include "octavo/ladder.hpp"

namespace octavo::cli {

std::string render(const CheckReport& report);
std::string render(const AccuracyReport& report);
std::string render(const BenchReport& report);
std::string render(const CountersReport& report);
std::string render(const LadderReport& report);
std::string render(const EvolveReport& report);
std::string render(const GateReport& report);
std::string render(const BundleReport& report);
std::string render(const Explanation& explanation, const std::string& problem);
std::string render(const std::vector<DeviceInfo>& devices);

}  // namespace octavo::cli
