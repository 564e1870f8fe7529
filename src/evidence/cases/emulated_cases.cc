// SPDX-License-Identifier: Apache-2.0
#include "evidence/cases/emulated_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "config/shared_parts.h"
#include "evidence/cases/append_case.h"
#include "evidence/cases/inputs.h"
#include "evidence/ladder/ladder_cases.h"
#include "gpu/jit/config_text.h"
#include "gpu/ladder/ladder.h"
#include "numeric/formats.h"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/emulated/emulated_launch.h"

namespace octavo::evidence {
namespace {

constexpr Device kSm89{Device::Kind::emulator, 0};
constexpr Device kSm90{Device::Kind::emulator, 90};

const GpuInfo& chip_of(Device device) { return emulated_gpu(device).value()->info; }

// The arrays of a case's modifiers and padding.
struct ModifierArrays {
  std::vector<float> bias, slopes, sinks;
  std::vector<std::uint8_t> mask;
  std::vector<std::int32_t> seqlens_q, seqlens_kv, leftpad_q, leftpad_kv;
};

// A case with its memory.
struct CaseInputs {
  Inputs inputs;
  Problem problem;
  ModifierArrays modifiers{};
};
Result<std::shared_ptr<CaseInputs>> pose(const Case& c) {
  Result<Inputs> inputs = make_inputs(c);
  if (!inputs.ok()) return inputs.status();
  const auto prepared = std::make_shared<CaseInputs>(CaseInputs{std::move(inputs).value(), {}});
  const Result<Problem> problem = problem_of(prepared->inputs.given, c.options);
  if (!problem.ok()) return problem.status();
  prepared->problem = *problem;
  return prepared;
}

// The arguments in the form that a kernel needs; converted operands are in `memory`.
Result<Arguments> arguments_for(const Sm80ForwardConfig& /*config*/, const CaseInputs& prepared,
                                std::vector<std::byte>& /*memory*/) {
  return prepared.inputs.given;
}
Result<Arguments> arguments_for(const Sm90ForwardConfig& config, const CaseInputs& prepared,
                                std::vector<std::byte>& memory) {
  return with_operands_for(config, prepared.problem, prepared.inputs.given, memory);
}

Result<Arguments> arguments_for(const DecodeConfig& /*config*/, const CaseInputs& prepared,
                                std::vector<std::byte>& /*memory*/) {
  return prepared.inputs.given;
}
Result<Arguments> arguments_for(const LadderConfig& /*config*/, const CaseInputs& prepared,
                                std::vector<std::byte>& /*memory*/) {
  return prepared.inputs.given;
}

// The batch size that marks cases whose padding has to be clamped.
constexpr std::int64_t kPaddedSequences = 6;

// Padding whose lengths are negative or beyond the tensor.
void add_padding(CaseInputs& x, bool left_of_keys) {
  Arguments& a = x.inputs.given;
  ModifierArrays& m = x.modifiers;
  const auto q = static_cast<std::int32_t>(a.q.shape[2]);
  const auto kv = static_cast<std::int32_t>(a.k.shape[2]);
  m.leftpad_q = {-3, 2, q + 9, 1, 0, 5};
  m.seqlens_q = {q + 7, 3, 4, -1, q - 4, q - 5};
  m.leftpad_kv = {2, -5, 0, 3, kv + 9, 1};
  m.seqlens_kv = {kv + 7, kv - 6, 5, kv, 4, -1};
  a.leftpad_q = m.leftpad_q.data();
  a.seqlens_q = m.seqlens_q.data();
  if (left_of_keys) a.leftpad_kv = m.leftpad_kv.data();
  a.seqlens_kv = m.seqlens_kv.data();
}

// Gives a case every modifier that its batch and the kernel allow. Keys are hidden in no particular
// order. A batch of kPaddedSequences gets lengths that are negative or beyond the tensor.
void add_modifiers(CaseInputs& x, const ModifierConfig& config) {
  Arguments& a = x.inputs.given;
  const Problem& p = x.problem;
  ModifierArrays& m = x.modifiers;
  const auto value = [](std::size_t i) { return static_cast<float>(i * 37 % 64) / 32.0f - 1.0f; };
  for (std::size_t i = 0; i < static_cast<std::size_t>(p.heads_q); ++i) {
    m.slopes.push_back(0.03f * static_cast<float>(i + 1));
    m.sinks.push_back(value(i + 3));
  }
  if (config.alibi) a.alibi_slopes = m.slopes.data();
  if (config.sinks) a.sinks = m.sinks.data();
  if (p.varlen || !config.bias) return;
  const std::int64_t rows = a.q.shape[2], keys = a.k.shape[2];
  // Rows are a multiple of 16 elements, so that TMA can load them.
  const std::int64_t row_elements = div_up<std::int64_t>(keys, 16) * 16;
  const auto places = static_cast<std::size_t>(p.heads_q * rows * row_elements);
  const auto bias_type = static_cast<DType>(config.bias_element);
  m.bias.resize(places);  // floats, or 16-bit elements in the first half
  for (std::size_t i = 0; i < places; ++i) {
    store_element(bias_type, m.bias.data(), static_cast<std::int64_t>(i), value(i));
    m.mask.push_back(i % 5 == 2 ? 0 : 1);
  }
  const auto rows_of = [&](void* data, DType dtype) {
    Tensor t = Tensor::bhsd(data, dtype, 1, p.heads_q, rows, row_elements);
    t.shape[3] = keys;
    return t;
  };
  a.bias = rows_of(m.bias.data(), bias_type);
  if (config.mask) a.mask = rows_of(m.mask.data(), DType::boolean);
  if (p.batch == kPaddedSequences) add_padding(x, !config.score_tiles);
}

template <class Kernel>
Result<EmulatedCase> forward_case(const Kernel& kernel, const GpuInfo& chip, const Case& c) {
  const Result<std::shared_ptr<CaseInputs>> run_problem = pose(c);
  if (!run_problem.ok()) return run_problem.status();
  CaseInputs& x = **run_problem;
  if constexpr (requires { kernel.config.modifiers; }) {
    if (any(kernel.config.modifiers)) add_modifiers(x, kernel.config.modifiers);
  } else if (c.batch == kPaddedSequences) {  // the decode kernel's cases have their own modifiers
    add_padding(x, true);
  }
  const Result<Problem> modified = problem_of(x.inputs.given, c.options);
  if (!modified.ok()) return modified.status();
  x.problem = *modified;
  EmulatedCase made;
  made.name = c.name();
  made.run = [&kernel, chip, prepared = *run_problem](const emulator::Settings& settings,
                                                      const EmulatorThen& then) {
    poison_outputs(prepared->inputs);
    std::vector<std::byte> memory;
    const Result<Arguments> arguments = arguments_for(kernel.config, *prepared, memory);
    if (!arguments.ok()) return arguments.status();
    return run_emulated(kernel, chip, prepared->problem, *arguments, settings, then);
  };
  made.outputs = [prepared = *run_problem] {
    std::vector<std::byte> bytes = prepared->inputs.out.bytes;
    const std::vector<std::byte>& lse = prepared->inputs.lse.bytes;
    bytes.insert(bytes.end(), lse.begin(), lse.end());
    const std::vector<std::byte>& amax = prepared->inputs.amax.bytes;
    bytes.insert(bytes.end(), amax.begin(), amax.end());
    return bytes;
  };
  return made;
}

// The quantizers of one call, of which those with the subject's configuration are examined.
struct QuantizedCall {
  std::shared_ptr<CaseInputs> prepared;
  const emulator::EmulatedQuantize* subject;
  std::vector<std::byte> memory;
  std::size_t skipped = 0;  // bytes of it before the workspace
  std::size_t bytes = 0;    // of the workspace

