// Files or random numbers, never a mixture.
#include "run_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "error.h"
#include "exit.h"
#include "tensors/scales_file.h"
#include "tensors/tensor_file.h"

namespace octavo::cli {
namespace {

Operand load_operand(const OperandFlags& flags, std::optional<DType> untyped,
                     std::int64_t block_rows) {
  const std::string flag = "--" + flags.letter;
  Operand operand;
  operand.values = require(load_tensor(flag, flags.file, untyped));
  const Tensor view = require(bhsd_view(flag, operand.values));
  operand.granularity = require(parse_granularity(flags.granularity));
  if (flags.scales_file.empty()) return operand;
  if (!is_8bit(operand.values.dtype)) {
    require(bad_input(flag + "-scales", fmt::format("given for {} values", name(view.dtype)),
                      "scales of 8-bit values; others have none"));
  }
  operand.scales =
      load_scales(flag + "-scales", flags.scales_file, view.shape, operand.granularity, block_rows);
  return operand;
}

Operand random_operand(DType dtype, const Shape4& shape, std::uint64_t seed, std::uint64_t stream) {
  Operand operand;
  operand.values =
      require(make_tensor("--shape", dtype, std::vector<std::int64_t>(shape.begin(), shape.end())));
  require(random_normal(require(bhsd_view("--shape", operand.values)), seed, stream));
  return operand;
}

Inputs random_inputs(const InputFlags& flags, DType dtype) {
  if (is_8bit(dtype)) {
    require(bad_input("--dtype", fmt::format("{} for random inputs", name(dtype)),
                      "f32, f16, bf16; --precision has the 8-bit modes"));
  }
  const BenchCase c = flags.shape.single_case();
  const std::int64_t kv_heads = flags.kv.heads.value_or(c.heads);
  const std::int64_t kv_length = flags.kv.length.value_or(c.length);
  const Shape4 q_shape = {c.batch, c.heads, c.length, c.head_dim};
  const Shape4 kv_shape = {c.batch, kv_heads, kv_length, c.head_dim};
  return {random_operand(dtype, q_shape, flags.seed, 0),
          random_operand(dtype, kv_shape, flags.seed, 1),
          random_operand(dtype, kv_shape, flags.seed, 2), flags.seed};
}

}  // namespace

void OperandFlags::add(CLI::App& app, const std::string& operand_letter) {
  letter = operand_letter;
  const std::string flag = "--" + letter;
  app.add_option(flag, file, "a (B,H,S,D) array: X.npy, X.safetensors, X.safetensors:NAME")
      ->type_name("FILE")
      ->group("Inputs from files");
  app.add_option(flag + "-scales", scales_file, "scales of an 8-bit " + letter + ", f32")
      ->type_name("FILE")
      ->group("Inputs from files");
  app.add_option(flag + "-granularity", granularity, "what shares one of those scales")
      ->type_name("G")
      ->capture_default_str()
      ->group("Inputs from files");
}

void InputFlags::add(CLI::App& app) {
  q.add(app, "q");
  k.add(app, "k");
  v.add(app, "v");
  shape.add(app, ShapeFlags::Count::one);
  kv.add(app);
  add_dtype(app, dtype,
            "of random inputs: f32, f16 (default), bf16; of untyped files: bf16, e4m3, e5m2");
  add_seed(app, seed);
}

Inputs load_inputs(const InputFlags& flags, std::int64_t block_rows) {
  std::optional<DType> dtype;
  if (!flags.dtype.empty()) dtype = require(parse_dtype(flags.dtype));
  const int files = static_cast<int>(!flags.q.file.empty()) +
                    static_cast<int>(!flags.k.file.empty()) +
                    static_cast<int>(!flags.v.file.empty());
  if (files == 0 && flags.shape.given()) return random_inputs(flags, dtype.value_or(DType::f16));
  if (files != 3 || flags.shape.given()) {
    require(bad_input("the input",
                      fmt::format("{} of --q, --k and --v {} a size", files,
                                  flags.shape.given() ? "with" : "without"),
                      "all three files, or --shape or --preset for random values"));
  }
  if (flags.kv.heads || flags.kv.length) {
    require(bad_input("the input", "files with --kv-heads or --kv-length",
                      "those for random values only"));
  }
  return {load_operand(flags.q, dtype, block_rows), load_operand(flags.k, dtype, block_rows),
          load_operand(flags.v, dtype, block_rows), std::nullopt};
}

}  // namespace octavo::cli
