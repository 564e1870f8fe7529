#include "gpu/quantize/prepare_operands.h"

#include <algorithm>
#include <cmath>

#include "attention/error.h"
#include "attention/operand.h"
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

QuantizeParams params_of(const Conversion& x, const ConstTensor& from, const std::int32_t* cu,
                         const ConstTensor& to, const Scales& scales, float* partials) {
  QuantizeParams p;
  p.x = from.data;
  p.x_strides = {from.stride[0], from.stride[1], from.stride[2]};
  p.out = const_cast<void*>(to.data);
  p.out_strides = {to.stride[0], to.stride[1], to.stride[2]};
  p.scales = const_cast<float*>(scales.data);
  p.by_token = cu != nullptr && scales.granularity == Granularity::row ? 1 : 0;
  if (scales.granularity != Granularity::tensor) {
    p.scale_head = scales_per_head({1, 1, p.by_token ? x.rows : x.longest, x.head_dim},
                                   scales.granularity, scales.block_rows);
    p.scale_batch = p.by_token ? 0 : p.scale_head * x.heads;
  }
  p.max_quantized = x.format.max_quantized;
  p.partial_amax = partials;
  p.cu_seqlens = cu;
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
  p.scales = const_cast<float*>(scales.data);
  p.scale_batch = scales.batch;
  p.scale_head = scales.head;
  p.scale_stride = scales.stride;
  p.scale_rows = granularity == Granularity::channel ? 0 : scales.block_rows;
  p.by_token = scales.by_token;
}

// Places the prepared operands one after another in the workspace.
class OperandAllocator {
 public:
  OperandAllocator(const Problem& run_problem, const Arguments& a, void* workspace)
      : run_problem_(run_problem), a_(a), bytes_(static_cast<std::byte*>(workspace)) {}

  // Replaces `tensor` and `scales` by those of the forward kernel.
  QuantizeMemory take(const Conversion& x, const std::int32_t* cu, ConstTensor& tensor,
                      Scales& scales, QuantizeParams& params) {
    const OperandOffsets offsets = operand_offsets(x, run_problem_.varlen, end_);
    end_ = offsets.end;
    const ConstTensor from = tensor;
    tensor = x.tensor(bytes_ + offsets.result);
    if (x.format.scales_of_ours())
      scales = {reinterpret_cast<const float*>(bytes_ + offsets.scales),
                x.format.granularity,
                x.block_rows,
                {},
                x.format.max_quantized};
    params =
        params_of(x, from, cu, tensor, scales, reinterpret_cast<float*>(bytes_ + offsets.partials));
    if (x.smooth()) {
      params.mean_sums = reinterpret_cast<double*>(bytes_ + offsets.mean_sums);
      params.means = reinterpret_cast<float*>(bytes_ + offsets.means);
      params.mean_groups = static_cast<i32>(x.mean_groups());
      params.mean_columns = static_cast<i32>(x.mean_columns());
    }
    std::int64_t floats = scale_floats(x, run_problem_.varlen);
    if (x.dequantizes()) {
      set_scales_of_caller(scale_params(a_, from, scales, x.longest), scales.granularity, params);
      floats = scales_extent(a_, from, scales, x.longest);
      scales = {};
    }
    return {from,
            static_cast<std::size_t>(x.bytes()),
            static_cast<std::size_t>(floats) * 4,
            static_cast<std::size_t>(partial_floats(x)) * 4,
            static_cast<std::size_t>(x.mean_floats() * x.mean_groups()) * 8,
            static_cast<std::size_t>(x.mean_floats()) * 4};
  }

 private:
  const Problem& run_problem_;
  const Arguments& a_;
  std::byte* bytes_;
  std::int64_t end_ = 0;
};

}  // namespace

Status quantizers_serve(const Problem& p) {
  const OperandFormats formats = conversion_formats(p);
  if (!formats.q.rounded && !formats.k.rounded && !formats.v.rounded) return {};
  const Quantization& z = p.options.quantization;
  if (formats.v.rounded && p.v_layout == VLayout::transposed)
    return unsupported("v_layout", fmt::format("transposed for {}", describe(p)),
                       "rows with a 16-bit q on a GPU");
  if (z.smooth_k && p.lse)  // LSE would need the mean key
    return unsupported("smooth_k", "on with lse", "off with lse on a GPU");
  for (const OperandFormat* format : {&formats.q, &formats.k, &formats.v})
    if (format->scales_of_ours() && z.rule != ScaleRule::amax)
      return unsupported("quantization.rule", name(z.rule), "amax on a GPU");
  for (const OperandFormat* format : {&formats.q, &formats.k})
    if (format->scales_of_ours() && format->granularity == Granularity::channel)
      return unsupported("quantization.qk", "channel", "tensor, head, block, row on a GPU");
  const Granularity v = formats.v.granularity;
  if (formats.v.scales_of_ours() && (v == Granularity::row || v == Granularity::block))
    return unsupported("quantization.v", name(v), "tensor, head, channel on a GPU");
  if (p.batch * p.heads_kv > INT32_MAX / (p.seqlen_kv + 1) ||
      p.batch * p.heads_q > INT32_MAX / (p.seqlen_q + 1))
    return unsupported("problem", describe(p), "at most 2^31 rows that a GPU quantizes");
  return {};
}