  Status run(const emulator::Settings& settings, const EmulatorThen& then) {
    constexpr std::size_t kAlignment = 64;
    const Problem& problem = prepared->problem;
    const VLayout layout = subject->config.transposed ? VLayout::transposed : VLayout::rows;
    const Result<Resolved> resolved = resolve(problem, &prepared->inputs.given, layout, true);
    if (!resolved.ok()) return resolved.status();
    bytes = resolved->workspace_bytes;
    memory.assign(bytes + kAlignment, kPoison);
    void* workspace = memory.data();
    std::size_t room = memory.size();
    std::align(kAlignment, bytes, workspace, room);
    skipped = memory.size() - room;
    const PreparedCall call =
        prepare_call(*resolved, prepared->inputs.given, workspace, chip().arch,
                     [this](const QuantizeConfig& chosen, std::int64_t head_dim) {
                       return substitute(chosen, static_cast<int>(head_dim));
                     });
    for (std::size_t i = 0; i < call.count; ++i) {
      const QuantizeLaunch& pass = call.launches[i];
      const bool looked_at = pass.config == subject->config;
      const emulator::EmulatedQuantize* const kernel =
          looked_at ? subject
                    : emulator::find_quantize(pass.config, static_cast<int>(problem.head_dim));
      if (kernel == nullptr)
        return unsupported("quantizer", to_text(pass.config), "those of the emulator");
      OCTAVO_RETURN_IF_ERROR(run_emulated(
          *kernel, chip(), pass, looked_at ? settings : emulator::Settings{},
          looked_at ? then : [](const emulator::Machine&) {}));
    }
    return {};
  }

