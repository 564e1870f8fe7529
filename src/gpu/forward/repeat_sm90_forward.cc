// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>

#include "attention/mask.h"
#include "attention/operand_scales.h"
#include "attention/sequence.h"
#include "base/error.h"
#include "base/tensor_checks.h"
#include "gpu/forward/sm90_forward.h"

namespace octavo {
namespace {

constexpr std::uintptr_t kLoadAlignment = 16;  // which TMA and the quantizers' loads need

// Thread-local storage is taken from every thread's stack, so there are few slots.
struct Recorded {
  std::uint64_t plan = 0;  // 0: empty
  Arguments arguments;     // the caller's, for everything except addresses
  std::size_t workspace_bytes = 0;
  bool converts = false;  // its quantizers are in RecordedQuantizers
  Problem kernel_problem;
  Sm90ForwardLaunch launch;
};
struct RecordedQuantizers {
  std::uint64_t plan = 0;
  QuantizeLaunches launches;
};

// A thread that alternates between plans keeps one launch per slot. Two plans that share a slot
// evict each other.
Recorded& recorded(std::uint64_t plan) {
  constexpr std::size_t kSlots = 8;
  thread_local std::array<Recorded, kSlots> slots;
  return slots[plan % kSlots];
}
RecordedQuantizers& recorded_quantizers(std::uint64_t plan) {
  constexpr std::size_t kSlots = 2;
  thread_local std::array<RecordedQuantizers, kSlots> slots;
  return slots[plan % kSlots];
}

template <class Void>
bool same_layout(const BasicTensor<Void>& a, const BasicTensor<Void>& b) {
  return a.shape == b.shape && a.stride == b.stride && a.dtype == b.dtype;
}
bool same_presence(const void* a, const void* b) { return (a == nullptr) == (b == nullptr); }

bool same_scales(const ConstTensor& t, const Scales& a, const Scales& b) {
  return !is_8bit(t.dtype) || (same_presence(a.data, b.data) && a.granularity == b.granularity &&
                               a.block_rows == b.block_rows && a.stride == b.stride &&
                               a.max_quantized == b.max_quantized);
}

bool same_output(const Arguments& a, const Arguments& b) {
  if (!same_presence(a.out_amax, b.out_amax)) return false;
  return !is_8bit(a.out.dtype) || (same_presence(a.out_scales.data, b.out_scales.data) &&
                                   a.out_scales.granularity == b.out_scales.granularity &&
                                   a.out_scales.stride == b.out_scales.stride);
}

// Compares everything that determines a launch, except for addresses.
bool same_but_for_addresses(const Arguments& a, const Arguments& b) {
  return same_layout(a.q, b.q) && same_layout(a.k, b.k) && same_layout(a.v, b.v) &&
         same_layout(a.out, b.out) && a.v_layout == b.v_layout && same_output(a, b) &&
         same_scales(a.q, a.q_scales, b.q_scales) && same_scales(a.k, a.k_scales, b.k_scales) &&
         same_scales(a.v, a.v_scales, b.v_scales) && same_presence(a.lse.data, b.lse.data) &&
         (a.lse.data == nullptr || same_layout(a.lse, b.lse)) && a.scale == b.scale &&
         same_presence(a.cu_seqlens_q, b.cu_seqlens_q) &&
         same_presence(a.cu_seqlens_kv, b.cu_seqlens_kv) && a.sequences == b.sequences &&
         a.max_seqlen_q == b.max_seqlen_q && a.max_seqlen_kv == b.max_seqlen_kv;
}

// Modifiers of the scores, padding and page tables are not compared here, so such calls are not
// repeated.
bool is_plain(const Arguments& a) { return !changes_scores(a) && !is_padded(a) && !is_paged(a); }

struct Bytes {
  std::uintptr_t begin, end;
};
// The bytes of a tensor from its first to its last; shape and strides have been validated.
template <class Void>
Bytes bytes_of(const BasicTensor<Void>& t) {
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < 4; ++i) elements += (t.shape[i] - 1) * t.stride[i];
  const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
  return {begin, begin + static_cast<std::uintptr_t>(elements) * size_bytes(t.dtype)};
}
bool disjoint(const Bytes& a, const Bytes& b) { return a.end <= b.begin || b.end <= a.begin; }

// Whether `written` is apart from the arrays that a plain call has beside its tensors: the starts
// of sequences, and scales.
bool is_apart_from_arrays(const Arguments& a, const Bytes& written) {
  const auto is_apart = [&written](const void* data, std::int64_t numbers) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return disjoint(written, {begin, begin + static_cast<std::uintptr_t>(numbers) * sizeof(float)});
  };
  const auto are_apart = [&](const ConstTensor& t, const Scales& scales, std::int64_t longest) {
    return !is_8bit(t.dtype) || is_apart(scales.data, scales_extent(a, t, scales, longest));
  };
  const bool varlen = is_varlen(a);
  if (varlen &&
      !(is_apart(a.cu_seqlens_q, a.sequences + 1) && is_apart(a.cu_seqlens_kv, a.sequences + 1)))
    return false;
  const std::int64_t rows = varlen ? a.max_seqlen_q : a.q.shape[2];
  const std::int64_t keys = varlen ? a.max_seqlen_kv : a.k.shape[2];
  return are_apart(a.q, a.q_scales, rows) && are_apart(a.k, a.k_scales, keys) &&
         are_apart(v_by_rows(a), a.v_scales, keys) && are_apart(a.out, a.out_scales, rows);
}

