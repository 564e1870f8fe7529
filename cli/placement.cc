// SPDX-License-Identifier: Apache-2.0
#include "placement.h"

#include <fmt/format.h>

#include "exit.h"

namespace octavo::cli {
namespace {

// The reason why the first GPU cannot be used; empty if it can.
std::string why_no_gpu() {
  for (const DeviceInfo& info : devices()) {
    if (info.device.kind != Device::Kind::cuda || info.available) continue;
    return fmt::format("not on {} ({}): {}", name(info.device), info.description, info.reason);
  }
  return "";
}

}  // namespace

Explanation Placed::explain() const {
  Explanation explanation = plan.explain();
  if (!note.empty()) explanation.reason += "; " + note;
  return explanation;
}

Placed place(const Problem& problem, Device device, const std::string& asked) {
  Result<Plan> made = plan(problem, device);
  if (!made.ok()) return place_after(made.status(), problem, device, asked);
  const bool fell_back = asked == "auto" && device.kind == Device::Kind::cpu;
  return {std::move(*made), device, fell_back ? why_no_gpu() : ""};
}

Placed place_after(const Status& failure, const Problem& problem, Device device,
                   const std::string& asked) {
  const bool may_move = asked == "auto" && device.kind == Device::Kind::cuda &&
                        failure.code() != ErrorCode::invalid_argument;
  if (!may_move) require(failure);
  constexpr Device kCpu{Device::Kind::cpu, 0};
  return {require(plan(problem, kCpu)), kCpu,
          fmt::format("not on {}: {}", name(device), failure.message())};
}

}  // namespace octavo::cli