 private:
  // Only Hopper quantizes all operands in one launch.
  const GpuInfo& chip() const { return chip_of(subject->config.operands ? kSm90 : kSm89); }

  // Returns the subject if it does the same to these rows with another load width. e5m2, which no
  // mode uses, replaces e4m3.
  QuantizeConfig substitute(QuantizeConfig chosen, int head_dim) const {
    QuantizeConfig same = subject->config;
    if (same.to == Element::e5m2 && chosen.to == Element::e4m3) chosen.to = Element::e5m2;
    same.arch = chosen.arch;
    same.columns = chosen.columns;
    same.load_bytes = chosen.load_bytes;
    if (same == chosen) return subject->config;
    const emulator::EmulatedQuantize* const found = emulator::find_quantize(chosen, head_dim);
    return found != nullptr ? found->config : chosen;
  }
};

Result<EmulatedCase> quantize_case(const emulator::EmulatedQuantize& kernel, const Case& c) {
  const Result<std::shared_ptr<CaseInputs>> inputs = pose(c);
  if (!inputs.ok()) return inputs.status();
  const auto call = std::make_shared<QuantizedCall>(QuantizedCall{*inputs, &kernel, {}, 0, 0});
  EmulatedCase made;
  made.name = c.name();
  made.run = [call](const emulator::Settings& settings, const EmulatorThen& then) {
    return call->run(settings, then);
  };
  made.outputs = [call] {
    const auto begin = call->memory.begin() + static_cast<std::ptrdiff_t>(call->skipped);
    return std::vector<std::byte>(begin, begin + static_cast<std::ptrdiff_t>(call->bytes));
  };
  return made;
}

template <class Config, class Make>
Result<std::vector<EmulatedCase>> make_cases(const Config& config, const Make& make) {
  std::vector<EmulatedCase> cases;
  for (const Case& c : cases_for(config)) {
    Result<EmulatedCase> made = make(c);
    if (!made.ok()) return made.status();
    cases.push_back(std::move(made).value());
  }
  return cases;
}

// In the order of emulated_kernels().
std::vector<EmulatedSubject> all_subjects() {
  std::vector<EmulatedSubject> all;
  const auto add = [&all](const char* family, const auto& kernels, const auto& make) {
    for (const auto& kernel : kernels)
      all.push_back(
          {family, to_text(kernel.config), brief_text(kernel.config),
           [&kernel, make] {
             return make_cases(kernel.config, [&](const Case& c) { return make(kernel, c); });
           },
           cases_for(kernel.config), [&kernel, make](const Case& c) { return make(kernel, c); }});
  };
  add("sm80_forward", emulator::sm80_forward_kernels(),
      [](const auto& kernel, const Case& c) { return forward_case(kernel, chip_of(kSm89), c); });
  add("sm90_forward", emulator::sm90_forward_kernels(), [](const auto& kernel, const Case& c) {
    return forward_case(kernel, narrow_sm90_chip(), c);
  });
  add("quantize", emulator::quantize_kernels(),
      [](const auto& kernel, const Case& c) { return quantize_case(kernel, c); });
  add("decode", emulator::decode_kernels(), [](const auto& kernel, const Case& c) {
    GpuInfo chip = chip_of(kernel.config.arch == 90 ? kSm90 : kSm89);
    chip.sms = 5;  // units are cut at places that divide nothing
    return forward_case(kernel, chip, c);
  });
  add("append", emulator::append_kernels(),
      [](const auto& kernel, const Case& c) { return append_case(kernel, chip_of(kSm90), c); });
  add("ladder", emulator::ladder_kernels(),
      [](const auto& kernel, const Case& c) { return forward_case(kernel, chip_of(kSm90), c); });
  return all;
}

DType dtype_of(Element element) { return static_cast<DType>(element); }

// The widest rows that are narrower than the kernel's tiles and are whole vectors, even if heads
// are adjacent in memory. Rows of V are narrower by another such number.
template <class Config>
void set_narrow_rows(const Config& config, Case& c) {
  const int vector =
      16 / std::min(element_bytes(config.element), element_bytes(config.output.element));
  c.head_dim = config.head_dim - vector;
  if (config.head_dim_v > 0) c.head_dim_v = config.head_dim_v - 3 * vector;
}

// A varlen batch whose cu_seqlens kernels must clamp.
void pose_hostile_seqlens(Case& c) {
  c.layout = Layout::varlen;
  c.batch = kHostileSequences;
  c.seqlens = Seqlens::hostile;
}

Precision precision_to(Element element) {
  switch (element) {
    case Element::f16:
      return Precision::fp16;
    case Element::bf16:
      return Precision::bf16;
    case Element::int8:
      return Precision::int8;
    case Element::sim8:
      return Precision::sim8;
    default:
      return Precision::fp8;
  }
}

// First passes and mean passes do not depend on the format; the list has the kernels that follow
// them.
Element quantized_format(const QuantizeConfig& config) {
  if (config.mean_pass > 0) return Element::e4m3;
  if (!config.amax_pass || config.operands) return config.to;
  return config.hadamard ? Element::sim8 : Element::e4m3;
}

Granularity granularity_of(ScaleGroup group) {
  switch (group) {
    case ScaleGroup::block:
      return Granularity::block;
    case ScaleGroup::head:
      return Granularity::head;
    case ScaleGroup::tensor:
      return Granularity::tensor;
    case ScaleGroup::channel:
      return Granularity::channel;
    default:
      return Granularity::row;
  }
}

}  // namespace

GpuInfo narrow_sm90_chip() {
  GpuInfo chip = chip_of(kSm90);
  chip.sms = 1;
  return chip;
}

Result<std::vector<EmulatedSubject>> subjects_by_name(const std::string& name) {
  const std::vector<EmulatedSubject> all = all_subjects();
  std::size_t number = all.size();
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, number);
  const bool numbered = error == std::errc() && rest == end;
  std::vector<EmulatedSubject> chosen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const EmulatedSubject& s = all[i];
    if (name == "all" || (numbered && number == i) || name == s.config || name == s.brief ||
        name == s.kernel || name == s.kernel + " " + s.brief)
      chosen.push_back(s);
  }
  if (chosen.empty())
    return invalid("kernel", fmt::format("\"{}\"", name),
                   fmt::format("all, a family, 0 to {}, or a config that `octavo emulator "
                               "kernels` lists",
                               all.size() - 1));
  return chosen;
}

