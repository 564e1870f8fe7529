// SPDX-License-Identifier: Apache-2.0
// Reads the inputs of `octavo run` from files, or fills them with random numbers, never a mixture
// of both.
#include "commands/run_inputs.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

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
  const Shape4 k_shape = {c.batch, kv_heads, kv_length, c.head_dim};
  const Shape4 v_shape = {c.batch, kv_heads, kv_length, flags.kv.head_dim_v.value_or(c.head_dim)};
  return {random_operand(dtype, q_shape, flags.seed, 0),
          random_operand(dtype, k_shape, flags.seed, 1),
          random_operand(dtype, v_shape, flags.seed, 2), flags.seed};
}

// Loads a file of f32 values that has one of the given shapes.
std::optional<HostTensor> load_floats(std::string_view flag, const std::string& file,
                                      const std::vector<std::vector<std::int64_t>>& shapes) {
  if (file.empty()) return std::nullopt;
  HostTensor tensor = require(load_tensor(flag, file));
  if (tensor.dtype != DType::f32)
    require(bad_input(flag, fmt::format("of type {}", name(tensor.dtype)), "f32"));
  std::string supported;
  for (const std::vector<std::int64_t>& shape : shapes) {
    if (tensor.shape == shape) return tensor;
    supported += (supported.empty() ? "" : " or ") + shape_text(shape);
  }
  require(bad_input(flag, fmt::format("of shape {}", shape_text(tensor.shape)), supported));
  return tensor;
}

std::vector<std::int32_t> parse_lengths(std::string_view flag, const std::string& text,
                                        std::int64_t batch) {
  if (text.empty()) return {};
  const std::string form = fmt::format("{} lengths, one for each sequence: N,N,...", batch);
  std::vector<std::int32_t> lengths;
  for (const std::int64_t n :
       require(parse_integers(flag, text, static_cast<std::size_t>(batch), form))) {
    if (n < 0 || n > std::numeric_limits<std::int32_t>::max())
      require(bad_input(flag, fmt::format("{}", n), "0 to 2147483647"));
    lengths.push_back(static_cast<std::int32_t>(n));
  }
  return lengths;
}

// Loads a tensor that broadcasts to (B, H, Sq, Skv).
std::optional<HostTensor> load_score_tensor(std::string_view flag, const std::string& file,
                                            std::optional<DType> untyped) {
  if (file.empty()) return std::nullopt;
  HostTensor tensor = require(load_tensor(flag, file, untyped));
  require(bhsd_view(flag, tensor));  // four dimensions
  return tensor;
}

}  // namespace

void ModifierFlags::add(CLI::App& app) {
  const auto add_one = [&app](const char* flag, std::string& value, const char* type,
                              const char* meaning) {
    app.add_option(flag, value, meaning)->type_name(type)->group("Padding and scores");
  };
  add_one("--bias", bias, "FILE", "added to the scores: f32, f16 or bf16, (B,H,S,S) or 1 for each");
  add_one("--mask", mask, "FILE", "0 hides a key: bool, (B,H,S,S) or 1 for each");
  add_one("--block-mask", block_mask, "FILE",
          "0 hides a block of 64 or 128 queries and as many keys: bool, (B,H,blocks,blocks) or 1");
  add_one("--alibi-slopes", alibi_slopes, "FILE", "slopes of ALiBi: f32, (H) or (B,H)");
  add_one("--sinks", sinks, "FILE", "attention sinks: f32, (H)");
  add_one("--seqlens-q", seqlens_q, "N,N,...", "rows of q in use, one number for each sequence");
  add_one("--seqlens-kv", seqlens_kv, "N,N,...", "likewise of k and v");
  add_one("--leftpad-q", leftpad_q, "N,N,...", "rows of q before them that are padding");
  add_one("--leftpad-kv", leftpad_kv, "N,N,...", "likewise of k and v");
}

