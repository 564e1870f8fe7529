// SPDX-License-Identifier: Apache-2.0
#include "runtime/staging.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "attention/backward_arguments.h"
#include "attention/int4_rows.h"
#include "attention/operand_scales.h"
#include "attention/validate.h"
#include "base/error.h"
#include "base/tensor_checks.h"

namespace octavo {
namespace {

// The bytes of a tensor and a margin around them; null if it has none.
struct Span {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  std::size_t bytes() const { return static_cast<std::size_t>(end - begin); }
};

Span span_of(const ConstTensor& t, std::size_t margin) {
  const std::size_t bytes = extent_bytes(t);
  if (bytes == 0 || t.data == nullptr) return {};
  auto* const first = static_cast<std::byte*>(const_cast<void*>(t.data));
  return {first - margin, first + bytes + margin};
}

}  // namespace

Result<Staging::Copy> Staging::copy_span(std::byte* host, std::size_t bytes, Device device) {
  Copy copy{{}, host, bytes, 0};
  // The copy keeps the row alignment of the host tensor, so that the same kernel runs as for a
  // tensor on the device.
  copy.offset = reinterpret_cast<std::uintptr_t>(host) % 16;
  Result<Buffer> made = Buffer::make(device, copy.offset + bytes);
  if (!made.ok()) return made.status();
  copy.buffer = *made;
  OCTAVO_RETURN_IF_ERROR(copy.buffer.upload(host, bytes, copy.offset));
  return copy;
}

Status Staging::copy_input(ConstTensor& tensor, Device device, std::size_t margin) {
  const Span span = span_of(tensor, margin);
  if (span.begin == nullptr) return {};
  const Result<Copy> copy = copy_span(span.begin, span.bytes(), device);
  if (!copy.ok()) return copy.status();
  tensor.data = copy->of(static_cast<const std::byte*>(tensor.data));
  inputs_.push_back(copy->buffer);
  return {};
}

Status Staging::copy_outputs(const std::vector<Tensor*>& tensors, Device device,
                             std::size_t margin) {
  std::vector<Span> spans;
  for (const Tensor* tensor : tensors)
    if (const Span span = span_of(*tensor, margin); span.begin != nullptr) spans.push_back(span);
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (merged.empty() || span.begin >= merged.back().end)
      merged.push_back(span);
    else
      merged.back().end = std::max(merged.back().end, span.end);
  }
  for (const Span& span : merged) {
    Result<Copy> copy = copy_span(span.begin, span.bytes(), device);
    if (!copy.ok()) return copy.status();
    outputs_.push_back(*std::move(copy));
  }
  for (Tensor* tensor : tensors) {
    const std::byte* at = static_cast<const std::byte*>(tensor->data);
    for (const Copy& copy : outputs_)
      if (extent_bytes(*tensor) > 0 && at >= copy.host && at < copy.host + copy.bytes) {
        tensor->data = copy.of(at);
        break;
      }
  }
  return {};
}

