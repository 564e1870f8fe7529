// SPDX-License-Identifier: Apache-2.0
// octavo explain: which kernel a problem would get, and why.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "exit.h"
#include "octavo/kernels.hpp"
#include "options.h"
#include "placement.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct ExplainFlags {
  DeviceFlags device;
  ShapeFlags shape;
  KeyValueFlags kv;
  AttentionFlags attention;
  JsonFlag json;
  std::string gpu;
  std::string dtype = "f16";
  std::string out_dtype;
  std::string bias;
  std::int64_t block_mask = 0;
  bool lse = false, mask = false, alibi = false, sinks = false, padded = false;
};

std::string gpu_names() {
  std::string names;
  for (const KnownGpu& gpu : known_gpus()) names += (names.empty() ? "" : ", ") + gpu.name;
  return names;
}

Problem run_problem(const ExplainFlags& flags) {
  const BenchCase shape = flags.shape.single_case();
  Problem problem;
  problem.batch = shape.batch;
  problem.heads_q = shape.heads;
  problem.heads_kv = flags.kv.heads.value_or(shape.heads);
  problem.seqlen_q = shape.length;
  problem.seqlen_kv = flags.kv.length.value_or(shape.length);
  problem.head_dim = shape.head_dim;
  problem.head_dim_v = flags.kv.head_dim_v.value_or(shape.head_dim);
  problem.q = problem.k = problem.v = require(parse_dtype(flags.dtype));
  problem.out = is_8bit(problem.q) ? DType::f16 : problem.q;
  if (!flags.out_dtype.empty()) problem.out = require(parse_dtype(flags.out_dtype));
  problem.lse = flags.lse;
  if (!flags.bias.empty()) problem.bias = require(parse_dtype(flags.bias));
  problem.mask = flags.mask;
  problem.alibi = flags.alibi;
  problem.sinks = flags.sinks;
  problem.padded = flags.padded;
  problem.block_mask = flags.block_mask;
  problem.options = flags.attention.options();
  return problem;
}

Explanation explain_problem(const ExplainFlags& flags, const Problem& problem) {
  if (!flags.gpu.empty()) return require(explain_on_known_gpu(problem, flags.gpu));
  const Device device = flags.device.open();
  return place(problem, device, flags.device.device).explain();
}

int explain_command(ExplainFlags& flags) {
  const Problem problem = run_problem(flags);
  flags.json.open();
  const Explanation explanation = explain_problem(flags, problem);
  report(flags.json, render(explanation, describe(problem)), to_json(explanation));
  return kExitOk;
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("explain", "Say which kernel would run, why, and its recorded time");
  const auto flags = std::make_shared<ExplainFlags>();
  flags->device.add(*command);
  command->add_option("--gpu", flags->gpu, "a GPU that need not be here: " + gpu_names())
      ->type_name("NAME")
      ->excludes("--device");
  flags->shape.add(*command, ShapeFlags::Count::one);
  flags->kv.add(*command);
  add_dtype(*command, flags->dtype, "of Q, K and V: f32, f16, bf16, e4m3, e5m2, int8, sim8");
  command->add_option("--out-dtype", flags->out_dtype, "of the output: f32, f16, bf16")
      ->type_name("TYPE");
  command->add_flag("--lse", flags->lse, "with the row sums' logarithms");
  command->add_option("--bias", flags->bias, "with a bias: f32, f16, bf16")->type_name("TYPE");
  command->add_flag("--mask", flags->mask, "with a mask tensor");
  command->add_flag("--alibi", flags->alibi, "with ALiBi");
  command->add_flag("--sinks", flags->sinks, "with attention sinks");
  command->add_flag("--padded", flags->padded, "a padded batch");
  command->add_option("--block-mask", flags->block_mask, "with a block mask of blocks of 64 or 128")
      ->type_name("SIZE");
  flags->json.add(*command);
  flags->attention.add(*command);
  add_example(
      *command,
      "octavo explain --gpu h100 --shape 2,32,4096,128 --kv-heads 8 --causal --precision fp8");
  command->callback([flags, &exit_code] { exit_code = explain_command(*flags); });
}

}  // namespace octavo::cli
