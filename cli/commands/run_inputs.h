// SPDX-License-Identifier: Apache-2.0
// The inputs of `octavo run`: three files, or random numbers of a given size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octavo/octavo.hpp"
#include "options.h"
#include "tensors/host_tensor.h"

namespace CLI {
class App;
}

namespace octavo::cli {

struct OperandFlags {
  void add(CLI::App& app, const std::string& letter);

  std::string letter;
  std::string file;
  std::string scales_file;
  std::string granularity = "head";
};

struct InputFlags {
  void add(CLI::App& app);

  OperandFlags q, k, v;
  ShapeFlags shape;
  KeyValueFlags kv;
  std::string dtype;
  std::uint64_t seed = 42;
};

// The flags for padding and for modifiers of the scores.
struct ModifierFlags {
  void add(CLI::App& app);

  std::string bias, mask, block_mask, alibi_slopes, sinks;   // files
  std::string seqlens_q, seqlens_kv, leftpad_q, leftpad_kv;  // "N,N,...": one for each sequence
};

struct Operand {
  HostTensor values;
  std::optional<HostTensor> scales;  // of 8-bit values
  Granularity granularity = Granularity::head;
};

struct Inputs {
  Operand q, k, v;
  std::optional<std::uint64_t> seed;  // of random inputs
};

struct Modifiers {
  std::optional<HostTensor> bias, mask, block_mask, alibi_slopes, sinks;
  std::vector<std::int32_t> seqlens_q, seqlens_kv, leftpad_q, leftpad_kv;  // empty: not given

  // Sets the pointers of the arguments. The shape of Q is (batch, heads, seqlen, head_dim).
  void set(const Shape4& q, Arguments& arguments);

 private:
  void set_block_mask(Arguments& arguments);

  std::vector<std::int32_t> listed_counts_, listed_blocks_;  // of the block mask
};
Modifiers load_modifiers(const ModifierFlags& flags, const Shape4& q);

Inputs load_inputs(const InputFlags& flags, std::int64_t block_rows);

}  // namespace octavo::cli
