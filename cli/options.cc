// SPDX-License-Identifier: Apache-2.0
// The shared flags: their names, help texts, and conversion to the library's types.
#include "options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

#include "colour.h"
#include "error.h"
#include "exit.h"
#include "octavo/emulator.hpp"

namespace octavo::cli {
namespace {

constexpr const char* kShapeForm = "B,H,S,D, four integers of 0 and more";

std::string preset_names() {
  std::string names;
  for (const Preset& preset : presets()) {
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  return names;
}

BenchCase preset_case(const std::string& wanted) {
  for (const Preset& preset : presets()) {
    if (preset.name == wanted) {
      return {wanted, preset.batch, preset.heads, preset.length, preset.head_dim};
    }
  }
  require(bad_input("--preset", in_quotes(wanted), preset_names()));
  return {};
}

BenchCase shape_case(const std::string& text) {
  const auto n = require(parse_integers("--shape", text, 4, kShapeForm));
  for (const std::int64_t extent : n) {
    if (extent < 0) require(bad_input("--shape", in_quotes(text), kShapeForm));
  }
  return {fmt::format("{},{},{},{}", n[0], n[1], n[2], n[3]), n[0], n[1], n[2], n[3]};
}

std::optional<Granularity> granularity_or_default(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return require(parse_granularity(text));
}

}  // namespace

Result<std::vector<std::int64_t>> parse_integers(std::string_view flag, std::string_view text,
                                                 std::size_t count, std::string_view form) {
  std::vector<std::int64_t> values;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (true) {
    std::int64_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) break;
    values.push_back(value);
    at = next;
    if (at == end || *at != ',' || values.size() == count) break;
    ++at;
  }
  if (at != end || text.empty() || text.back() == ',' || values.size() != count) {
    return bad_input(flag, in_quotes(text), form);
  }
  return values;
}

void DeviceFlags::add(CLI::App& app) {
  app.add_option("--device", device, "where to run: cpu, cuda, cuda:N, emulator, emulator:90, auto")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--threads", threads, "threads of the CPU; 0: one per core")
      ->type_name("N")
      ->capture_default_str();
  app.add_option(
         "--schedule", schedule,
         "seed for the emulator's order of warps and copies; default: round-robin, copies late")
      ->type_name("SEED");
}

Device DeviceFlags::open() const {
  require(set_cpu_threads(threads));
  set_emulator_schedule(schedule);
  return require(parse_device(device));
}

void AttentionFlags::add(CLI::App& app) {
  app.add_option("--causal", causal,
                 "mask the future: top_left (if no value follows), bottom_right")
      ->type_name("ALIGNMENT")
      ->expected(0, 1)
      ->group("Attention");
  app.add_option("--window", window, "keys seen left and right of the diagonal; -1: all")
      ->type_name("L,R")
      ->group("Attention");
  app.add_option("--softcap", softcap, "scores become X tanh(score / X); 0: they stay")
      ->type_name("X")
      ->group("Attention");
  app.add_option("--precision", precision,
                 "native, fp16, bf16, fp8, fp8_mixed, fp8_fast, int8, int8_mixed, sim8, auto")
      ->type_name("MODE")
      ->capture_default_str()
      ->group("Attention");
  app.add_flag("--batch-invariant", batch_invariant,
               "a row's bits do not depend on the rest of the batch")
      ->group("Attention");
  app.add_option("--max-error", max_error,
                 "with --precision auto: the largest recorded error to accept")
      ->type_name("E")
      ->group("Attention");
  app.add_flag("--overlap-launch", overlap_launch,
               "may start before the preceding kernel of the stream ends (GPU)")
      ->group("Attention");
  app.add_option("--sm-margin", sm_margin, "SMs that a persistent kernel leaves free (GPU)")
      ->type_name("N")
      ->group("Attention");
  app.add_option("--granularity-qk", granularity_qk,
                 "scales of Q and K: tensor, head, block, row, channel")
      ->type_name("G")
      ->group("Quantization of 8-bit modes");
  app.add_option("--granularity-v", granularity_v, "scales of V: likewise")
      ->type_name("G")
      ->group("Quantization of 8-bit modes");
  app.add_option("--block-rows", block_rows, "rows that share a scale at granularity block")
      ->type_name("N")
      ->capture_default_str()
      ->group("Quantization of 8-bit modes");
  app.add_option("--rule", rule, "how scales are found: amax, least_squares")
      ->type_name("RULE")
      ->capture_default_str()
      ->group("Quantization of 8-bit modes");
  app.add_flag("--smooth-k", smooth_k, "subtract the mean key first")
      ->group("Quantization of 8-bit modes");
  app.add_flag("--hadamard", hadamard, "rotate Q and K first")
      ->group("Quantization of 8-bit modes");
}

Options AttentionFlags::options() const {
  constexpr const char* kWindowForm = "L,R, two integers of -1 and more";
  Options options;
  // CLI11 passes "" or "true" for a --causal without a value.
  options.causal =
      causal.empty() || causal == "true" ? Causal::top_left : require(parse_causal(causal));
  if (!window.empty()) {
    const auto sides = require(parse_integers("--window", window, 2, kWindowForm));
    if (sides[0] < -1 || sides[1] < -1) {
      require(bad_input("--window", in_quotes(window), kWindowForm));
    }
    options.window_left = sides[0];
    options.window_right = sides[1];
  }
  options.precision = require(parse_precision(precision));
  options.quantization.qk = granularity_or_default(granularity_qk);
  options.quantization.v = granularity_or_default(granularity_v);
  options.quantization.block_rows = block_rows;
  options.quantization.rule = require(parse_scale_rule(rule));
  options.quantization.smooth_k = smooth_k;
  options.quantization.hadamard = hadamard;
  options.batch_invariant = batch_invariant;
  options.overlap_launch = overlap_launch;
  options.sm_margin = sm_margin;
  options.max_error = max_error;
  options.softcap = softcap;
  return options;
}

void ShapeFlags::add(CLI::App& app, Count count) {
  const std::string repeat = count == Count::many ? "; repeatable" : "";
  CLI::Option* preset =
      app.add_option("--preset", presets, "a named size: " + preset_names() + repeat);
  CLI::Option* shape =
      app.add_option("--shape", shapes, "batch, heads, length and head dimension" + repeat);
  preset->type_name("NAME")->expected(1);
  shape->type_name("B,H,S,D")->expected(1);
  if (count == Count::many) {
    preset->take_all();
    shape->take_all();
  }
}

std::vector<BenchCase> ShapeFlags::cases() const {
  std::vector<BenchCase> cases;
  for (const std::string& preset : presets) cases.push_back(preset_case(preset));
  for (const std::string& shape : shapes) cases.push_back(shape_case(shape));
  return cases;
}

BenchCase ShapeFlags::single_case() const {
  const std::vector<BenchCase> all = cases();
  if (all.size() != 1) {
    require(bad_input("the problem's size",
                      all.empty() ? "not given" : fmt::format("given {} times", all.size()),
                      "one --shape B,H,S,D or one --preset of " + preset_names()));
  }
  return all.front();
}

void KeyValueFlags::add(CLI::App& app) {
  app.add_option("--kv-heads", heads, "heads of K and V, if not those of Q")->type_name("N");
  app.add_option("--kv-length", length, "length of K and V, if not that of Q")->type_name("N");
  app.add_option("--head-dim-v", head_dim_v, "columns of V, if not those of Q")->type_name("N");
}

void add_seed(CLI::App& app, std::uint64_t& seed) {
  app.add_option("--seed", seed, "of the random inputs")->type_name("N")->capture_default_str();
}

void add_dtype(CLI::App& app, std::string& dtype, const std::string& meaning) {
  app.add_option("--dtype", dtype, meaning)->type_name("TYPE")->capture_default_str();
}

void add_example(CLI::App& app, const std::string& line) { app.footer("Example: " + line + "\n"); }

void JsonFlag::add(CLI::App& app) {
  app.add_option("--json", path_, "also write the result as JSON; -: to standard output instead")
      ->type_name("FILE");
}

void JsonFlag::open() {
  if (path_.empty() || replaces_text()) return;
  Result<OutputFile> file = OutputFile::open(path_);
  if (!file.ok()) require_written(in_context("--json", file.status()));
  file_.emplace(std::move(*file));
}

void JsonFlag::write(const std::string& json) {
  if (replaces_text()) std::fputs(json.c_str(), stdout);
  if (!file_) return;
  require_written(file_->write(json));
  require_written(file_->commit());
}

void report(JsonFlag& json_flag, const std::string& text, const std::string& json) {
  if (!json_flag.replaces_text())
    std::fputs((shows_colour(STDOUT_FILENO) ? in_colour(text) : text).c_str(), stdout);
  json_flag.write(json);
}

}  // namespace octavo::cli