// The cases of a kernel with a block mask, from one with its types. `step`: the keys of a step.
static std::vector<Case> block_mask_cases_for(Case c, const ModifierConfig& config,
                                              std::int64_t step) {
  const std::int64_t size = config.block_mask;
  std::vector<Case> cases;
  c.block_mask = size;
  // Several heads with lists of their own or one for all; rows and keys that end inside a block.
  c.heads_q = 4;
  c.heads_kv = 2;
  c.seqlen_q = size + 5;
  c.seqlen_kv = 5 * size + step / 2 + 1;
  for (c.seed = 1; c.seed < 4; ++c.seed) cases.push_back(c);
  Case hostile = c;
  hostile.heads_q = 2;
  hostile.heads_kv = 1;
  hostile.seqlens = Seqlens::hostile;
  cases.push_back(hostile);
  // Both ends of a window, inside blocks that the lists have.
  c.options.causal = Causal::bottom_right;
  c.options.window_left = size + 3;
  cases.push_back(c);
  // Rows without keys, more tiles than the scheduler can announce at once, a negative scale.
  c.options.window_left = -1;
  c.heads_q = c.heads_kv = 3;
  c.batch = 2;
  c.scale = -0.3f;
  c.seqlen_kv = size + 9;
  c.seqlen_q = size + step;
  cases.push_back(c);
  return cases;
}

