// SPDX-License-Identifier: Apache-2.0
#include "gpu/quantize/prepare_operands.h"

#include <algorithm>
#include <cmath>

#include "attention/operand.h"
#include "base/error.h"
#include "base/tensor_checks.h"
#include "gpu/forward/forward_params.h"
#include "gpu/quantize/launch_quantize.h"
#include "gpu/quantize/operand_conversion.h"
#include "numeric/scale.h"

namespace octavo {
namespace {

// One launch is estimated to be faster than two up to this many elements of V. Beyond it the
// exchange in clusters leaves memory idle: it reaches 62% of a copy's speed, two launches 90%.
constexpr std::int64_t kHeldElements = 1 << 21;

QuantizeConfig choose_quantize(const Conversion& x, int arch, int alignment) {
  const OperandFormat& format = x.format;
  QuantizeConfig c;
  c.arch = arch;
  c.transposed = x.transposed;
  // Copying 8-bit values does not depend on their format, except for INT8's flipped sign.
  const bool moved = !format.rounded && format.stored != DType::int8;
  c.from = moved ? Element::e4m3 : element_of(format.stored);
  c.to = format.rounded ? element_of(*format.rounded) : c.from;
  c.group = group_of(format);
  c.hadamard = format.hadamard;
  c.smooth = x.smooth();
  c.columns = static_cast<int>(columns_of(x.head_dim));
  if (x.transposed) c.threads = quantizer::kValueThreads;
  const int bytes = element_bytes(c.from);
  const int vector = min_of(quantizer::kVector * bytes, 16);  // bytes of one load
  c.load_bytes = alignment >= vector && x.head_dim * bytes % vector == 0 ? 16 : bytes;
  return c;
}

// The amax pass does not depend on the 8-bit format, so that all formats share one kernel.
QuantizeConfig first_pass(QuantizeConfig c) {
  c.amax_pass = true;
  c.to = QuantizeConfig{}.to;
  c.threads = QuantizeConfig{}.threads;
  c.transposed = false;
  return c;
}

// The passes that compute the mean of a smoothed K: pass 1 sums, pass 2 divides. Pass 1 does not
// depend on the output format, and pass 2 not on the input type either.
QuantizeConfig mean_pass(const QuantizeConfig& c, int pass) {
  QuantizeConfig made;
  made.arch = c.arch;
  made.columns = c.columns;
  made.mean_pass = pass;
  if (pass == 1) {
    made.from = c.from;
    made.load_bytes = c.load_bytes;
  }
  return made;
}

// Whether one launch can quantize all three operands: it supports only these granularities.
bool share_launch(const Conversions& x, int arch, int alignment) {
  const auto fits = [&](const Conversion& operand, Granularity granularity) {
    const OperandFormat& format = operand.format;
    return format.scales_of_ours() && format.granularity == granularity && !format.hadamard &&
           format.stored == x.q.format.stored && format.rounded == x.q.format.rounded;
  };
  return arch >= 90 && alignment >= 16 && x.v.transposed &&
         x.q.head_dim % quantizer::kVector == 0 && size_bytes(x.q.format.stored) == 2 &&
         fits(x.q, Granularity::row) && fits(x.v, Granularity::channel) &&
         (fits(x.k, Granularity::head) ||
          (fits(x.k, Granularity::block) && x.k.block_rows == quantizer::kBlockRows));
}

// Whether the CTAs of a cluster can hold a head of V, and of K if it has one scale, one tile each.
bool holds(const Conversion& v) {
  return v.longest <= quantizer::kMostCluster * quantizer::kValueKeys &&
         v.sequences * v.heads * v.longest * v.head_dim <= kHeldElements;
}

// A single launch, or the first or second of two.
enum class Pass { one_pass, first, second };
QuantizeConfig choose_operands(const Conversions& x, int arch, Pass pass) {
  QuantizeConfig c = choose_quantize(x.v, arch, 16);
  c.group = group_of(x.k.format);
  c.threads = quantizer::kOperandThreads;
  c.operands = true;
  c.one_pass = pass == Pass::one_pass;
  c.amax_pass = pass == Pass::first;
  // The second launch reads K only if K has a scale per head.
  c.smooth = x.k.smooth() && (pass != Pass::second || c.group == ScaleGroup::head);
  return c;
}

int alignment_of(const ConstTensor& t) {
  std::uint64_t bits = 16 | reinterpret_cast<std::uintptr_t>(t.data);
  for (std::size_t i = 0; i < 3; ++i)
    if (t.shape[i] > 1) bits |= static_cast<std::uint64_t>(t.stride[i]) * size_bytes(t.dtype);
  return static_cast<int>(bits & (~bits + 1));
}

// All parameters except the addresses. `scales`: the caller's, or those that the quantizer writes.
QuantizeParams params_of(const Conversion& x, const ConstTensor& from, const ConstTensor& to,
                         const Scales& scales) {
  QuantizeParams p;
  p.x_strides = {from.stride[0], from.stride[1], from.stride[2]};
  p.out_strides = {to.stride[0], to.stride[1], to.stride[2]};
  p.out_columns = static_cast<i32>(x.row_elements());
  p.by_token = x.varlen && scales.granularity == Granularity::row ? 1 : 0;
  if (scales.granularity != Granularity::tensor) {
    p.scale_head = scales_per_head({1, 1, p.by_token ? x.rows : x.longest, x.head_dim},
                                   scales.granularity, scales.block_rows);
    p.scale_batch = p.by_token ? 0 : p.scale_head * x.heads;
  }
  p.max_quantized = x.format.max_quantized;
  if (x.smooth()) {
    p.mean_groups = static_cast<i32>(x.mean_groups());
    p.mean_columns = static_cast<i32>(x.mean_columns());
  }
  p.tokens = static_cast<i32>(x.rows);
  p.len = static_cast<i32>(x.longest);
  p.heads = static_cast<i32>(x.heads);
  p.sequences = static_cast<i32>(x.sequences);
  p.head_dim = static_cast<i32>(x.head_dim);
  p.hadamard_size = static_cast<i32>(x.head_dim & -x.head_dim);
  p.hadamard_norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.hadamard_size)));
  return p;
}