template <class T>
Status Staging::copy_array(const T* host, std::int64_t count, Device device, const T*& pointer) {
  if (host == nullptr || count == 0) return {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  Result<Buffer> made = Buffer::make(device, bytes);
  if (!made.ok()) return made.status();
  inputs_.push_back(*made);
  pointer = static_cast<const T*>(made->data());
  return made->upload(host, bytes);
}

template <class PassArguments>
Status Staging::copy_modifiers(const PassArguments& host, std::int64_t sequences, Device device,
                               std::size_t margin, PassArguments& on) {
  for (ConstTensor* input : {&on.bias, &on.mask})
    if (input->data != nullptr) OCTAVO_RETURN_IF_ERROR(copy_input(*input, device, margin));
  const std::int64_t batch = host.q.shape[0], heads = host.q.shape[1];
  for (const auto& [from, to] : {std::pair{host.seqlens_q, &on.seqlens_q},
                                 {host.seqlens_kv, &on.seqlens_kv},
                                 {host.leftpad_q, &on.leftpad_q},
                                 {host.leftpad_kv, &on.leftpad_kv}})
    OCTAVO_RETURN_IF_ERROR(copy_array(from, batch, device, *to));
  const std::int64_t slopes =
      sequences == 0 ? 0 : (sequences - 1) * host.alibi_batch_stride + heads;
  OCTAVO_RETURN_IF_ERROR(copy_array(host.alibi_slopes, slopes, device, on.alibi_slopes));
  OCTAVO_RETURN_IF_ERROR(copy_array(host.sinks, heads, device, on.sinks));
  return copy_block_mask(host.block_mask, device, on.block_mask);
}

Status Staging::copy_block_mask(const BlockMask& host, Device device, BlockMask& on) {
  if (host.block_size == 0) return {};
  const std::int64_t rows = host.batch * host.heads * host.q_blocks;
  for (const auto& [from, count, to] :
       {std::tuple{host.kv_num_blocks, rows, &on.kv_num_blocks},
        {host.kv_indices, rows * host.kv_capacity, &on.kv_indices},
        {host.full_kv_num_blocks, rows, &on.full_kv_num_blocks},
        {host.full_kv_indices, rows * host.full_kv_capacity, &on.full_kv_indices},
        {host.bit_indices, rows * host.kv_capacity, &on.bit_indices}})
    OCTAVO_RETURN_IF_ERROR(copy_array(from, count, device, *to));
  return copy_array(host.bits, host.bit_blocks * host.block_size * host.block_size / 32, device,
                    on.bits);
}

Status Staging::send_outputs() const {
  for (const Copy& copy : outputs_)
    OCTAVO_RETURN_IF_ERROR(copy.buffer.upload(copy.host, copy.bytes, copy.offset));
  return {};
}

Status Staging::fetch(Stream stream) const {
  for (const Copy& copy : outputs_)
    OCTAVO_RETURN_IF_ERROR(copy.buffer.download(copy.host, copy.bytes, copy.offset, stream));
  return {};
}

Status StagedArguments::copy_scales(const Arguments& host, const Problem& run_problem,
                                    Device device) {
  Arguments& on = device_;
  const auto copy = [&](const ConstTensor& tensor, const Scales& from, Scales& to,
                        std::int64_t max_len) -> Status {
    if (!is_8bit(tensor.dtype)) return {};
    return copy_array(from.data, scales_extent(host, tensor, from, max_len), device, to.data);
  };
  OCTAVO_RETURN_IF_ERROR(copy(host.q, host.q_scales, on.q_scales, run_problem.seqlen_q));
  OCTAVO_RETURN_IF_ERROR(copy(host.k, host.k_scales, on.k_scales, run_problem.seqlen_kv));
  OCTAVO_RETURN_IF_ERROR(copy(v_by_rows(host), host.v_scales, on.v_scales, run_problem.seqlen_kv));
  return copy(host.out, host.out_scales, on.out_scales, run_problem.seqlen_q);
}

Result<StagedArguments> StagedArguments::make(const Arguments& host, const Problem& run_problem,
                                              Device device, std::size_t margin) {
  OCTAVO_RETURN_IF_ERROR(validate_lengths(host));
  StagedArguments staged;
  staged.device_ = host;
  Arguments& on = staged.device_;
  for (ConstTensor* input : {&on.q, &on.k, &on.v})
    OCTAVO_RETURN_IF_ERROR(staged.copy_input(*input, device, margin));
  Tensor amax;
  if (host.out_amax != nullptr) amax = amax_view(run_problem, host);
  OCTAVO_RETURN_IF_ERROR(staged.copy_outputs({&on.out, &on.lse, &amax}, device, margin));
  on.out_amax = static_cast<float*>(amax.data);
  OCTAVO_RETURN_IF_ERROR(staged.copy_scales(host, run_problem, device));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_q, host.sequences + 1, device, on.cu_seqlens_q));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_kv, host.sequences + 1, device, on.cu_seqlens_kv));
  if (is_paged(host))
    OCTAVO_RETURN_IF_ERROR(
        staged.copy_array(host.page_table, page_table_extent(host), device, on.page_table));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.draft_tree, host.q.shape[0] * host.q.shape[2], device, on.draft_tree));
  for (const auto& [tensor, from, to] : {std::tuple{&host.k, &host.k_groups, &on.k_groups},
                                         {&host.v, &host.v_groups, &on.v_groups}}) {
    const std::uint32_t* words = nullptr;
    OCTAVO_RETURN_IF_ERROR(staged.copy_array(static_cast<const std::uint32_t*>(from->data),
                                             groups_words(*tensor, *from), device, words));
    to->data = words;
  }
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_modifiers(host, sequence_count(host), device, margin, staged.device_));
  return staged;
}