std::vector<Case> cases_for(const Sm80ForwardConfig& config) {
  Case c;
  c.input = dtype_of(config.element);
  c.out = dtype_of(config.output.element);
  c.amax = config.output.amax;
  c.head_dim = config.head_dim;
  c.head_dim_v = config.head_dim_v;
  if (config.k_row_scales) c.qk_scales = Granularity::row;
  const std::int64_t rows = config.block_m, keys = sm80::step_keys(config);
  std::vector<Case> cases;
  if (config.modifiers.softcap) c.options.softcap = 2;
  if (config.modifiers.block_mask != 0) return block_mask_cases_for(c, config.modifiers, keys);
  // No mask except at the last keys. Every buffer is filled more than once.
  c.seqlen_q = rows + 5;
  c.seqlen_kv = (config.stages + 1) * keys + 7;
  cases.push_back(c);
  // Both ends of a window, each inside a block that other rows see completely.
  c.seqlen_kv = 2 * keys + rows;
  c.options.causal = Causal::bottom_right;
  c.options.window_left = keys + 3;
  cases.push_back(c);
  // Fewer columns than the kernel's tiles; two sequences, the second shorter, with tokens of no
  // sequence around them.
  c.options = {};
  set_narrow_rows(config, c);
  c.batch = 2;
  c.layout = Layout::varlen;
  c.seqlen_q = 9;
  c.seqlen_kv = keys / 2 + 3;
  cases.push_back(c);
  // Heads that share keys, in sequences whose cu_seqlens must be clamped.
  c.heads_q = 4;
  c.heads_kv = 2;
  c.seqlen_q = 5;
  pose_hostile_seqlens(c);
  cases.push_back(c);
  // The mask's last key is the only one in its block.
  c.batch = 1;
  c.layout = Layout::bhsd;
  c.seqlens = Seqlens::plain;
  c.options.causal = Causal::bottom_right;
  c.seqlen_q = 3;
  c.seqlen_kv = keys + 1;
  cases.push_back(c);
  if (!config.modifiers.padded) return cases;
  c.batch = kPaddedSequences;
  c.seqlen_q = rows + 6;
  cases.push_back(c);
  return cases;
}

std::vector<Case> cases_for(const DecodeConfig& config) {
  const bool in_8_bits = decode::is_8bit_kv(config);
  const int tile = decode::tile_keys(config);
  Case c;
  c.input = dtype_of(config.element);
  c.out = dtype_of(config.out);
  const bool int4 = decode::is_int4_kv(config);
  c.draft_tree = config.draft_tree;
  if (in_8_bits || int4) c.kv = dtype_of(config.kv);
  c.kv_group = config.group;
  c.head_dim = config.head_dim;
  c.options.batch_invariant = config.batch_invariant;
  if (int4 || config.batch_invariant) c.page_size = 16;
  std::vector<Case> cases;
  // More rows than a work tile has, more KV tiles than stages, and a work tile in several CTAs.
  c.heads_q = config.block_m + 3;
  c.seqlen_kv = (config.stages + 3) * tile + 7;
  cases.push_back(c);
  // Both ends of a window, and queries that see different keys.
  c.heads_q = 4;
  c.heads_kv = 2;
  c.seqlen_q = 3;
  c.options.causal = Causal::bottom_right;
  c.options.window_left = tile + 3;
  c.seqlen_kv = 3 * tile + 5;
  c.qk_scales = c.v_scales = Granularity::row;
  cases.push_back(c);
  // Fewer columns than the tiles; lengths and pages that the kernel must clamp, modifiers.
  c.options.window_left = -1;
  c.options.softcap = 2;
  c.alibi = c.sinks = true;
  c.head_dim -= int4 ? config.head_dim % (2 * config.group) == 0 ? config.group : 0 : 16;
  c.batch = 4;
  c.page_size = 32;
  c.seqlen_kv = 4 * 32;
  c.qk_scales = Granularity::row;
  c.v_scales = Granularity::head;
  c.seqlens = Seqlens::hostile;
  cases.push_back(c);
  // Padding in Q, and sequences of many lengths.
  c.seqlens = Seqlens::plain;
  c.padded = true;
  c.layout = Layout::bshd;
  cases.push_back(c);
  if (in_8_bits || int4) return cases;
  // Padding on all sides, in a dense cache.
  c.padded = false;
  c.page_size = 0;
  c.batch = kPaddedSequences;
  c.seqlen_q = 9;
  c.seqlen_kv = 2 * tile;
  cases.push_back(c);
  return cases;
}