void set_scales_of_caller(const ScaleParams& scales, Granularity granularity, QuantizeParams& p) {
  p.scale_batch = scales.batch;
  p.scale_head = scales.head;
  p.scale_stride = scales.stride;
  p.scale_rows = granularity == Granularity::channel ? 0 : scales.block_rows;
  p.by_token = scales.by_token;
}

// An operand of the caller and of the forward kernel.
struct OperandArguments {
  const ConstTensor& from;
  const Scales& from_scales;
  ConstTensor& to;
  Scales& to_scales;
};

// Replaces the operand by the forward kernel's, and sets all parameters of its launch except the
// addresses.
QuantizeMemory convert(const Conversion& x, const Arguments& a, const OperandArguments& operand,
                       OperandPlace& place, QuantizeParams& params) {
  place.converted = true;
  place.own_scales = x.format.scales_of_ours();
  place.dequantized = x.dequantizes();
  operand.to = x.tensor(nullptr);
  if (place.own_scales)
    operand.to_scales = {nullptr, x.format.granularity, x.block_rows, {}, x.format.max_quantized};
  params = params_of(x, operand.from, operand.to, operand.to_scales);
  std::int64_t floats = scale_floats(x, x.varlen);
  if (place.dequantized) {
    const Scales& scales = operand.from_scales;
    set_scales_of_caller(scale_params(a, operand.from, scales, x.longest), scales.granularity,
                         params);
    floats = scales_extent(a, operand.from, scales, x.longest);
    operand.to_scales = {};
  }
  return {operand.from,
          static_cast<std::size_t>(x.bytes()),
          static_cast<std::size_t>(floats) * 4,
          static_cast<std::size_t>(partial_floats(x)) * 4,
          static_cast<std::size_t>(x.mean_floats() * x.mean_groups()) * 8,
          static_cast<std::size_t>(x.mean_floats()) * 4};
}

std::array<OperandArguments, 3> operands_of(const Arguments& a, Arguments& made) {
  return {{{a.q, a.q_scales, made.q, made.q_scales},
           {a.k, a.k_scales, made.k, made.k_scales},
           {a.v, a.v_scales, made.v, made.v_scales}}};
}

}  // namespace

std::string describe_quantizers(const Resolved& resolved, bool exp_by_integers) {
  const OperandFormats& formats = resolved.formats;
  std::string text;
  for (const auto& [what, format] :
       {std::pair{"Q", &formats.q}, {"K", &formats.k}, {"V", &formats.v}})
    if (format->rounded)
      text +=
          fmt::format("{} {} becomes {}", text.empty() ? ';' : ',', what, name(*format->rounded));
  if (resolved.conversions.v.transposed && !formats.v.rounded)
    text += fmt::format("{} V is transposed", text.empty() ? ';' : ',');
  if (!text.empty()) text += " first";
  if (resolved.run_problem.options.precision == Precision::fp8_fast)
    text += exp_by_integers ? "; P by integer arithmetic on its 8-bit value"
                            : "; exp is exact here, so fp8_fast gives what fp8 gives";
  return text;
}