Problem prepared_problem(const Problem& problem) {
  const OperandFormats formats = conversion_formats(problem);
  Problem p = problem;
  const auto apply = [](const OperandFormat& format, DType& dtype, Granularity& scales) {
    dtype = format.rounded.value_or(dtype);
    if (format.scales_of_ours()) scales = format.granularity;
  };
  apply(formats.q, p.q, p.q_scales);
  apply(formats.k, p.k, p.k_scales);
  apply(formats.v, p.v, p.v_scales);
  if (formats.q.scales_of_ours()) p.q_max_quantized = formats.q.max_quantized;
  if (formats.k.scales_of_ours()) p.k_max_quantized = formats.k.max_quantized;
  if (formats.k.scales_of_ours()) p.k_block_rows = problem.options.quantization.block_rows;
  p.options.precision = Precision::native;
  p.options.quantization = {};
  return p;
}

std::string describe_quantizers(const Problem& problem, VLayout layout, bool codes) {
  const OperandFormats formats = conversion_formats(problem);
  std::string text;
  for (const auto& [what, format] :
       {std::pair{"Q", &formats.q}, {"K", &formats.k}, {"V", &formats.v}})
    if (format->rounded)
      text +=
          fmt::format("{} {} becomes {}", text.empty() ? ';' : ',', what, name(*format->rounded));
  if (layout != problem.v_layout && !formats.v.rounded)
    text += fmt::format("{} V is transposed", text.empty() ? ';' : ',');
  if (!text.empty()) text += " first";
  if (problem.options.precision == Precision::fp8_fast)
    text += codes ? "; P by integer arithmetic on its 8-bit value"
                  : "; exp is exact here, so fp8_fast gives what fp8 gives";
  return text;
}

std::vector<QuantizeConfig> quantizers_of(const Problem& problem, int arch, int alignment,
                                          VLayout layout) {
  const Conversions x = conversions_of(problem, nullptr, layout);
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

std::size_t prepared_bytes(const Problem& run_problem, const Arguments* arguments, VLayout layout,
                           bool any_columns) {
  const Conversions x = conversions_of(run_problem, arguments, layout, any_columns);
  std::int64_t end = 0;
  for (const Conversion* operand : {&x.q, &x.k, &x.v})
    end = operand_offsets(*operand, run_problem.varlen, end).end;
  return static_cast<std::size_t>(end);
}

PreparedCall prepare_call(const Problem& run_problem, const Arguments& a, void* workspace, int arch,
                          const SubstituteQuantize& substitute, VLayout layout) {
  PreparedCall call{prepared_problem(run_problem), a, {}, 0};
  const Conversions operands =
      conversions_of(run_problem, &a, layout, static_cast<bool>(substitute));
  OperandAllocator places(run_problem, a, workspace);
  const auto chosen = [&](const QuantizeConfig& config) {
    return substitute ? substitute(config, operands.q.head_dim) : config;
  };
  Arguments& made = call.arguments;
  if (operands.v.transposed) call.problem.v_layout = made.v_layout = VLayout::transposed;
  const int alignment =
      std::min({alignment_of(made.q), alignment_of(made.k), alignment_of(made.v)});
  // Adds the two launches that compute the mean rows of K.
  const auto add_means = [&](const QuantizeConfig& config, const QuantizeParams& of,
                             const QuantizeMemory& memory) {
    QuantizeLaunch launch;
    launch.params.q = of;
    launch.memory[0] = memory;
    for (const int pass : {1, 2}) {
      launch.config = chosen(mean_pass(config, pass));
      set_grid(operands.k, launch);
      call.launches[call.count++] = launch;
    }
  };
  if (share_launch(operands, arch, alignment)) {
    const bool hold = holds(operands.v);
    QuantizeLaunch launch;
    launch.memory = {
        places.take(operands.q, a.cu_seqlens_q, made.q, made.q_scales, launch.params.q),
        places.take(operands.k, a.cu_seqlens_kv, made.k, made.k_scales, launch.params.k),
        places.take(operands.v, a.cu_seqlens_kv, made.v, made.v_scales, launch.params.v)};
    if (operands.k.smooth())
      add_means(choose_quantize(operands.k, arch, alignment), launch.params.k, launch.memory[1]);
    const auto add = [&](Pass pass) {
      launch.config = chosen(choose_operands(operands, arch, pass));
      set_grid(operands, launch);
      call.launches[call.count++] = launch;
    };
    add(hold ? Pass::one_pass : Pass::first);
    if (!hold) add(Pass::second);
    return call;
  }
  const auto prepare = [&](const Conversion& x, const std::int32_t* cu, ConstTensor& tensor,
                           Scales& scales) {
    if (!x.needed()) return;
    const QuantizeConfig config = choose_quantize(x, arch, alignment_of(tensor));
    QuantizeLaunch launch;
    launch.memory[0] = places.take(x, cu, tensor, scales, launch.params.q);
    const auto add = [&](const QuantizeConfig& pass) {
      launch.config = chosen(pass);
      set_grid(x, launch);
      call.launches[call.count++] = launch;
    };
    if (config.smooth) add_means(config, launch.params.q, launch.memory[0]);
    if (quantizer::two_passes(config.group)) add(first_pass(config));
    add(config);
  };
  prepare(operands.q, a.cu_seqlens_q, made.q, made.q_scales);
  prepare(operands.k, a.cu_seqlens_kv, made.k, made.k_scales);
  prepare(operands.v, a.cu_seqlens_kv, made.v, made.v_scales);
  return call;
}

}  // namespace octavo