// Uses the mode, with all tensors of V's type; e5m2, which no mode uses, is given as 8-bit inputs.
void set_mixed_inputs(const Sm90ForwardConfig& config, Case& c) {
  const DType v = dtype_of(config.v_element);
  if (config.element == Element::e5m2) {
    c.v = v;
    return;
  }
  c.input = v;
  c.options.precision =
      config.element == Element::int8 ? Precision::int8_mixed : Precision::fp8_mixed;
  // Otherwise as the mode chooses.
  const bool int8 = config.element == Element::int8;
  if (config.k_scales == KScales::row) c.options.quantization.qk = Granularity::row;
  if (config.k_scales == KScales::block && !int8) c.options.quantization.qk = Granularity::block;
  if (config.k_scales == KScales::head && int8) c.options.quantization.qk = Granularity::head;
}

void set_8bit_inputs(const Sm90ForwardConfig& config, Case& c) {
  if (sm90::is_mixed(config)) {
    set_mixed_inputs(config, c);
    return;
  }
  if (config.v_element != config.element) c.v = dtype_of(config.v_element);
  if (config.k_scales != KScales::head) {
    c.qk_scales = config.k_scales == KScales::row ? Granularity::row : Granularity::block;
    c.v_scales = Granularity::channel;
  }
  if (!sm90::has_f16_scores(config)) return;
  // Only Octavo's own quantizer limits the largest quantized value.
  c.input = DType::f16;
  c.options.precision = config.scores == ScoreType::f16_fast ? Precision::fp8_fast : Precision::fp8;
}

std::vector<Case> cases_for(const Sm90ForwardConfig& config) {
  Case c;
  c.input = dtype_of(config.element);
  c.out = dtype_of(config.output.element);
  c.amax = config.output.amax;
  c.head_dim = config.head_dim;
  c.head_dim_v = config.head_dim_v;
  set_8bit_inputs(config, c);
  c.lse = !config.sum_rounded_p;
  if (config.modifiers.softcap) c.options.softcap = 2;
  if (config.modifiers.block_mask != 0)
    return block_mask_cases_for(c, config.modifiers, config.block_n);
  // pack_gqa: three heads that share keys, and a fourth in another tile.
  const std::int64_t rows = config.pack_gqa ? 6 : sm90::block_m(config), keys = config.block_n;
  const std::int64_t parts = sm90::kv_splits(config);
  if (config.pack_gqa) {
    c.heads_q = 6;
    c.heads_kv = 2;
  }
  std::vector<Case> cases;
  // No mask except for the last keys; every buffer is filled more than once, by every warpgroup or
  // CTA that divides keys; scores so large that maxima grow along the keys.
  c.scale = 2.0f;
  c.seqlen_q = rows + 5;
  c.seqlen_kv = parts * (config.stages + 1) * keys + 7;
  cases.push_back(c);
  c.scale = {};
  // Both ends of a window inside blocks; warpgroups that need fewer blocks than their neighbours.
  c.seqlen_kv = 2 * keys + rows;
  c.options.causal = Causal::bottom_right;
  c.options.window_left = keys + 3;
  cases.push_back(c);
  // Tiles that see no key beside tiles that do, more of them than the scheduler can announce at
  // once; a negative scale.
  c.options.window_left = -1;
  if (!config.pack_gqa) c.heads_q = c.heads_kv = sm90::is_split_kv(config) ? 1 : 3;
  c.scale = -0.3f;
  c.seqlen_kv = 9;
  c.seqlen_q = rows + 9;
  cases.push_back(c);
  // Every kind of padding. An even number of keys, so that two columns of a bias are read at once.
  if (any(config.modifiers)) {
    Case padded = c;
    padded.batch = kPaddedSequences;
    padded.seqlen_kv = keys + 4;
    padded.seqlen_q = rows + 6;
    cases.push_back(padded);
  }
  if (sm90::is_split_kv(config)) return cases;
  // Tiles whose first warpgroups need fewer blocks than the others, repeatedly.
  c.scale = {};
  c.seqlen_q = c.seqlen_kv = rows;
  cases.push_back(c);
  // Fewer columns than the kernel's tiles; sequences that end inside tiles, with tokens of no
  // sequence around them.
  c.options = {};
  set_8bit_inputs(config, c);
  c.head_dim = config.head_dim - 16 / element_bytes(config.element);
  if (config.head_dim_v > 0) c.head_dim_v = config.head_dim_v - 16;
  c.batch = 2;
  c.heads_q = c.heads_kv = 1;
  c.layout = Layout::varlen;
  c.seqlen_q = 70;
  c.seqlen_kv = keys + 3;
  cases.push_back(c);
  // Heads that share keys, in sequences whose cu_seqlens must be clamped.
  c.heads_q = 2;
  set_narrow_rows(config, c);
  c.seqlen_q = 5;
  c.seqlen_kv = keys / 2 + 3;
  pose_hostile_seqlens(c);
  cases.push_back(c);
  // The mask's last key is the only one in its block.
  c.batch = 1;
  c.layout = Layout::bhsd;
  c.seqlens = Seqlens::plain;
  c.options.causal = Causal::bottom_right;
  c.seqlen_q = 3;
  c.seqlen_kv = keys + 1;
  cases.push_back(c);
  return cases;
}