std::vector<QuantizeConfig> quantizers_of(const Resolved& resolved, int arch, int alignment) {
  const Conversions& x = resolved.conversions;
  std::vector<QuantizeConfig> all;
  const auto add = [&all](const QuantizeConfig& config) {
    if (std::find(all.begin(), all.end(), config) == all.end()) all.push_back(config);
  };
  const auto add_means = [&](const QuantizeConfig& config) {
    for (const int pass : {1, 2}) add(mean_pass(config, pass));
  };
  if (share_launch(x, arch, alignment)) {
    if (x.k.smooth()) add_means(choose_quantize(x.k, arch, alignment));
    add(choose_operands(x, arch, Pass::one_pass));  // a run may be shorter than the plan
    if (holds(x.v)) return all;
    add(choose_operands(x, arch, Pass::first));
    add(choose_operands(x, arch, Pass::second));
    return all;
  }
  for (const Conversion* operand : {&x.q, &x.k, &x.v}) {
    if (!operand->needed()) continue;
    const QuantizeConfig config = choose_quantize(*operand, arch, alignment);
    if (config.smooth) add_means(config);
    if (quantizer::two_passes(config.group)) add(first_pass(config));
    add(config);
  }
  return all;
}

void set_addresses(PreparedCall& call, const Arguments& a, void* workspace) {
  auto* const base = static_cast<std::byte*>(workspace);
  Arguments& made = call.arguments;
  const std::array<OperandArguments, 3> operands = operands_of(a, made);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandPlace& place = call.places[i];
    const OperandArguments& x = operands[i];
    x.to.data = place.converted ? base + place.offsets.result : x.from.data;
    x.to_scales.data = place.own_scales
                           ? reinterpret_cast<const float*>(base + place.offsets.scales)
                       : place.dequantized ? nullptr
                                           : x.from_scales.data;
  }
  made.out.data = a.out.data;
  made.lse.data = a.lse.data;
  made.cu_seqlens_q = a.cu_seqlens_q;
  made.cu_seqlens_kv = a.cu_seqlens_kv;
  made.out_scales.data = a.out_scales.data;
  made.out_amax = a.out_amax;
  const auto point = [&](std::size_t i, QuantizeParams& p, QuantizeMemory& memory) {
    const OperandOffsets& offsets = call.places[i].offsets;
    const OperandArguments& x = operands[i];
    memory.from.data = p.x = x.from.data;
    p.out = base + offsets.result;
    p.scales =
        const_cast<float*>(call.places[i].own_scales ? x.to_scales.data : x.from_scales.data);
    p.partial_amax = reinterpret_cast<float*>(base + offsets.partials);
    p.cu_seqlens = i == 0 ? a.cu_seqlens_q : a.cu_seqlens_kv;
    if (p.mean_groups == 0) return;
    p.mean_sums = reinterpret_cast<double*>(base + offsets.mean_sums);
    p.means = reinterpret_cast<float*>(base + offsets.means);
  };
  for (std::size_t n = 0; n < call.count; ++n) {
    QuantizeLaunch& launch = call.launches[n];
    if (launch.config.operands) {
      point(0, launch.params.q, launch.memory[0]);
      point(1, launch.params.k, launch.memory[1]);
      point(2, launch.params.v, launch.memory[2]);
    } else {
      point(launch.operand, launch.params.q, launch.memory[0]);
    }
  }
}

