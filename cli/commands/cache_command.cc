// SPDX-License-Identifier: Apache-2.0
// octavo cache: the kernels that were compiled on this machine and stored on disk.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <memory>

#include "commands/commands.h"
#include "commands/kernels_json.h"
#include "error.h"
#include "exit.h"
#include "json_text.h"
#include "octavo/kernels.hpp"
#include "options.h"
#include "table.h"

namespace octavo::cli {
namespace {

constexpr std::size_t kShortKey = 12;

std::string age(std::int64_t modified) {
  const auto seconds = std::max<std::int64_t>(std::time(nullptr) - modified, 0);
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return seconds < 172800 ? fmt::format("{} h", seconds / 3600)
                          : fmt::format("{} d", seconds / 86400);
}

std::string kernel_text(const CachedKernelInfo& info) {
  return info.brief.empty() ? info.name_expression : info.brief;
}

std::string cache_table(const std::vector<CachedKernelInfo>& list) {
  using enum Table::Align;
  Table table({{"key", left}, {"code", left}, {"size"}, {"age"}, {"compile"}, {"kernel", left}});
  std::size_t bytes = 0;
  for (const CachedKernelInfo& info : list) {
    bytes += info.bytes;
    const std::string code = fmt::format("{}{}", info.ptx ? "compute_" : "sm_", info.arch);
    table.add_row({info.key.substr(0, kShortKey), info.status.ok() ? code : "",
                   byte_count(info.bytes), age(info.modified),
                   info.status.ok() ? duration(info.compile_ms * 1e3) : "",
                   info.status.ok() ? kernel_text(info) : "damaged; removed when it is needed"});
  }
  return fmt::format("{}\n{} kernels, {}, in {}\n", table.text(), list.size(), byte_count(bytes),
                     kernel_cache_directory());
}

void list_entries(JsonFlag& json_flag) {
  json_flag.open();
  const std::vector<CachedKernelInfo> list = require(cached_kernels());
  Json json = envelope("cache");
  json["directory"] = kernel_cache_directory();
  json["kernels"] = Json::array();
  for (const CachedKernelInfo& info : list) {
    json["kernels"].push_back({{"key", info.key},
                               {"name_expression", info.name_expression},
                               {"arch", info.arch},
                               {"kind", info.ptx ? "ptx" : "cubin"},
                               {"bytes", info.bytes},
                               {"modified", info.modified},
                               {"compile_ms", info.compile_ms},
                               {"compiler", info.compiler},
                               {"valid", info.status.ok()},
                               {"reason", info.status.message()}});
  }
  report(json_flag, cache_table(list), json_text(json));
}

void remove_entries(const std::vector<std::string>& keys, bool all) {
  if (all == !keys.empty()) {
    throw Exit(kExitUsage, bad_input("the selection", all ? "keys and --all" : "empty",
                                     "keys (or their first digits), or --all")
                               .message());
  }
  int removed = 0;
  for (const std::string& key : keys) {
    const int count = key.empty() ? 0 : require(remove_cached_kernels(key));
    if (count == 0) {
      throw Exit(kExitUsage,
                 bad_input("the key", in_quotes(key), "those that cache ls shows").message());
    }
    removed += count;
  }
  if (all) removed = require(remove_cached_kernels(""));
  fmt::print("{} removed\n", removed);
}

std::string_view where_text(KernelExplanation::Where where) {
  using enum KernelExplanation::Where;
  return where == embedded ? "embedded in the library"
         : where == disk   ? "in the cache"
                           : "nowhere yet; it is compiled when it is first used";
}

void explain_config(const std::string& config, JsonFlag& json_flag) {
  json_flag.open();
  const KernelExplanation found = require(explain_kernel(config));
  const auto or_none = [](const std::string& text) { return text.empty() ? "none" : text; };
  std::vector<std::pair<std::string, std::string>> fields = {
      {"config", found.info.config},
      {"kernel", found.name_expression},
      {"found", std::string(where_text(found.where))},
      {"key", or_none(found.key)},
      {"directory", or_none(found.directory)},
      {"compiler", found.compiler},
      {"options", found.options},
      {"sources", found.sources_sha256}};
  if (found.info.code) {
    fields.emplace_back("registers", fmt::format("{}", found.info.code->registers));
    fields.emplace_back("spills", fmt::format("{} B", found.info.code->local_bytes));
    fields.emplace_back("size", byte_count(found.info.image_bytes));
  }
  Json json = envelope("cache_explain");
  json["name_expression"] = found.name_expression;
  json["found"] = found.where == KernelExplanation::Where::embedded ? "embedded"
                  : found.where == KernelExplanation::Where::disk   ? "disk"
                                                                    : "nowhere";
  json["key"] = found.key;
  json["directory"] = found.directory;
  json["compiler"] = found.compiler;
  json["options"] = found.options;
  json["sources_sha256"] = found.sources_sha256;
  json["kernel"] = kernel_json(found.info);
  report(json_flag, field_lines(fields), json_text(json));
}

void add_ls(CLI::App& cache, int& exit_code) {
  CLI::App* command = cache.add_subcommand("ls", "List the cached kernels, oldest first");
  const auto json_flag = std::make_shared<JsonFlag>();
  json_flag->add(*command);
  command->callback([json_flag, &exit_code] {
    list_entries(*json_flag);
    exit_code = kExitOk;
  });
}

void add_rm(CLI::App& cache, int& exit_code) {
  CLI::App* command = cache.add_subcommand("rm", "Remove cached kernels");
  const auto keys = std::make_shared<std::vector<std::string>>();
  const auto all = std::make_shared<bool>(false);
  command->add_option("KEY", *keys, "first digits of a key");
  command->add_flag("--all", *all, "every kernel");
  command->callback([keys, all, &exit_code] {
    remove_entries(*keys, *all);
    exit_code = kExitOk;
  });
}

void add_explain(CLI::App& cache, int& exit_code) {
  CLI::App* command =
      cache.add_subcommand("explain", "Say where the kernel of a configuration comes from");
  const auto config = std::make_shared<std::string>();
  const auto json_flag = std::make_shared<JsonFlag>();
  command->add_option("CONFIG", *config, "field=value,... ; other fields have their defaults")
      ->required();
  json_flag->add(*command);
  add_example(*command, "octavo cache explain arch=90,element=e4m3,head_dim=128");
  command->callback([config, json_flag, &exit_code] {
    explain_config(*config, *json_flag);
    exit_code = kExitOk;
  });
}

}  // namespace

void add_cache_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("cache", "The GPU kernels compiled on this machine and kept on disk");
  command->require_subcommand(1);
  add_ls(*command, exit_code);
  add_rm(*command, exit_code);
  add_explain(*command, exit_code);
}

}  // namespace octavo::cli