Result<StagedBackwardArguments> StagedBackwardArguments::make(const BackwardArguments& host,
                                                              Device device, std::size_t margin) {
  const Arguments forward = forward_arguments(host);
  OCTAVO_RETURN_IF_ERROR(validate_lengths(forward));
  StagedBackwardArguments staged;
  staged.device_ = host;
  BackwardArguments& on = staged.device_;
  for (ConstTensor* input : {&on.q, &on.k, &on.v, &on.out, &on.lse, &on.dout})
    OCTAVO_RETURN_IF_ERROR(staged.copy_input(*input, device, margin));
  Tensor dsinks = Tensor::bhsd(host.dsinks, DType::f32, 1, 1, 1, host.q.shape[1]);
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_outputs({&on.dq, &on.dk, &on.dv, &on.dbias, &dsinks}, device, margin));
  on.dsinks = static_cast<float*>(dsinks.data);
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_q, host.sequences + 1, device, on.cu_seqlens_q));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_kv, host.sequences + 1, device, on.cu_seqlens_kv));
  OCTAVO_RETURN_IF_ERROR(staged.copy_modifiers(host, sequence_count(forward), device, margin, on));
  return staged;
}

Status attention_from_host(const Arguments& arguments, const Options& options, Device device) {
  return without_exceptions([&]() -> Status {
    if (device.kind == Device::Kind::cpu) return attention(arguments, options, device);
    const Result<Problem> run_problem = problem_of(arguments, options);
    if (!run_problem.ok()) return run_problem.status();
    const Result<StagedArguments> staged = StagedArguments::make(arguments, *run_problem, device);
    if (!staged.ok()) return staged.status();
    const Result<Plan> made = plan(*run_problem, device);
    if (!made.ok()) return made.status();
    const Result<Buffer> workspace = Buffer::make(device, made->workspace_bytes(arguments));
    if (!workspace.ok()) return workspace.status();
    OCTAVO_RETURN_IF_ERROR(made->run(staged->on_device(), {workspace->data(), workspace->bytes()}));
    OCTAVO_RETURN_IF_ERROR(synchronize(device));
    return staged->fetch();
  });
}

Status attention_backward_from_host(const BackwardArguments& arguments, const Options& options,
                                    Device device) {
  return without_exceptions([&]() -> Status {
    if (device.kind == Device::Kind::cpu) return attention_backward(arguments, options, device);
    const Result<Problem> run_problem = problem_of(arguments, options);
    if (!run_problem.ok()) return run_problem.status();
    const Result<BackwardPlan> made = plan_backward(*run_problem, device);
    if (!made.ok()) return made.status();
    const Result<StagedBackwardArguments> staged = StagedBackwardArguments::make(arguments, device);
    if (!staged.ok()) return staged.status();
    const Result<Buffer> workspace = Buffer::make(device, made->workspace_bytes(arguments));
    if (!workspace.ok()) return workspace.status();
    OCTAVO_RETURN_IF_ERROR(made->run(staged->on_device(), {workspace->data(), workspace->bytes()}));
    OCTAVO_RETURN_IF_ERROR(synchronize(device));
    return staged->fetch();
  });
}

}  // namespace octavo
