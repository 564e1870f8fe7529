// SPDX-License-Identifier: Apache-2.0
// octavo devices: lists the devices of this machine.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "exit.h"
#include "json_text.h"
#include "options.h"
#include "report.h"

namespace octavo::cli {

void add_devices_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("devices", "List devices, and why one is not available");
  const auto json_flag = std::make_shared<JsonFlag>();
  json_flag->add(*command);
  add_example(*command, "octavo devices --json devices.json");
  command->callback([json_flag, &exit_code] {
    json_flag->open();
    const std::vector<DeviceInfo> list = devices();
    Json json = envelope("devices");
    json["devices"] = Json::array();
    for (const DeviceInfo& info : list) {
      json["devices"].push_back({{"name", name(info.device)},
                                 {"description", info.description},
                                 {"available", info.available},
                                 {"reason", info.reason}});
    }
    report(*json_flag, render(list), json_text(json));
    exit_code = kExitOk;
  });
}

}  // namespace octavo::cli
