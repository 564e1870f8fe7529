// SPDX-License-Identifier: Apache-2.0
// octavo run: attention on files or on random numbers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "commands/commands.h"
#include "commands/run_inputs.h"
#include "error.h"
#include "exit.h"
#include "json_text.h"
#include "options.h"
#include "outputs.h"
#include "placement.h"
#include "table.h"

namespace octavo::cli {
namespace {

struct RunFlags {
  DeviceFlags device;
  InputFlags inputs;
  AttentionFlags attention;
  ModifierFlags modifiers;
  JsonFlag json;
  std::string out, lse, out_dtype;
  std::optional<double> scale;
};

// Statistics of the finite elements.
struct Summary {
  double min = 0, max = 0, mean = 0, rms = 0;
  std::int64_t not_finite = 0;
};

struct Outcome {
  Problem problem;
  Explanation kernel;
  std::string note;  // why it was computed here and not on a GPU, if that needs to be said
  double time_us = 0;
  HostTensor out;
  HostTensor lse;
};

Scales scales_of(const Operand& operand, std::int64_t block_rows) {
  Scales scales;
  if (operand.scales) scales.data = reinterpret_cast<const float*>(operand.scales->data.data());
  scales.granularity = operand.granularity;
  scales.block_rows = block_rows;
  return scales;
}

DType out_dtype(const RunFlags& flags, DType q) {
  if (flags.out_dtype.empty()) return is_8bit(q) ? DType::f16 : q;
  return require(parse_dtype(flags.out_dtype));
}

struct AlignedDelete {
  void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{64}); }
};

// On a GPU the copies there and back are part of the time.
Result<double> timed_run(const Plan& plan, const Arguments& arguments, Device device) {
  if (device.kind != Device::Kind::cpu) {
    const auto start = std::chrono::steady_clock::now();
    const Status done = attention_from_host(arguments, plan.problem().options, device);
    if (!done.ok()) return done;
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
  const std::size_t bytes = plan.workspace_bytes(arguments);
  const std::unique_ptr<std::byte, AlignedDelete> memory(
      static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
  const auto start = std::chrono::steady_clock::now();
  const Status done = plan.run(arguments, {memory.get(), bytes});
  if (!done.ok()) return done;
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

Outcome compute(const RunFlags& flags, Inputs& inputs, Modifiers& modifiers, bool want_lse) {
  const Options options = flags.attention.options();
  const Device device = flags.device.open();
  const std::int64_t block_rows = flags.attention.block_rows;
  Arguments arguments;
  arguments.q = require(bhsd_view("--q", inputs.q.values));
  arguments.k = require(bhsd_view("--k", inputs.k.values));
  arguments.v = require(bhsd_view("--v", inputs.v.values));
  arguments.q_scales = scales_of(inputs.q, block_rows);
  arguments.k_scales = scales_of(inputs.k, block_rows);
  arguments.v_scales = scales_of(inputs.v, block_rows);
  if (flags.scale) arguments.scale = static_cast<float>(*flags.scale);
  modifiers.set(arguments.q.shape, arguments);

  Outcome outcome;
  const auto& q_shape = inputs.q.values.shape;
  std::vector<std::int64_t> out_shape = q_shape;
  out_shape.back() = inputs.v.values.shape.back();
  outcome.out = require(make_tensor("--out", out_dtype(flags, inputs.q.values.dtype), out_shape));
  arguments.out = require(bhsd_view("--out", outcome.out));
  if (want_lse) {
    outcome.lse =
        require(make_tensor("--lse", DType::f32, {q_shape[0], q_shape[1], q_shape[2], 1}));
    arguments.lse = require(bhsd_view("--lse", outcome.lse));
    outcome.lse.shape.pop_back();  // in the file: (B, H, S)
  }
  outcome.problem = require(problem_of(arguments, options));
  const std::string& asked = flags.device.device;
  Placed placed = place(outcome.problem, device, asked);
  Result<double> time_us = timed_run(placed.plan, arguments, placed.device);
  if (!time_us.ok()) {
    placed = place_after(time_us.status(), outcome.problem, placed.device, asked);
    time_us = timed_run(placed.plan, arguments, placed.device);
  }
  outcome.kernel = placed.explain();
  outcome.note = placed.note;
  outcome.time_us = require(std::move(time_us));
  return outcome;
}

Summary summarize(const HostTensor& tensor) {
  HostTensor wide = require(make_tensor("the output", DType::f32, tensor.shape));
  require(convert(tensor.flat(), wide.flat()));
  const auto* values = reinterpret_cast<const float*>(wide.data.data());
  Summary s;
  s.min = std::numeric_limits<double>::infinity();
  s.max = -s.min;
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < wide.elements(); ++i) {
    const double x = values[i];
    if (!std::isfinite(x)) {
      ++s.not_finite;
      continue;
    }
    s.min = std::min(s.min, x);
    s.max = std::max(s.max, x);
    sum += x;
    squares += x * x;
  }
  const auto finite = static_cast<double>(wide.elements() - s.not_finite);
  if (finite == 0) return {0, 0, 0, 0, s.not_finite};
  s.mean = sum / finite;
  s.rms = std::sqrt(squares / finite);
  return s;
}

std::string text_of(const Outcome& outcome, const Summary& s, const Outputs& outputs) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"problem", describe(outcome.problem)},
      {"device", outcome.kernel.device},
      {"kernel", outcome.kernel.kernel},
      {"config", outcome.kernel.config},
      {"time", duration(outcome.time_us) + ", one run"},
      {"output", fmt::format("min {:.4g}, max {:.4g}, mean {:.4g}, rms {:.4g}, {} not finite",
                             s.min, s.max, s.mean, s.rms, s.not_finite)}};
  if (!outcome.note.empty()) lines.emplace(lines.begin() + 2, "why", outcome.note);
  lines.insert(lines.end(), outputs.notes().begin(), outputs.notes().end());
  return field_lines(lines);
}