std::vector<Case> cases_for(const QuantizeConfig& config) {
  Case c;
  const bool from_8bit = element_bytes(config.from) == 1;
  c.input = dtype_of(config.from);
  c.out = from_8bit ? DType::f16 : c.input;
  c.lse = false;
  c.options.precision = from_8bit ? Precision::native : precision_to(quantized_format(config));
  c.options.quantization.hadamard = config.hadamard;
  c.options.quantization.smooth_k = config.smooth || config.mean_pass > 0;
  const Granularity granularity = granularity_of(config.group);
  if (quantizer::dequantizes(config)) {
    c.v = c.input;
    c.input = c.out = dtype_of(config.to);
  }
  if (from_8bit)
    c.v_scales = Granularity::channel;
  else if (config.operands)
    c.options.quantization.qk = {};  // as the mode chooses
  else if (config.transposed || granularity == Granularity::channel)
    c.options.quantization.v = granularity;
  else
    c.options.quantization.qk = granularity;
  // Lanes beyond the columns of the result, whose rows are padded.
  c.head_dim = config.columns - 24;
  c.heads_q = c.heads_kv = 2;
  c.seqlen_q = c.seqlen_kv =
      config.transposed ? quantizer::kValueKeys + 35 : 4 * quantizer::rows_at_once(config) + 3;
  if (config.mean_pass > 0) c.seqlen_kv = quantizer::kMeanRows + 35;
  // More keys than a cluster holds, for a kernel that does not hold a head.
  if (config.operands && !config.one_pass)
    c.seqlen_kv = quantizer::kMostCluster * quantizer::kValueKeys + 35;
  std::vector<Case> cases = {c};
  c.layout = Layout::varlen;
  c.batch = 2;
  c.seqlen_q = quantizer::rows_at_once(config) + 3;
  if (!config.operands) c.seqlen_kv = c.seqlen_q;
  cases.push_back(c);
  Case hostile = c;
  hostile.seqlen_q = 9;
  // Scales per block need more than one block: a tile is a block, or the longest sequence if
  // shorter.
  const bool of_blocks = config.group == ScaleGroup::block;
  if (!config.operands) hostile.seqlen_kv = of_blocks ? quantizer::kBlockRows + 6 : 9;
  pose_hostile_seqlens(hostile);
  cases.push_back(hostile);
  // A single key equals its mean, so rows that do not exist must not count when the mean is
  // subtracted. For a kernel without `hold`, it is the only key of a second sequence with this
  // seed.
  if (config.smooth && config.operands && !config.one_pass) {
    c.seed = 674;
    cases.push_back(c);
  } else if (config.smooth) {
    c = cases[0];
    c.seqlen_kv = 1;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace octavo::evidence
