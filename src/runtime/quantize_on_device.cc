// SPDX-License-Identifier: Apache-2.0
// quantize() on any device: on the CPU in host memory, and by the quantizer kernels on a GPU or in
// the emulator.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "attention/operand.h"
#include "base/error.h"
#include "base/tensor_checks.h"
#include "gpu/driver/context.h"
#include "gpu/jit/load_function.h"
#include "gpu/quantize/launch_quantize.h"
#include "gpu/quantize/prepare_operands.h"
#include "numeric/fork_safe.h"
#include "numeric/quantize.h"
#include "numeric/scale.h"
#include "octavo/octavo.hpp"
#include "runtime/buffer.h"
#include "runtime/emulated/emulated_gpu.h"
#include "runtime/plan/plan_cache.h"

namespace octavo {
namespace {

bool is_varlen(const QuantizeArguments& a) { return a.cu_seqlens != nullptr; }

// The shape whose groups have one scale each.
std::array<std::int64_t, 4> scaled_shape(const QuantizeArguments& a, const QuantizeOptions& o) {
  if (!is_varlen(a) || o.granularity == Granularity::row) return a.x.shape;
  return {a.sequences, a.x.shape[1], a.max_seqlen, a.x.shape[3]};
}

Status check_sequences(const QuantizeArguments& a, const QuantizeOptions& o) {
  if (!is_varlen(a)) {
    if (a.sequences == 0 && a.max_seqlen == 0) return {};
    return invalid("cu_seqlens", "null", "the starts of the sequences of a varlen batch");
  }
  if (a.x.shape[0] != 1)
    return invalid("x.shape[0]", fmt::format("{}", a.x.shape[0]), "1 in a varlen batch");
  if (a.sequences < 0 || a.sequences > kLargestDimension)
    return invalid("sequences", fmt::format("{}", a.sequences), "0 to 2147483647");
  if (a.max_seqlen < 0 || a.max_seqlen > a.x.shape[2])
    return invalid("max_seqlen", fmt::format("{}", a.max_seqlen),
                   fmt::format("0 to {}, the tokens of x", a.x.shape[2]));
  if (o.granularity == Granularity::tensor)
    return unsupported("granularity", "tensor", "head, block, row, channel in a varlen batch");
  return {};
}

Status check_call(const QuantizeArguments& a, const QuantizeOptions& o) {
  OCTAVO_RETURN_IF_ERROR(validate_view("x", a.x));
  OCTAVO_RETURN_IF_ERROR(check_sequences(a, o));
  const std::int64_t means = is_varlen(a) ? a.sequences : a.x.shape[0];
  const std::int64_t columns = transposed_columns(a.x.shape[2], is_varlen(a) ? a.sequences : 0);
  return check_quantize(a.x, o, a.quantized, a.scales, scaled_shape(a, o), a.mean, means, columns);
}

// --- the CPU -------------------------------------------------------------------------------------

Status check_starts(const QuantizeArguments& a) {
  for (std::int64_t i = 0; i < a.sequences; ++i) {
    const std::int64_t begin = a.cu_seqlens[i], end = a.cu_seqlens[i + 1];
    if (begin < 0 || end < begin || end > a.x.shape[2] || end - begin > a.max_seqlen)
      return invalid(
          fmt::format("cu_seqlens[{}]", i + 1), fmt::format("{} after {}", end, begin),
          fmt::format("ascending numbers up to {}, at most {} apart", a.x.shape[2], a.max_seqlen));
  }
  return {};
}

// Sequence `number` of a varlen batch as a tensor of its own, with scales of its own.
struct SequenceCall {
  ConstTensor x;
  Tensor quantized;
  float* mean;
  std::vector<float> scales;
  FoundScales found{};
};

SequenceCall sequence_call(const QuantizeArguments& a, const QuantizeOptions& o,
                           std::int64_t number) {
  const std::int64_t begin = a.cu_seqlens[number], rows = a.cu_seqlens[number + 1] - begin;
  SequenceCall call{a.x, a.quantized, nullptr, {}};
  call.x.shape[2] = rows;
  call.x.data = static_cast<const std::byte*>(a.x.data) +
                begin * a.x.stride[2] * static_cast<std::int64_t>(size_bytes(a.x.dtype));
  const bool transposed = o.layout == VLayout::transposed;
  call.quantized.shape[transposed ? 3 : 2] = transposed ? transposed_columns(rows) : rows;
  call.quantized.data =
      static_cast<std::byte*>(a.quantized.data) +
      (transposed ? transposed_begin(begin, number) : begin * a.quantized.stride[2]);
  if (o.smooth) call.mean = a.mean + number * a.x.shape[1] * a.x.shape[3];
  call.scales.resize(
      static_cast<std::size_t>(scale_count(call.x.shape, o.granularity, o.block_rows)));
  return call;
}

void quantize_sequence(const QuantizeArguments& a, const QuantizeOptions& o, std::int64_t number,
                       SequenceCall& call) {
  quantize_by(call.found, call.x, o, call.quantized, call.scales.data(), call.mean, nullptr);
  // The scales of the sequence are copied into the array of the batch. Row scales have an entry for
  // each token there; other scales have as many entries for each sequence as the longest one needs.
  const std::int64_t heads = a.x.shape[1], begin = a.cu_seqlens[number];
  const std::int64_t of_head =
      static_cast<std::int64_t>(call.scales.size()) / std::max<std::int64_t>(heads, 1);
  const std::array<std::int64_t, 4> shape = scaled_shape(a, o);
  const bool by_token = o.granularity == Granularity::row;
  const std::int64_t stride = scale_count({1, 1, shape[2], shape[3]}, o.granularity, o.block_rows);
  for (std::int64_t h = 0; h < heads; ++h)
    std::copy_n(call.scales.data() + h * of_head, of_head,
                a.scales + (by_token ? h * stride + begin : (number * heads + h) * stride));
}

Status quantize_on_cpu(const QuantizeArguments& a, const QuantizeOptions& o, float max_quantized) {
  if (!is_varlen(a)) return quantize_to(max_quantized, a.x, o, a.quantized, a.scales, a.mean);
  if (o.scales_given) return unsupported("scales_given", "true", "false in a varlen batch");
  OCTAVO_RETURN_IF_ERROR(check_starts(a));
  // The scales of all sequences before the first write, as nothing is written if one fails.
  std::vector<SequenceCall> calls;
  for (std::int64_t i = 0; i < a.sequences; ++i) {
    SequenceCall& call = calls.emplace_back(sequence_call(a, o, i));
    Result<FoundScales> found =
        find_scales(max_quantized, call.x, o, call.quantized, call.scales.data(), call.mean);
    if (!found.ok()) return found.status();
    call.found = *std::move(found);
  }
  for (std::int64_t i = 0; i < a.sequences; ++i)
    quantize_sequence(a, o, i, calls[static_cast<std::size_t>(i)]);
  return {};
}

// --- GPUs and the emulator -----------------------------------------------------------------------

Result<const Gpu*> gpu_of(Device device) {
  return device.kind == Device::Kind::cuda ? open_gpu(device.index) : emulated_gpu(device);
}

Status check_alignment(const Tensor& t, bool transposed) {
  const std::int64_t wanted = transposed ? 16 : 8;
  auto bits = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data));
  for (std::size_t i = 0; i < 3; ++i)
    if (t.shape[i] > 1) bits |= t.stride[i];
  if (bits % wanted == 0) return {};
  return unsupported("quantized", "at an address or with strides that are not aligned",
                     fmt::format("multiples of {} bytes on a GPU", wanted));
}