PreparedCall prepare_call(const Resolved& resolved, const Arguments& a, void* workspace, int arch,
                          const SubstituteQuantize& substitute) {
  PreparedCall call;
  call.arguments = a;
  call.overlap_launch = resolved.run_problem.options.overlap_launch;
  const Conversions& x = resolved.conversions;
  const std::array conversions = {&x.q, &x.k, &x.v};
  const std::array<OperandArguments, 3> operands = operands_of(a, call.arguments);
  if (x.v.transposed) call.arguments.v_layout = VLayout::transposed;
  const auto add = [&](const QuantizeConfig& config, QuantizeLaunch& launch) {
    launch.config = substitute ? substitute(config, x.q.head_dim) : config;
    if (launch.config.operands)
      set_grid(x, launch);
    else
      set_grid(*conversions[launch.operand], launch);
    call.launches[call.count++] = launch;
  };
  const auto take = [&](std::size_t i, QuantizeParams& params) {
    call.places[i].offsets = resolved.offsets[i];
    return convert(*conversions[i], a, operands[i], call.places[i], params);
  };
  // Adds the two launches that compute the mean rows of K.
  const auto add_means = [&](const QuantizeConfig& config, const QuantizeParams& of,
                             const QuantizeMemory& memory) {
    QuantizeLaunch launch;
    launch.operand = 1;
    launch.params.q = of;
    launch.memory[0] = memory;
    for (const int pass : {1, 2}) add(mean_pass(config, pass), launch);
  };
  const int alignment = std::min({alignment_of(a.q), alignment_of(a.k), alignment_of(a.v)});
  if (share_launch(x, arch, alignment)) {
    QuantizeLaunch launch;
    launch.memory = {take(0, launch.params.q), take(1, launch.params.k), take(2, launch.params.v)};
    if (x.k.smooth())
      add_means(choose_quantize(x.k, arch, alignment), launch.params.k, launch.memory[1]);
    const bool hold = holds(x.v);
    add(choose_operands(x, arch, hold ? Pass::one_pass : Pass::first), launch);
    if (!hold) add(choose_operands(x, arch, Pass::second), launch);
  } else {
    for (std::size_t i = 0; i < conversions.size(); ++i) {
      if (!conversions[i]->needed()) continue;
      const QuantizeConfig config =
          choose_quantize(*conversions[i], arch, alignment_of(operands[i].from));
      QuantizeLaunch launch;
      launch.operand = i;
      launch.memory[0] = take(i, launch.params.q);
      if (config.smooth) add_means(config, launch.params.q, launch.memory[0]);
      if (quantizer::two_passes(config.group)) add(first_pass(config), launch);
      add(config, launch);
    }
  }
  set_addresses(call, a, workspace);
  return call;
}

Conversion conversion_of(const QuantizeArguments& a, const QuantizeOptions& options,
                         float max_quantized, bool any_columns) {
  const bool varlen = a.cu_seqlens != nullptr;
  Conversion x;
  x.format = {a.x.dtype,     a.quantized.dtype, options.granularity,
              max_quantized, options.smooth,    options.hadamard};
  x.sequences = varlen ? a.sequences : a.x.shape[0];
  x.heads = a.x.shape[1];
  x.longest = varlen ? a.max_seqlen : a.x.shape[2];
  x.batches = a.x.shape[0];
  x.rows = a.x.shape[2];
  x.head_dim = a.x.shape[3];
  x.block_rows = options.block_rows;
  x.varlen = varlen;
  x.transposed = options.layout == VLayout::transposed;
  x.any_columns = any_columns;
  return x;
}

namespace {

struct QuantizeOffsets {
  std::int64_t mean_sums, end;  // behind the partial maxima
};
QuantizeOffsets quantize_offsets(const Conversion& x) {
  constexpr std::int64_t kSumAlignment = 64;
  const std::int64_t sums = round_up(partial_floats(x) * 4, kSumAlignment);
  return {sums, sums + x.mean_floats() * x.mean_groups() * 8};
}

}  // namespace

std::size_t quantize_workspace_bytes(const Conversion& x) {
  return static_cast<std::size_t>(quantize_offsets(x).end);
}

PreparedCall prepare_quantize(const Conversion& x, const QuantizeArguments& a, void* workspace,
                              int arch, const SubstituteQuantize& substitute) {
  PreparedCall call;
  QuantizeLaunch launch;
  QuantizeParams& p = launch.params.q;
  p = params_of(x, a.x, a.quantized, {a.scales, x.format.granularity, x.block_rows});
  p.out_columns = p.head_dim;
  p.x = a.x.data;
  p.out = a.quantized.data;
  p.scales = a.scales;
  p.cu_seqlens = a.cu_seqlens;
  p.partial_amax = static_cast<float*>(workspace);
  p.mean_sums =
      reinterpret_cast<double*>(static_cast<std::byte*>(workspace) + quantize_offsets(x).mean_sums);
  p.means = a.mean;
  launch.memory[0] = {a.x,
                      extent_bytes(a.quantized),
                      static_cast<std::size_t>(scale_floats(x, x.varlen)) * 4,
                      static_cast<std::size_t>(partial_floats(x)) * 4,
                      static_cast<std::size_t>(x.mean_floats() * x.mean_groups()) * 8,
                      static_cast<std::size_t>(x.mean_floats()) * 4};
  const auto add = [&](const QuantizeConfig& config) {
    launch.config = substitute ? substitute(config, x.head_dim) : config;
    set_grid(x, launch);
    call.launches[call.count++] = launch;
  };
  const QuantizeConfig config = choose_quantize(x, arch, alignment_of(a.x));
  if (config.smooth)
    for (const int pass : {1, 2}) add(mean_pass(config, pass));
  if (quantizer::two_passes(config.group)) add(first_pass(config));
  add(config);
  return call;
}

}  // namespace octavo
