// SPDX-License-Identifier: Apache-2.0
#include "gpu/jit/kernel_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>

#include "base/error.h"
#include "gpu/jit/config_text.h"
#include "gpu/jit/sha256.h"

namespace octavo {
KernelSource kernel_source(const Sm80ForwardConfig& config, bool ptx) {
  return {.include = "device/sm80/forward.cuh",
          .name_expression = fmt::format("sm80::sm80_forward<sm80::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const QuantizeConfig& config, bool ptx) {
  if (config.operands)
    return {.include = "device/quantize/operands.cuh",
            .name_expression = fmt::format("quantizer::quantize_operands<quantizer::ConfigOf<{}>>",
                                           to_text(config)),
            .arch = config.arch,
            .ptx = ptx};
  return {.include = "device/quantize/quantize.cuh",
          .name_expression =
              fmt::format("quantizer::quantize_rows<quantizer::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const Sm90ForwardConfig& config) {
  return {.include = "device/sm90/forward.cuh",
          .name_expression = fmt::format("sm90::sm90_forward<sm90::ConfigOf<{}>>", to_text(config)),
          .arch = 90};
}

KernelSource kernel_source(const DecodeConfig& config, bool ptx) {
  return {.include = "device/decode/decode.cuh",
          .name_expression =
              fmt::format("decode::decode_attention<decode::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}
KernelSource combine_source(const DecodeConfig& config, bool ptx) {
  return {.include = "device/decode/combine.cuh",
          .name_expression =
              fmt::format("decode::decode_combine<decode::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const AppendConfig& config, bool ptx) {
  return {
      .include = "device/cache/append.cuh",
      .name_expression = fmt::format("append::append_rows<append::ConfigOf<{}>>", to_text(config)),
      .arch = config.arch,
      .ptx = ptx};
}

KernelSource kernel_source(const Sm80BackwardConfig& config, bool ptx) {
  if (config.pass == BackwardPass::dbias)
    return {.include = "device/sm80/bias_gradient.cuh",
            .name_expression = fmt::format("sm80::sm80_bias_gradient<sm80::BackwardConfigOf<{}>>",
                                           to_text(config)),
            .arch = config.arch,
            .ptx = ptx};
  return {.include = "device/sm80/backward.cuh",
          .name_expression =
              fmt::format("sm80::sm80_backward<sm80::BackwardConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource kernel_source(const Sm90BackwardConfig& config) {
  return {.include = "device/sm90/backward/backward.cuh",
          .name_expression = fmt::format(
              "sm90::backward::sm90_backward<sm90::backward::ConfigOf<{}>>", to_text(config)),
          .arch = 90};
}
KernelSource finish_dq_source(const Sm90BackwardConfig& config) {
  return {.include = "device/sm90/backward/finish_dq.cuh",
          .name_expression = fmt::format(
              "sm90::backward::sm90_finish_dq<sm90::backward::ConfigOf<{}>>", to_text(config)),
          .arch = 90};
}

KernelSource kernel_source(const RowStatsConfig& config, bool ptx) {
  return {.include = "device/backward/row_stats.cuh",
          .name_expression =
              fmt::format("row_stats::row_stats<row_stats::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

KernelSource sink_gradients_source(const RowStatsConfig& config, bool ptx) {
  return {.include = "device/backward/sink_gradients.cuh",
          .name_expression =
              fmt::format("row_stats::sink_gradients<row_stats::ConfigOf<{}>>", to_text(config)),
          .arch = config.arch,
          .ptx = ptx};
}

CodeFor code_for(int chip_arch) {
  if (chip_arch < 80) return {};
  if (chip_arch < 89) return {.arch = 80, .ptx = false};  // sm_86, sm_87 run sm_80 cubins
  if (chip_arch < 90) return {.arch = 89, .ptx = false};
  if (chip_arch == 90) return {.arch = 90, .ptx = false};
  return {.arch = 89, .ptx = true};
}

Result<std::optional<KernelFamily>> forced_kernel_family() {
  const char* const value = std::getenv("OCTAVO_KERNELS");
  const std::string_view named = value == nullptr ? "" : value;
  if (named.empty()) return std::optional<KernelFamily>();
  if (named == "sm80") return std::optional(KernelFamily::sm80);
  if (named == "sm90") return std::optional(KernelFamily::sm90);
  if (named == "decode") return std::optional(KernelFamily::decode);
  return invalid("OCTAVO_KERNELS", fmt::format("'{}'", named), "sm80, sm90, decode, or nothing");
}

bool is_forced(KernelFamily wanted) {
  const Result<std::optional<KernelFamily>> family = forced_kernel_family();
  return family.ok() && *family == wanted;
}

Status no_other_family(std::string_view what) {
  return unsupported("OCTAVO_KERNELS", "'sm90'", fmt::format("sm80, or nothing, {}", what));
}

namespace {

struct OverlaidSources {
  SourceOverlay overlay;
  std::vector<EmbeddedSource> all;
  std::string digest;
};
// Null: no overlay. Overlays are never freed, because spans of them may be in use.
constinit std::atomic<const OverlaidSources*> overlaid{nullptr};

// Device code includes only embedded files, in quotes and by their path from src/, so matching the
// prefix of a line is enough.
void collect(std::string_view name, std::set<std::string_view>& found) {
  constexpr std::string_view kInclude = "#include \"";
  const EmbeddedSource* const source = find_embedded_source(name);
  if (source == nullptr || !found.insert(source->name).second) return;
  const std::string_view text = source->text;
  for (std::size_t at = text.find(kInclude); at != std::string_view::npos;
       at = text.find(kInclude, at)) {
    at += kInclude.size();
    collect(text.substr(at, text.find('"', at) - at), found);
  }
}

}  // namespace

std::span<const EmbeddedSource> embedded_sources() {
  const OverlaidSources* const now = overlaid.load(std::memory_order_acquire);
  return now == nullptr ? detail::built_in_sources() : now->all;
}

Status use_source_overlay(const SourceOverlay& overlay) {
  if (overlay.empty()) {
    overlaid.store(nullptr, std::memory_order_release);
    return {};
  }
  auto made = std::make_unique<OverlaidSources>();
  made->overlay = overlay;
  const std::span<const EmbeddedSource> built_in = detail::built_in_sources();
  made->all.assign(built_in.begin(), built_in.end());
  Sha256 hash;
  for (const auto& [name, text] : made->overlay) {
    const auto found = std::find_if(made->all.begin(), made->all.end(),
                                    [&name = name](const auto& s) { return name == s.name; });
    if (found == made->all.end())
      return invalid("overlay", "'" + name + "'", "the files of src/config and src/device");
    found->text = text.c_str();
    hash.field(name).field(text);
  }
  made->digest = hash.finish_hex();
  overlaid.store(made.release(), std::memory_order_release);
  return {};
}

std::string source_overlay_digest() {
  const OverlaidSources* const now = overlaid.load(std::memory_order_acquire);
  return now == nullptr ? "" : now->digest;
}

const EmbeddedSource* find_embedded_source(std::string_view name) {
  for (const EmbeddedSource& source : embedded_sources()) {
    if (name == source.name) return &source;
  }
  return nullptr;
}

std::set<std::string_view> included_sources(std::string_view name) {
  std::set<std::string_view> names;
  collect(name, names);
  return names;
}

std::string sources_digest(std::string_view name) {
  const std::set<std::string_view> names = included_sources(name);
  if (names.empty()) return {};
  Sha256 hash;
  for (const std::string_view each : names) {
    hash.field(each).field(find_embedded_source(each)->text);
  }
  return hash.finish_hex();
}

}  // namespace octavo
