// SPDX-License-Identifier: Apache-2.0
// octavo bench: time, fraction of the machine's peak, and error.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.h"
#include "error.h"
#include "exit.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace octavo::cli {
namespace {

struct BenchFlags {
  DeviceFlags device;
  ShapeFlags shape;
  KeyValueFlags kv;
  AttentionFlags attention;
  JsonFlag json;
  std::string dtype = "f16";
  int iters = 100;
  int warmup = 20;
  std::uint64_t seed = 42;
  bool skip_correctness = false;
  bool no_three_loop = false;
  bool host = false;
  bool prequantized = false;
  std::string v_layout{name(VLayout::transposed)};
  std::string launch = "graph", l2 = "warm";
  int buffers = 1;
  std::string config;
};

// Whether a flag with two possible words has the second of them.
bool second_of(const char* flag, const std::string& word, std::string_view first,
               std::string_view second) {
  if (word != first && word != second)
    require(bad_input(flag, in_quotes(word), fmt::format("{}, {}", first, second)));
  return word == second;
}

int bench_command(BenchFlags& flags) {
  BenchOptions options;
  options.device = flags.device.open();
  options.cases = flags.shape.cases();
  for (BenchCase& c : options.cases) {
    c.heads_kv = flags.kv.heads;
    c.length_kv = flags.kv.length;
    c.head_dim_v = flags.kv.head_dim_v;
  }
  options.dtype = require(parse_dtype(flags.dtype));
  options.attention = flags.attention.options();
  options.iters = flags.iters;
  options.warmup = flags.warmup;
  options.seed = flags.seed;
  options.check_correctness = !flags.skip_correctness;
  options.three_loop = !flags.no_three_loop;
  options.config = flags.config;
  options.host = flags.host;
  options.prequantized = flags.prequantized;
  options.prequantized_v = require(parse_v_layout(flags.v_layout));
  options.stream = second_of("--launch", flags.launch, "graph", "stream");
  options.cold_l2 = second_of("--l2", flags.l2, "warm", "cold");
  options.buffers = flags.buffers;
  flags.json.open();
  const BenchReport result = [&] {
    ProgressBar bar("bench");
    options.progress = [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); };
    return require(bench(options));
  }();
  report(flags.json, render(result), to_json(result));
  return result.passed() ? kExitOk : kExitFailed;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "Measure time; by default of the five presets");
  const auto flags = std::make_shared<BenchFlags>();
  flags->device.add(*command);
  flags->shape.add(*command, ShapeFlags::Count::many);
  flags->kv.add(*command);
  add_dtype(*command, flags->dtype, "of the random inputs: f32, f16, bf16");
  add_seed(*command, flags->seed);
  command->add_option("--iters", flags->iters, "timed runs")->type_name("N")->capture_default_str();
  command->add_option("--warmup", flags->warmup, "runs before those")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--skip-correctness", flags->skip_correctness,
                    "do not compare the result with fp64 attention");
  command->add_flag("--no-three-loop", flags->no_three_loop, "do not also time plain loops");
  command->add_flag("--host", flags->host, "also time the host's part of a call (GPU)");
  command->add_flag("--prequantized", flags->prequantized,
                    "quantize before the timing, as --precision would, and transpose V");
  command
      ->add_option("--v-layout", flags->v_layout,
                   "of V with --prequantized: transposed, or rows that every call transposes")
      ->type_name("LAYOUT")
      ->capture_default_str();
  command->add_option("--config", flags->config, "a kernel configuration to force")
      ->type_name("CONFIG");
  command
      ->add_option("--launch", flags->launch,
                   "on a GPU: replays of a CUDA graph, or calls from the host: graph, stream")
      ->type_name("HOW")
      ->capture_default_str();
  command
      ->add_option("--l2", flags->l2,
                   "on a GPU: as the last call left it, or overwritten: warm, cold")
      ->type_name("STATE")
      ->capture_default_str();
  command
      ->add_option("--buffers", flags->buffers, "on a GPU: copies of the inputs, used in rotation")
      ->type_name("N")
      ->capture_default_str();
  flags->json.add(*command);
  flags->attention.add(*command);
  add_example(*command, "octavo bench --preset mission --shape 1,8,4096,128 --json bench.json");
  command->callback([flags, &exit_code] { exit_code = bench_command(*flags); });
}

}  // namespace octavo::cli