Status check_gpu_quantize(const QuantizeArguments& a, const QuantizeOptions& o,
                          const GpuInfo& gpu) {
  const DType format = a.quantized.dtype;
  if ((format == DType::e4m3 || format == DType::e5m2) && gpu.arch < 89)
    return unsupported("quantized.dtype", fmt::format("{} on sm_{}", name(format), gpu.arch),
                       "int8, sim8; from sm_89 on e4m3, e5m2");
  if (a.x.shape[3] % quantizer::kVector != 0 || a.x.shape[3] > kMostColumns)
    return unsupported("head_dim", fmt::format("{}", a.x.shape[3]),
                       "multiples of 8 up to 256 on a GPU");
  if (o.scales_given) return unsupported("scales_given", "true", "false on a GPU");
  if (o.rule != ScaleRule::amax) return unsupported("rule", name(o.rule), "amax on a GPU");
  const bool transposed = o.layout == VLayout::transposed;
  if (transposed && (o.granularity == Granularity::row || o.granularity == Granularity::block))
    return unsupported("granularity", name(o.granularity),
                       "tensor, head, channel with layout transposed on a GPU");
  return check_alignment(a.quantized, transposed);
}

// The quantizers that are loaded on each GPU.
struct Loaded {
  std::mutex mutex;
  std::list<LoadedQuantizers> of_gpus;

