// SPDX-License-Identifier: Apache-2.0
// Writes what a run has found in the form in which the library ships it.
#include <fmt/format.h>

#include "base/error.h"
#include "evidence/cases/planned_case.h"
#include "evolve/selection.h"
#include "evolve/summary.h"
#include "gpu/driver/driver.h"
#include "gpu/forward/sm90_forward.h"
#include "gpu/jit/config_fields.h"
#include "gpu/jit/config_text.h"

namespace octavo {
namespace evolve {
namespace {

// A designated initialiser with the fields that differ from the defaults, as in the table. Fields
// that a problem decides are left out.
std::string table_fields(const Sm90ForwardConfig& config) {
  const Sm90ForwardConfig defaults;
  std::string text = fmt::format(".head_dim = {}", config.head_dim);
  if (sm90::is_8bit_pv(config))
    text =
        fmt::format(".element = Element::{0}, .v_element = Element::{1}, {2}",
                    EnumText<Element>::kNames.at(static_cast<std::size_t>(config.element)),
                    EnumText<Element>::kNames.at(static_cast<std::size_t>(config.v_element)), text);
  std::vector<std::string> before;
  visit_fields(defaults, [&](std::string_view, const auto& field) {
    if constexpr (!std::is_class_v<std::remove_cvref_t<decltype(field)>>)
      before.push_back(fmt::format("{}", static_cast<int>(field)));
    else
      before.emplace_back();
  });
  std::size_t i = 0;
  visit_fields(config, [&](std::string_view name, const auto& field) {
    using Field = std::remove_cvref_t<decltype(field)>;
    const std::string& now_before = before[i++];
    if constexpr (!std::is_class_v<Field>) {
      if (name == "element" || name == "v_element" || name == "head_dim" || name == "k_scales" ||
          name == "pack_gqa")
        return;
      const bool always = name == "warpgroups" || name == "block_n" || name == "stages";
      if (!always && fmt::format("{}", static_cast<int>(field)) == now_before) return;
      if constexpr (std::is_same_v<Field, bool>)
        text += fmt::format(", .{} = {}", name, field);
      else if constexpr (std::is_enum_v<Field>)
        text += fmt::format(", .{} = {}{}", name, EnumText<Field>::kPrefix,
                            EnumText<Field>::kNames.at(static_cast<std::size_t>(field)));
      else
        text += fmt::format(", .{} = {}", name, field);
    }
  });
  return text;
}

// The estimate with which the table reproduces the time of the first shape. One time cannot tell a
// wave from a block: tools/search_sm90 fits both.
std::string estimate_text(const Task& task, const Sm90ForwardConfig& config, int registers,
                          double us) {
  constexpr int kRegisters = 65536, kSharedMemory = 228 * 1024, kReserved = 1024;
  sm90::TableRow row;
  row.config = config;
  if (sm90::is_split_kv(config) && registers > 0)
    row.estimate.resident =
        std::max(1, std::min(kRegisters / (round_up(registers, 8) * sm90::threads(config)),
                             kSharedMemory / (sm90::smem_bytes(config) + kReserved)));
  const Problem problem = evidence::problem_of(task.dtype, task.attention, task.shapes[0]);
  const Result<GpuInfo> gpu = gpu_named("h200");
  if (!gpu.ok()) return "";
  const SmLoad load = busiest_sm(row, problem, *gpu);
  std::string text =
      row.estimate.resident > 1 ? fmt::format(".resident = {}, ", row.estimate.resident) : "";
  return text + fmt::format(".block_us = {:.5f}", us / load.blocks);
}

int registers_of(const Record& record) {
  const nlohmann::json* const figures = record.figures("compile");
  return figures == nullptr ? 0 : figures->value("registers", 0);
}

void add_row(const Run& run, const EvolveElite& elite, EvolveExport& made) {
  const Record& record = *run.contents.find(elite.id);
  const std::string comment =
      fmt::format("    // {}: {:+.1f}% ({:+.1f}% to {:+.1f}%) over the base", elite.id,
                  (elite.speedup - 1) * 100, (elite.low - 1) * 100, (elite.high - 1) * 100);
  if (run.settings.task.kernel == "sm80_forward") {
    const Result<Sm80ForwardConfig> config = parse_sm80_forward(elite.config);
    if (!config.ok()) return;
    const Sm80ForwardConfig& c = *config;
    Sm80ForwardConfig in_table;
    in_table.arch = c.arch;
    in_table.element = c.element;
    in_table.output = c.output;
    in_table.head_dim = c.head_dim;
    in_table.block_m = c.block_m;
    in_table.block_n = c.block_n;
    in_table.warps_m = c.warps_m;
    in_table.warps_n = c.warps_n;
    in_table.q_in_registers = c.q_in_registers;
    in_table.k_tiles = c.k_tiles;
    in_table.p_terms = c.p_terms;
    made.rows += fmt::format(
        "{}\n    {{1, {{Element::{}}}, {}, {}, {}, {}, {}, {}, {}, {}}},\n", comment,
        EnumText<Element>::kNames.at(static_cast<std::size_t>(c.element)), c.head_dim, c.block_m,
        c.block_n, c.warps_m, c.warps_n, c.q_in_registers, c.k_tiles, c.p_terms);
    if (!(in_table == c))
      made.notes.push_back(
          fmt::format("{} also sets fields that the table of config/sm80_shipped.h has not: {}.",
                      elite.id, brief_text(c)));
    return;
  }
  const Result<Sm90ForwardConfig> config = parse_sm90_forward(elite.config);
  if (!config.ok() || elite.shape_us.empty()) return;
  made.rows += fmt::format(
      "{}\n    {{.config = {{{}}},\n     .estimate = {{{}}}}},\n", comment, table_fields(*config),
      estimate_text(run.settings.task, *config, registers_of(record), elite.shape_us[0]));
}

Result<EvolveExport> export_of(const std::string& directory) {
  const Result<Run> run = read_run(directory);
  if (!run.ok()) return run.status();
  const EvolveReport report = summarise(directory, *run);
  EvolveExport made;
  for (const EvolveElite& elite : report.elites) {
    if (elite.arm != kMainArm || elite.id == kBaseId) continue;
    if (elite.patch.empty() && run->settings.task.kernel != "ladder")
      add_row(*run, elite, made);
    else if (made.patch.empty())
      made.patch = elite.patch;
  }
  if (made.rows.empty() && made.patch.empty())
    made.notes.push_back("No kernel is faster than the base: there is nothing to export.");
  if (!made.rows.empty() && run->settings.task.kernel == "sm90_forward")
    made.notes.push_back(
        "The estimates reproduce the time of the first case alone; tools/search_sm90 fits them.");
  return made;
}

}  // namespace
}  // namespace evolve

Result<EvolveExport> evolve_export(const std::string& directory) {
  return without_exceptions([&] { return evolve::export_of(directory); });
}

}  // namespace octavo