std::string json_of(const Outcome& outcome, const Summary& s, const RunFlags& flags,
                    const Inputs& inputs) {
  Json json = envelope("run");
  json["device"] = outcome.kernel.device;
  json["problem"] = describe(outcome.problem);
  json["seed"] = inputs.seed ? Json(*inputs.seed) : Json(nullptr);
  json["kernel"] = nested(to_json(outcome.kernel));
  json["time_us"] = outcome.time_us;
  json["out"] = {{"shape", outcome.out.shape},
                 {"dtype", name(outcome.out.dtype)},
                 {"min", s.min},
                 {"max", s.max},
                 {"mean", s.mean},
                 {"rms", s.rms},
                 {"not_finite", s.not_finite}};
  json["files"] = {{"out", flags.out.empty() ? Json(nullptr) : Json(flags.out)},
                   {"lse", flags.lse.empty() ? Json(nullptr) : Json(flags.lse)}};
  return json_text(json);
}

int run_command(RunFlags& flags) {
  Inputs inputs = load_inputs(flags.inputs, flags.attention.block_rows);
  const Tensor q = require(bhsd_view("--q", inputs.q.values));
  Modifiers modifiers = load_modifiers(flags.modifiers, q.shape);
  Outputs outputs;
  outputs.open("--out", flags.out, "out");
  outputs.open("--lse", flags.lse, "lse");
  flags.json.open();
  const Outcome outcome = compute(flags, inputs, modifiers, outputs.wanted("--lse"));
  outputs.write("--out", outcome.out);
  outputs.write("--lse", outcome.lse);
  const Summary summary = summarize(outcome.out);
  outputs.commit();
  report(flags.json, text_of(outcome, summary, outputs), json_of(outcome, summary, flags, inputs));
  return kExitOk;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("run", "Compute attention on files or random inputs");
  const auto flags = std::make_shared<RunFlags>();
  flags->device.add(*command);
  flags->inputs.add(*command);
  command->add_option("--scale", flags->scale, "of Q K^T; 1/sqrt(D) unless given")
      ->type_name("X")
      ->group("Attention");
  flags->attention.add(*command);
  flags->modifiers.add(*command);
  command->add_option("--out", flags->out, "where to write the result, .npy or .safetensors")
      ->type_name("FILE")
      ->group("Outputs");
  command->add_option("--out-dtype", flags->out_dtype, "f32, f16, bf16; that of Q unless given")
      ->type_name("TYPE")
      ->group("Outputs");
  command->add_option("--lse", flags->lse, "where to write log-sum-exp, (B,H,S) f32")
      ->type_name("FILE")
      ->group("Outputs");
  flags->json.add(*command);
  add_example(*command, "octavo run --q Q.npy --k K.npy --v V.npy --out O.npy --causal top_left");
  command->callback([flags, &exit_code] { exit_code = run_command(*flags); });
}

}  // namespace octavo::cli
