// SPDX-License-Identifier: Apache-2.0
// octavo kernels: lists the kernels compiled ahead of time, with data read from their code.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "commands/commands.h"
#include "commands/kernels_json.h"
#include "exit.h"
#include "json_text.h"
#include "octavo/kernels.hpp"
#include "options.h"
#include "table.h"

namespace octavo::cli {
namespace {

std::string tensor_text(const KernelCode& code) {
  std::string text;
  for (const auto& [count, type] :
       {std::pair(code.mma_f16, "f16"), {code.mma_fp8, "fp8"}, {code.mma_int8, "int8"}}) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, type);
  }
  return text;
}

template <class Bytes>
std::string kibibytes(Bytes bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1024);
}

std::vector<std::string> row(const KernelInfo& info) {
  const std::string code = info.ptx ? fmt::format("compute_{}", info.arch)
                                    : fmt::format("sm_{}{}", info.arch, info.arch == 90 ? "a" : "");
  std::vector<std::string> cells = {code, info.kernel, info.brief};
  if (info.code) {
    cells.insert(cells.end(), {fmt::format("{}", info.code->registers),
                               kibibytes(info.code->static_smem_bytes + info.dynamic_smem_bytes),
                               fmt::format("{}", info.code->local_bytes), tensor_text(*info.code)});
  } else {
    cells.insert(cells.end(), {"", "", "", info.status.ok() ? "" : "missing"});
  }
  cells.push_back(info.status.ok() ? kibibytes(info.image_bytes) : "");
  cells.push_back(info.status.ok() ? duration(info.compile_ms * 1e3) : "");
  return cells;
}

std::string kernel_table(const std::vector<KernelInfo>& list) {
  using enum Table::Align;
  Table table({{"code", left},
               {"kernel", left},
               {"config", left},
               {"regs"},
               {"smem, KiB"},
               {"spills"},
               {"tensor", left},
               {"size, KiB"},
               {"compile"}});
  std::size_t bytes = 0;
  for (const KernelInfo& info : list) {
    table.add_row(row(info));
    bytes += info.image_bytes;
  }
  std::string text = table.text();
  const auto missing = std::count_if(list.begin(), list.end(),
                                     [](const KernelInfo& info) { return !info.status.ok(); });
  text += fmt::format("\n{} kernels, {}", list.size() - static_cast<std::size_t>(missing),
                      byte_count(bytes));
  if (missing > 0) text += fmt::format("; {} of the set are missing from this build", missing);
  return text + "\n";
}

int kernels_command(JsonFlag& json_flag) {
  json_flag.open();
  const std::vector<KernelInfo> list = shipped_kernel_list();
  Json json = envelope("kernels");
  json["kernels"] = Json::array();
  for (const KernelInfo& info : list) json["kernels"].push_back(kernel_json(info));
  const bool built = has_shipped_kernels();
  report(json_flag,
         built ? kernel_table(list)
               : "No kernel was compiled ahead of time: this library was built without NVRTC.\n",
         json_text(json));
  const bool whole = std::all_of(list.begin(), list.end(),
                                 [](const KernelInfo& info) { return info.status.ok(); });
  return whole || !built ? kExitOk : kExitFailed;
}

}  // namespace

void add_kernels_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "kernels", "List the GPU kernels compiled ahead of time, with their code statistics");
  const auto json_flag = std::make_shared<JsonFlag>();
  json_flag->add(*command);
  add_example(*command, "octavo kernels --json kernels.json");
  command->callback([json_flag, &exit_code] { exit_code = kernels_command(*json_flag); });
}

}  // namespace octavo::cli