  LoadedQuantizers& of(const Gpu& gpu) {
    const std::lock_guard lock(mutex);
    for (LoadedQuantizers& found : of_gpus)
      if (&found.gpu() == &gpu) return found;
    return of_gpus.emplace_back(gpu);
  }
};
constinit PerProcess<Loaded> loaded;

Status quantize_on_gpu(const QuantizeArguments& a, const QuantizeOptions& o, float max_quantized,
                       Device device, Stream stream) {
  const Result<const Gpu*> found = gpu_of(device);
  if (!found.ok()) return found.status();
  const Gpu& gpu = **found;
  OCTAVO_RETURN_IF_ERROR(check_gpu_quantize(a, o, gpu.info));
  if (a.x.shape[1] == 0 || a.x.shape[3] == 0 || (is_varlen(a) ? a.sequences : a.x.shape[0]) == 0)
    return {};
  const Conversion x = conversion_of(a, o, max_quantized, gpu.is_emulated());
  const Result<Workspace> workspace =
      thread_workspaces().at_least(device, stream, quantize_workspace_bytes(x));
  if (!workspace.ok()) return workspace.status();
  const int arch = code_for(gpu.info.arch).arch;
  SubstituteQuantize substitute;
  if (gpu.is_emulated())
    substitute = [&gpu](const QuantizeConfig& chosen, std::int64_t head_dim) {
      return gpu.kernels->nearest(chosen, head_dim).value_or(chosen);
    };
  const PreparedCall call = prepare_quantize(x, a, workspace->data, arch, substitute);
  for (std::size_t i = 0; i < call.count; ++i)
    if (call.launches[i].blocks > kLargestDimension)
      return unsupported("x", fmt::format("{} tiles of rows", call.launches[i].blocks),
                         "up to 2147483647 on a GPU");
  return loaded.get().of(gpu).launch(call, stream);
}

bool is_hopper(Device device) {
  if (device.kind == Device::Kind::cpu) return false;
  const Result<const Gpu*> gpu = gpu_of(device);
  return gpu.ok() && (*gpu)->info.arch == 90;
}

}  // namespace

std::int64_t scale_count(const QuantizeArguments& arguments, const QuantizeOptions& options) {
  return scale_count(scaled_shape(arguments, options), options.granularity, options.block_rows);
}

Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, Device device,
                Stream stream) {
  return without_exceptions([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(check_call(arguments, options));
    const Result<float> max_quantized = max_quantized_of(options, arguments.quantized.dtype);
    if (!max_quantized.ok()) return max_quantized.status();
    if (device.kind == Device::Kind::cpu)
      return quantize_on_cpu(arguments, options, *max_quantized);
    return quantize_on_gpu(arguments, options, *max_quantized, device, stream);
  });
}

Result<OperandQuantization> operand_quantization(Operand operand, Precision precision,
                                                 std::int64_t head_dim, Device device) {
  return without_exceptions([&]() -> Result<OperandQuantization> {
    Problem problem;
    problem.q = problem.k = problem.v = DType::f16;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.options.precision = precision;
    const OperandFormats formats = operand_formats(problem);
    const OperandFormat& format = operand == Operand::q   ? formats.q
                                  : operand == Operand::k ? formats.k
                                                          : formats.v;
    if (!format.scales_of_ours())
      return invalid("precision", name(precision),
                     operand == Operand::v ? "fp8, fp8_fast, int8, sim8 for v"
                                           : "fp8, fp8_mixed, fp8_fast, int8, int8_mixed, sim8");
    OperandQuantization made;
    made.format = *format.rounded;
    made.options.granularity = format.granularity;
    made.options.block_rows = problem.options.quantization.block_rows;
    if (made.format != DType::sim8) made.options.max_quantized = format.max_quantized;
    if (operand == Operand::v && made.format != DType::sim8 && is_hopper(device))
      made.options.layout = VLayout::transposed;
    return made;
  });
}

}  // namespace octavo