bool scales_of_heads(const Arguments& a) {
  return is_8bit(a.out.dtype) && a.out_scales.granularity == Granularity::head;
}
// The bytes at `data` of as many floats as the output has scales.
Bytes bytes_of_heads(const Arguments& a, const float* data) {
  const std::int64_t sequences = a.cu_seqlens_q != nullptr ? a.sequences : a.q.shape[0];
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::int64_t floats = scales_of_heads(a) ? sequences * a.q.shape[1] : 1;
  return {begin, begin + static_cast<std::uintptr_t>(floats) * sizeof(float)};
}
bool can_skip_amax_validation(const Arguments& a) {
  if (a.out_amax == nullptr) return true;
  if (scales_of_heads(a) && a.out_scales.stride) return false;
  const Bytes amax = bytes_of_heads(a, a.out_amax);
  if (amax.begin % sizeof(float) != 0 || amax.end < amax.begin) return false;
  const bool off_lse = a.lse.data == nullptr || disjoint(amax, bytes_of(a.lse));
  return off_lse && is_apart_from_arrays(a, amax) && disjoint(amax, bytes_of(a.q)) &&
         disjoint(amax, bytes_of(a.k)) && disjoint(amax, bytes_of(a.v)) &&
         disjoint(amax, bytes_of(a.out));
}

// Whether the addresses need no full validation: aligned for TMA, inside the address space, and the
// outputs disjoint from all other tensors. Interleaved tensors count as overlapping.
bool can_skip_validation(const Arguments& a) {
  const Bytes q = bytes_of(a.q), k = bytes_of(a.k), v = bytes_of(a.v), out = bytes_of(a.out);
  const std::uintptr_t bits = q.begin | k.begin | v.begin | out.begin;
  if (bits % kLoadAlignment != 0) return false;
  for (const Bytes& x : {q, k, v, out})
    if (x.begin == 0 || x.end < x.begin) return false;
  if (!disjoint(out, q) || !disjoint(out, k) || !disjoint(out, v)) return false;
  if (!can_skip_amax_validation(a) || !is_apart_from_arrays(a, out)) return false;
  if (a.lse.data == nullptr) return true;
  const Bytes lse = bytes_of(a.lse);
  return lse.begin % 4 == 0 && lse.end >= lse.begin && is_apart_from_arrays(a, lse) &&
         disjoint(lse, q) && disjoint(lse, k) && disjoint(lse, v) && disjoint(lse, out);
}