Modifiers load_modifiers(const ModifierFlags& flags, const Shape4& q) {
  Modifiers made;
  made.bias = load_score_tensor("--bias", flags.bias, {});
  made.mask = load_score_tensor("--mask", flags.mask, DType::boolean);
  made.block_mask = load_score_tensor("--block-mask", flags.block_mask, DType::boolean);
  made.alibi_slopes = load_floats("--alibi-slopes", flags.alibi_slopes, {{q[1]}, {q[0], q[1]}});
  made.sinks = load_floats("--sinks", flags.sinks, {{q[1]}});
  made.seqlens_q = parse_lengths("--seqlens-q", flags.seqlens_q, q[0]);
  made.seqlens_kv = parse_lengths("--seqlens-kv", flags.seqlens_kv, q[0]);
  made.leftpad_q = parse_lengths("--leftpad-q", flags.leftpad_q, q[0]);
  made.leftpad_kv = parse_lengths("--leftpad-kv", flags.leftpad_kv, q[0]);
  return made;
}

// Lists the blocks that are not hidden. Both sizes fit only a mask of one block.
void Modifiers::set_block_mask(Arguments& arguments) {
  const HostTensor& t = *block_mask;
  if (t.dtype != DType::boolean)
    require(bad_input("--block-mask", fmt::format("of type {}", name(t.dtype)), "bool"));
  const auto blocks = [](std::int64_t rows, std::int64_t size) { return (rows + size - 1) / size; };
  const std::int64_t queries = arguments.q.shape[2], keys = arguments.k.shape[2];
  BlockMask& m = arguments.block_mask;
  for (const std::int64_t size : {128, 64})
    if (t.shape[2] == blocks(queries, size) && t.shape[3] == blocks(keys, size))
      m.block_size = size;
  if (m.block_size == 0)
    require(bad_input("--block-mask", fmt::format("of shape {}", shape_text(t.shape)),
                      fmt::format("(B,H,{},{}) in blocks of 64, (B,H,{},{}) in blocks of 128",
                                  blocks(queries, 64), blocks(keys, 64), blocks(queries, 128),
                                  blocks(keys, 128))));
  m.batch = t.shape[0];
  m.heads = t.shape[1];
  m.q_blocks = t.shape[2];
  m.full_kv_capacity = t.shape[3];
  const auto capacity = static_cast<std::size_t>(t.shape[3]);
  listed_counts_.assign(static_cast<std::size_t>(m.batch * m.heads * m.q_blocks), 0);
  listed_blocks_.assign(listed_counts_.size() * capacity + 1, 0);  // an address in any case
  for (std::size_t row = 0; row < listed_counts_.size(); ++row)
    for (std::size_t block = 0; block < capacity; ++block)
      if (t.data[row * capacity + block] != std::byte{0})
        listed_blocks_[row * capacity + static_cast<std::size_t>(listed_counts_[row]++)] =
            static_cast<std::int32_t>(block);
  m.full_kv_num_blocks = listed_counts_.data();
  m.full_kv_indices = listed_blocks_.data();
}

void Modifiers::set(const Shape4& q, Arguments& arguments) {
  if (block_mask) set_block_mask(arguments);
  if (bias) arguments.bias = require(bhsd_view("--bias", *bias));
  if (mask) arguments.mask = require(bhsd_view("--mask", *mask));
  const auto floats = [](const HostTensor& t) {
    return reinterpret_cast<const float*>(t.data.data());
  };
  if (alibi_slopes) arguments.alibi_slopes = floats(*alibi_slopes);
  if (alibi_slopes && alibi_slopes->shape.size() == 2) arguments.alibi_batch_stride = q[1];
  if (sinks) arguments.sinks = floats(*sinks);
  const auto array = [](const std::vector<std::int32_t>& lengths) {
    return lengths.empty() ? nullptr : lengths.data();
  };
  arguments.seqlens_q = array(seqlens_q);
  arguments.seqlens_kv = array(seqlens_kv);
  arguments.leftpad_q = array(leftpad_q);
  arguments.leftpad_kv = array(leftpad_kv);
}

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
  if (flags.kv.heads || flags.kv.length || flags.kv.head_dim_v) {
    require(bad_input("the input", "files with --kv-heads, --kv-length or --head-dim-v",
                      "those for random values only"));
  }
  return {load_operand(flags.q, dtype, block_rows), load_operand(flags.k, dtype, block_rows),
          load_operand(flags.v, dtype, block_rows), std::nullopt};
}

}  // namespace octavo::cli
