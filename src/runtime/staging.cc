#include "runtime/staging.h"

#include <cstdint>

#include "attention/operand_scales.h"
#include "attention/validate.h"
#include "base/error.h"

namespace octavo {
namespace {

std::size_t extent_bytes(const ConstTensor& t) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.stride[i];
  }
  return static_cast<std::size_t>(last + 1) * size_bytes(t.dtype);
}

}  // namespace

Status StagedArguments::copy_tensor(const ConstTensor& host, Device device, std::size_t margin,
                                    Copy& copy, const void*& pointer) {
  const std::size_t bytes = extent_bytes(host);
  if (bytes == 0 || host.data == nullptr) return {};
  copy.host = static_cast<std::byte*>(const_cast<void*>(host.data)) - margin;
  copy.bytes = bytes + 2 * margin;
  // Keeps the host's row alignment, so that the same kernel runs as for tensors on the device.
  copy.offset = reinterpret_cast<std::uintptr_t>(copy.host) % 16;
  Result<Buffer> made = Buffer::make(device, copy.offset + copy.bytes);
  if (!made.ok()) return made.status();
  copy.buffer = *made;
  pointer = static_cast<std::byte*>(copy.buffer.data()) + copy.offset + margin;
  return copy.buffer.upload(copy.host, copy.bytes, copy.offset);
}

template <class T>
Status StagedArguments::copy_array(const T* host, std::int64_t count, Device device,
                                   const T*& pointer) {
  if (host == nullptr || count == 0) return {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  Result<Buffer> made = Buffer::make(device, bytes);
  if (!made.ok()) return made.status();
  inputs_.push_back(*made);
  pointer = static_cast<const T*>(made->data());
  return made->upload(host, bytes);
}

Result<StagedArguments> StagedArguments::make(const Arguments& host, const Problem& run_problem,
                                              Device device, std::size_t margin) {
  OCTAVO_RETURN_IF_ERROR(validate_cu_seqlens(host));
  StagedArguments staged;
  staged.device_ = host;
  Arguments& on = staged.device_;
  for (ConstTensor* input : {&on.q, &on.k, &on.v}) {
    Copy copy;
    OCTAVO_RETURN_IF_ERROR(staged.copy_tensor(*input, device, margin, copy, input->data));
    staged.inputs_.push_back(copy.buffer);
  }
  for (const auto& [output, copy] :
       {std::pair{&on.out, &staged.out_}, std::pair{&on.lse, &staged.lse_}}) {
    const void* pointer = output->data;
    OCTAVO_RETURN_IF_ERROR(staged.copy_tensor(*output, device, margin, *copy, pointer));
    output->data = const_cast<void*>(pointer);
  }
  if (host.out_amax != nullptr) {
    const void* pointer = nullptr;
    OCTAVO_RETURN_IF_ERROR(
        staged.copy_tensor(amax_view(run_problem, host), device, margin, staged.amax_, pointer));
    on.out_amax = const_cast<float*>(static_cast<const float*>(pointer));
  }
  const auto copy_scales = [&](const ConstTensor& tensor, const Scales& from, Scales& to,
                               std::int64_t max_len) -> Status {
    if (!is_8bit(tensor.dtype)) return {};
    return staged.copy_array(from.data, scales_extent(host, tensor, from, max_len), device,
                             to.data);
  };
  OCTAVO_RETURN_IF_ERROR(copy_scales(host.q, host.q_scales, on.q_scales, run_problem.seqlen_q));
  OCTAVO_RETURN_IF_ERROR(copy_scales(host.k, host.k_scales, on.k_scales, run_problem.seqlen_kv));
  OCTAVO_RETURN_IF_ERROR(
      copy_scales(v_by_rows(host), host.v_scales, on.v_scales, run_problem.seqlen_kv));
  OCTAVO_RETURN_IF_ERROR(
      copy_scales(host.out, host.out_scales, on.out_scales, run_problem.seqlen_q));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_q, host.sequences + 1, device, on.cu_seqlens_q));
  OCTAVO_RETURN_IF_ERROR(
      staged.copy_array(host.cu_seqlens_kv, host.sequences + 1, device, on.cu_seqlens_kv));
  return staged;
}

Status StagedArguments::send_outputs() const {
  for (const Copy* copy : {&out_, &lse_, &amax_})
    OCTAVO_RETURN_IF_ERROR(copy->buffer.upload(copy->host, copy->bytes, copy->offset));
  return {};
}

Status StagedArguments::fetch(Stream stream) const {
  for (const Copy* copy : {&out_, &lse_, &amax_})
    OCTAVO_RETURN_IF_ERROR(copy->buffer.download(copy->host, copy->bytes, copy->offset, stream));
  return {};
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

}  // namespace octavo