std::uint64_t next_plan() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

RepeatedSm90Forward::RepeatedSm90Forward() : plan_(next_plan()) {}

Status RepeatedSm90Forward::launch(LoadedQuantizers& quantizers, const LoadedSm90Forward& kernel,
                                   const Resolved& resolved, const Arguments& arguments,
                                   const PreparedCall* call, std::size_t workspace_bytes,
                                   Stream stream) const {
  const Gpu& gpu = quantizers.gpu();
  const CurrentContext current(gpu);
  OCTAVO_RETURN_IF_ERROR(current.status());
  Recorded& slot = recorded(plan_);
  slot.plan = 0;
  slot.converts = call != nullptr;
  slot.kernel_problem = resolved.kernel_problem;
  RecordedQuantizers* const quantizers_slot = slot.converts ? &recorded_quantizers(plan_) : nullptr;
  if (quantizers_slot != nullptr) {
    quantizers_slot->plan = 0;
    OCTAVO_RETURN_IF_ERROR(quantizers_slot->launches.prepare(quantizers, *call));
    quantizers_slot->plan = plan_;
  }
  const Arguments& kernel_arguments =
      quantizers_slot != nullptr ? quantizers_slot->launches.arguments() : arguments;
  // A varlen batch may have no tokens of Q.
  const bool empty = is_empty(arguments.q);
  if (!empty)
    OCTAVO_RETURN_IF_ERROR(slot.launch.prepare(gpu, kernel, slot.kernel_problem, resolved.order,
                                               kernel_arguments, stream));
  if (!empty && !is_empty(arguments.k) && is_plain(arguments) && can_skip_validation(arguments) &&
      gpu.driver->tensor_map_replace_address != nullptr) {
    slot.plan = plan_;
    slot.arguments = arguments;
    slot.workspace_bytes = workspace_bytes;
  }
  if (quantizers_slot != nullptr)
    OCTAVO_RETURN_IF_ERROR(quantizers_slot->launches.launch(gpu, stream));
  return empty ? Status() : slot.launch.launch(gpu, slot.kernel_problem, kernel_arguments);
}

bool RepeatedSm90Forward::launch_again(const Gpu& gpu, const Arguments& arguments,
                                       Workspace workspace, Stream stream, Status& status) const {
  Recorded& slot = recorded(plan_);
  if (slot.plan != plan_ || !is_plain(arguments) ||
      !same_but_for_addresses(slot.arguments, arguments) || !can_skip_validation(arguments))
    return false;
  if (workspace.bytes < slot.workspace_bytes) return false;
  RecordedQuantizers* const quantizers_slot = slot.converts ? &recorded_quantizers(plan_) : nullptr;
  if (quantizers_slot != nullptr &&
      (quantizers_slot->plan != plan_ || workspace.data == nullptr ||
       reinterpret_cast<std::uintptr_t>(workspace.data) % kLoadAlignment != 0))
    return false;
  const CurrentContext current(gpu);
  status = current.status();
  if (!status.ok()) return true;
  if (quantizers_slot != nullptr) quantizers_slot->launches.move(arguments, workspace.data);
  const Arguments& kernel_arguments =
      quantizers_slot != nullptr ? quantizers_slot->launches.arguments() : arguments;
  status = slot.launch.move(gpu, kernel_arguments, stream);
  // A launch whose addresses were only partly replaced is unusable.
  if (!status.ok()) {
    slot.plan = 0;
    return true;
  }
  if (quantizers_slot != nullptr) status = quantizers_slot->launches.launch(gpu, stream);
  if (status.ok()) status = slot.launch.launch(gpu, slot.kernel_problem, kernel_arguments);
  return true;
}

}  // namespace octavo
