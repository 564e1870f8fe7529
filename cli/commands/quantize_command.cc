// SPDX-License-Identifier: Apache-2.0
// octavo quantize: quantizes a tensor, reports scales and errors, and calibrates over many tensors.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "json_text.h"
#include "options.h"
#include "outputs.h"
#include "table.h"
#include "tensors/scales_file.h"

namespace octavo::cli {
namespace {

struct QuantizeFlags {
  std::vector<std::string> in;
  std::string dtype;  // of untyped inputs
  std::string format, granularity, rule = "amax";
  std::optional<std::int64_t> block_rows;
  bool smooth = false, hadamard = false;
  std::string scales_in, calibration, calibrate, name;
  std::string out, scales_out, mean_out;
  JsonFlag json;
};

struct Settings {
  DType format = DType::e4m3;
  QuantizeOptions options;
  std::string scales_from = "rule";
  std::vector<float> scales;  // where they are given
};

float* floats(HostTensor& tensor) { return reinterpret_cast<float*>(tensor.data.data()); }

HostTensor load_input(const QuantizeFlags& flags, const std::string& file) {
  std::optional<DType> untyped;
  if (!flags.dtype.empty()) untyped = require(parse_dtype(flags.dtype));
  return require(load_tensor("--in", file, untyped));
}

Settings settings_of(const QuantizeFlags& flags) {
  Settings s;
  if (!flags.format.empty()) s.format = require(parse_dtype(flags.format));
  if (!is_8bit(s.format)) {
    require(bad_input("--format", name(s.format), "e4m3, e5m2, int8, sim8"));
  }
  if (!flags.granularity.empty()) {
    s.options.granularity = require(parse_granularity(flags.granularity));
  }
  s.options.block_rows = flags.block_rows.value_or(s.options.block_rows);
  s.options.rule = require(parse_scale_rule(flags.rule));
  s.options.smooth = flags.smooth;
  s.options.hadamard = flags.hadamard;
  return s;
}

const Calibration::Entry& find_entry(const Calibration& calibration, const std::string& wanted) {
  std::string known;
  for (const Calibration::Entry& entry : calibration.entries()) {
    if (entry.name == wanted) return entry;
    known += (known.empty() ? "" : ", ") + in_quotes(entry.name);
  }
  throw Exit(kExitUsage, bad_input("--name", in_quotes(wanted),
                                   known.empty() ? "none, the calibration is empty" : known)
                             .message());
}

// A calibration has its format and granularity; flags may repeat but not contradict them.
void take_calibration(const QuantizeFlags& flags, Settings& s) {
  const Calibration calibration = require(Calibration::load(flags.calibration));
  const Calibration::Entry& entry = find_entry(calibration, flags.name);
  const auto agree = [&](const char* flag, bool given, std::string_view value,
                         std::string_view recorded) {
    if (given && value != recorded) {
      require(bad_input(flag, value, fmt::format("{}, as calibrated", recorded)));
    }
  };
  agree("--format", !flags.format.empty(), name(s.format), name(entry.format));
  agree("--granularity", !flags.granularity.empty(), name(s.options.granularity),
        name(entry.granularity));
  agree("--block-rows", flags.block_rows.has_value(), fmt::format("{}", s.options.block_rows),
        fmt::format("{}", entry.block_rows));
  s.format = entry.format;
  s.options.granularity = entry.granularity;
  s.options.block_rows = entry.block_rows;
  s.scales = require(calibration.scales(flags.name));
  s.scales_from = "calibration";
}

void take_given_scales(const QuantizeFlags& flags, const Shape4& shape, Settings& s) {
  if (!flags.scales_in.empty()) {
    HostTensor file = load_scales("--scales-in", flags.scales_in, shape, s.options.granularity,
                                  s.options.block_rows);
    s.scales.assign(floats(file), floats(file) + file.elements());
    s.scales_from = "file";
  } else if (!flags.calibration.empty()) {
    take_calibration(flags, s);
  } else {
    return;
  }
  s.options.scales_given = true;
  const std::int64_t wanted = scale_count(shape, s.options.granularity, s.options.block_rows);
  if (static_cast<std::int64_t>(s.scales.size()) != wanted) {
    require(bad_input("the number of calibrated scales", fmt::format("{}", s.scales.size()),
                      fmt::format("{}, as --in has them", wanted)));
  }
}

struct Quantized {
  HostTensor quantized, scales, mean;
  RangeStats stats;
};

Quantized quantize_tensor(HostTensor& input, const Settings& s) {
  const Tensor x = require(bhsd_view("--in", input));
  const auto& options = s.options;
  Quantized q;
  q.quantized = require(make_tensor("--out", s.format, input.shape));
  q.scales = require(make_tensor("--scales-out", DType::f32,
                                 scale_shape(x.shape, options.granularity, options.block_rows)));
  q.mean = require(make_tensor("--mean-out", DType::f32, {x.shape[0], x.shape[1], x.shape[3]}));
  if (!s.scales.empty()) {
    std::memcpy(q.scales.data.data(), s.scales.data(), s.scales.size() * sizeof(float));
  }
  require(quantize(x, options, require(bhsd_view("--out", q.quantized)), floats(q.scales),
                   options.smooth ? floats(q.mean) : nullptr, &q.stats));
  return q;
}

std::string range_text(HostTensor& scales) {
  if (scales.elements() == 0) return "none";
  const auto [low, high] = std::minmax_element(floats(scales), floats(scales) + scales.elements());
  return fmt::format("{} {}, {:.4g} to {:.4g}", scales.elements(),
                     scales.elements() == 1 ? "scale" : "scales", *low, *high);
}

std::string text_of(const QuantizeFlags& flags, const HostTensor& input, const Settings& s,
                    Quantized& q, const Outputs& outputs) {
  const std::string steps =
      std::string(s.options.smooth ? ", smoothed" : "") + (s.options.hadamard ? ", rotated" : "");
  std::vector<std::pair<std::string, std::string>> lines = {
      {"in", fmt::format("{}, {} {}{}", flags.in.front(), shape_text(input.shape),
                         name(input.dtype), steps)},
      {"format", fmt::format("{}, granularity {}", name(s.format), name(s.options.granularity))},
      {"scales", fmt::format("{}, from {}", range_text(q.scales),
                             s.scales_from == "rule" ? std::string(name(s.options.rule))
                                                     : "the " + s.scales_from)},
      {"amax", fmt::format("{:.4g}", q.stats.amax)},
      {"clipped", fmt::format("{:.3g}%", 100 * q.stats.clipped_fraction)},
      {"flushed", fmt::format("{:.3g}% of the values are nonzero but became zero",
                              100 * q.stats.flushed_fraction)},
      {"SQNR", fmt::format("{:.2f} dB", q.stats.sqnr_db)},
      {"not finite", fmt::format("{} NaN, {} Inf of {} values", q.stats.nan_values,
                                 q.stats.inf_values, q.stats.values)}};
  lines.insert(lines.end(), outputs.notes().begin(), outputs.notes().end());
  return field_lines(lines);
}

Json settings_json(const char* kind, const Settings& s) {
  Json json = envelope(kind);
  json["format"] = name(s.format);
  json["granularity"] = name(s.options.granularity);
  json["block_rows"] = s.options.block_rows;
  json["rule"] = name(s.options.rule);
  json["smooth"] = s.options.smooth;
  json["hadamard"] = s.options.hadamard;
  return json;
}

int quantize_one(QuantizeFlags& flags) {
  if (flags.in.size() != 1) {
    require(bad_input("--in", fmt::format("given {} times", flags.in.size()),
                      "one tensor; several with --calibrate"));
  }
  Settings s = settings_of(flags);
  HostTensor input = load_input(flags, flags.in.front());
  take_given_scales(flags, require(bhsd_view("--in", input)).shape, s);
  if (!flags.mean_out.empty() && !s.options.smooth) {
    require(
        bad_input("--mean-out", "given without --smooth", "with it: there is no mean otherwise"));
  }
  Outputs outputs;
  outputs.open("--out", flags.out, "quantized");
  outputs.open("--scales-out", flags.scales_out, "scales");
  outputs.open("--mean-out", flags.mean_out, "mean");
  flags.json.open();
  Quantized q = quantize_tensor(input, s);
  outputs.write("--out", q.quantized);
  outputs.write("--scales-out", q.scales);
  outputs.write("--mean-out", q.mean);
  outputs.commit();
  Json json = settings_json("quantize", s);
  json["in"] = flags.in.front();
  json["dtype"] = name(input.dtype);
  json["shape"] = input.shape;
  json["scales_from"] = s.scales_from;
  json["scales"] = q.scales.elements();
  json["stats"] = nested(to_json(q.stats));
  report(flags.json, text_of(flags, input, s, q, outputs), json_text(json));
  return kExitOk;
}

// Widens the ranges that the file already has, so that a set may be observed in several calls.
int calibrate(QuantizeFlags& flags) {
  if (flags.name.empty() || flags.in.empty()) {
    require(bad_input("--calibrate", "given without --name or --in", "both with it"));
  }
  const Settings s = settings_of(flags);
  Calibration calibration;
  if (std::filesystem::exists(flags.calibrate)) {
    calibration = require(Calibration::load(flags.calibrate));
  }
  flags.json.open();
  for (const std::string& file : flags.in) {
    HostTensor input = load_input(flags, file);
    const Tensor x = require(bhsd_view("--in " + file, input));
    const Status status = calibration.observe(flags.name, x, s.format, s.options);
    if (!status.ok()) require(in_context("--in " + file, status));
  }
  require_written(calibration.save(flags.calibrate));
  const Calibration::Entry& entry = find_entry(calibration, flags.name);
  const float amax =
      entry.amax.empty() ? 0 : *std::max_element(entry.amax.begin(), entry.amax.end());
  Json json = settings_json("calibrate", s);
  json["file"] = flags.calibrate;
  json["name"] = entry.name;
  json["tensors"] = entry.tensors;
  json["scales"] = entry.amax.size();
  json["amax"] = amax;
  const std::string text = field_lines(
      {{"calibration", fmt::format("{}, {}", flags.calibrate, in_quotes(entry.name))},
       {"format", fmt::format("{}, granularity {}", name(entry.format), name(entry.granularity))},
       {"tensors", fmt::format("{} observed so far", entry.tensors)},
       {"ranges", fmt::format("{}, the largest {:.4g}", entry.amax.size(), amax)}});
  report(flags.json, text, json_text(json));
  return kExitOk;
}

void add_flags(CLI::App& command, QuantizeFlags& flags) {
  command.add_option("--in", flags.in, "a (B,H,S,D) array; repeatable with --calibrate")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->required();
  add_dtype(command, flags.dtype, "of inputs whose type does not say it: bf16");
  command.add_option("--format", flags.format, "e4m3 (default), e5m2, int8, sim8")
      ->type_name("FORMAT");
  command
      .add_option("--granularity", flags.granularity,
                  "what shares a scale: tensor, head (default), block, row, channel")
      ->type_name("G");
  command.add_option("--block-rows", flags.block_rows, "rows of a block (64)")->type_name("N");
  command.add_option("--rule", flags.rule, "how scales are found: amax, least_squares")
      ->type_name("RULE")
      ->capture_default_str();
  command.add_flag("--smooth", flags.smooth, "subtract the mean row first");
  command.add_flag("--hadamard", flags.hadamard, "rotate rows first");
  CLI::Option* scales_in =
      command.add_option("--scales-in", flags.scales_in, "scales to use, f32")->type_name("FILE");
  CLI::Option* name_option =
      command.add_option("--name", flags.name, "which tensor of a calibration")->type_name("NAME");
  command.add_option("--calibration", flags.calibration, "take scales from a calibration file")
      ->type_name("FILE")
      ->excludes(scales_in)
      ->needs(name_option);
  command.add_option("--out", flags.out, "where to write the quantized tensor")->type_name("FILE");
  command.add_option("--scales-out", flags.scales_out, "where to write the scales")
      ->type_name("FILE");
  command.add_option("--mean-out", flags.mean_out, "where to write the mean of --smooth")
      ->type_name("FILE");
  command
      .add_option("--calibrate", flags.calibrate,
                  "instead, observe every --in and store the range in this file")
      ->type_name("FILE")
      ->needs(name_option)
      ->excludes("--out")
      ->excludes("--scales-out")
      ->excludes("--mean-out")
      ->excludes("--calibration")
      ->excludes(scales_in);
  flags.json.add(command);
}

}  // namespace

void add_quantize_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("quantize", "Quantize a tensor to 8 bits, or calibrate");
  const auto flags = std::make_shared<QuantizeFlags>();
  add_flags(*command, *flags);
  add_example(*command,
              "octavo quantize --in K.npy --format int8 --granularity row --out C.npy "
              "--scales-out S.npy");
  command->callback([flags, &exit_code] {
    exit_code = flags->calibrate.empty() ? quantize_one(*flags) : calibrate(*flags);
  });
}

}  // namespace octavo::cli
