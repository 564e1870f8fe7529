// SPDX-License-Identifier: Apache-2.0
#include "evidence/bench/machine.h"

namespace octavo::evidence {

std::string machine_of(Device device) {
  for (const DeviceInfo& info : devices())
    if (info.device.kind == device.kind && info.device.index == device.index)
      return info.description;
  return name(device);
}

}  // namespace octavo::evidence
