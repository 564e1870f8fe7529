// SPDX-License-Identifier: Apache-2.0
// The C interface: reads the C structs, calls the C++ API and lets no exception escape.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "base/error.h"
#include "numeric/scale.h"
#include "numeric/transposed.h"
#include "octavo/octavo.h"
#include "octavo/octavo.hpp"
#include "runtime/c_api/c_reading.h"

struct octavo_plan {
  octavo::Plan plan;
};
struct octavo_backward_plan {
  octavo::BackwardPlan plan;
};

namespace octavo {
namespace {

static_assert(static_cast<int>(DType::boolean) == OCTAVO_BOOL);
static_assert(static_cast<int>(DType::int4) == OCTAVO_INT4);
static_assert(static_cast<int>(Granularity::channel) == OCTAVO_PER_CHANNEL);
static_assert(static_cast<int>(Causal::bottom_right) == OCTAVO_CAUSAL_BOTTOM_RIGHT);
static_assert(static_cast<int>(Precision::automatic) == OCTAVO_AUTO);
static_assert(static_cast<int>(VLayout::transposed) == OCTAVO_V_TRANSPOSED);
static_assert(static_cast<int>(ErrorCode::io_error) == OCTAVO_IO_ERROR);

thread_local std::string last_error;

}  // namespace

octavo_status c_report(const Status& status) noexcept {
  if (status.ok()) return OCTAVO_OK;
  try {
    last_error = status.message();
    return static_cast<octavo_status>(status.code());
  } catch (const std::bad_alloc&) {
    last_error = "Out of memory.";  // short enough for std::string not to allocate
    return OCTAVO_OUT_OF_MEMORY;
  }
}

namespace {

// Reads padding and modifiers, for either pass.
template <class CArguments, class PassArguments>
Status read_modifiers(const CArguments& c, PassArguments& out) {
  out.seqlens_q = c.seqlens_q;
  out.seqlens_kv = c.seqlens_kv;
  out.leftpad_q = c.leftpad_q;
  out.leftpad_kv = c.leftpad_kv;
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.bias, "bias", out.bias));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.mask, "mask", out.mask));
  out.alibi_slopes = c.alibi_slopes;
  out.alibi_batch_stride = c.alibi_batch_stride;
  out.sinks = c.sinks;
  return {};
}

BlockMask read_block_mask(const octavo_block_mask& c) {
  return {.block_size = c.block_size,
          .batch = c.batch,
          .heads = c.heads,
          .q_blocks = c.q_blocks,
          .kv_num_blocks = c.kv_num_blocks,
          .kv_indices = c.kv_indices,
          .kv_capacity = c.kv_capacity,
          .full_kv_num_blocks = c.full_kv_num_blocks,
          .full_kv_indices = c.full_kv_indices,
          .full_kv_capacity = c.full_kv_capacity,
          .bit_indices = c.bit_indices,
          .bits = c.bits,
          .bit_blocks = c.bit_blocks};
}

Status read_arguments(const octavo_arguments* given, Arguments& out) {
  octavo_arguments c;
  octavo_arguments_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "arguments", c));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.q, "q", out.q));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.k, "k", out.k));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.v, "v", out.v));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.out, "out", out.out));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.lse, "lse", out.lse));
  OCTAVO_RETURN_IF_ERROR(read_scales(c.q_scales, "q_scales", out.q_scales));
  OCTAVO_RETURN_IF_ERROR(read_scales(c.k_scales, "k_scales", out.k_scales));
  OCTAVO_RETURN_IF_ERROR(read_scales(c.v_scales, "v_scales", out.v_scales));
  OCTAVO_RETURN_IF_ERROR(read_scales(c.out_scales, "out_scales", out.out_scales));
  out.out_amax = c.out_amax;
  if (c.has_scale != 0) out.scale = c.scale;
  out.cu_seqlens_q = c.cu_seqlens_q;
  out.cu_seqlens_kv = c.cu_seqlens_kv;
  out.sequences = c.sequences;
  out.max_seqlen_q = c.max_seqlen_q;
  out.max_seqlen_kv = c.max_seqlen_kv;
  out.q_scales.max_quantized = c.q_max_quantized;
  out.k_scales.max_quantized = c.k_max_quantized;
  OCTAVO_RETURN_IF_ERROR(read_modifiers(c, out));
  out.page_table = c.page_table;
  out.page_table_stride = c.page_table_stride;
  out.pages_per_sequence = c.pages_per_sequence;
  out.block_mask = read_block_mask(c.block_mask);
  out.k_groups = {c.k_groups.data, c.k_groups.channels};
  out.v_groups = {c.v_groups.data, c.v_groups.channels};
  out.draft_tree = c.draft_tree;
  return read_enum(c.v_layout, "v_layout", "rows, transposed", out.v_layout);
}

Status read_arguments(const octavo_backward_arguments* given, BackwardArguments& out) {
  octavo_backward_arguments c;
  octavo_backward_arguments_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "arguments", c));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.q, "q", out.q));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.k, "k", out.k));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.v, "v", out.v));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.out, "out", out.out));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.lse, "lse", out.lse));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.dout, "dout", out.dout));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.dq, "dq", out.dq));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.dk, "dk", out.dk));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.dv, "dv", out.dv));
  OCTAVO_RETURN_IF_ERROR(read_tensor(c.dbias, "dbias", out.dbias));
  OCTAVO_RETURN_IF_ERROR(read_modifiers(c, out));
  out.dsinks = c.dsinks;
  out.block_mask = read_block_mask(c.block_mask);
  if (c.has_scale != 0) out.scale = c.scale;
  out.cu_seqlens_q = c.cu_seqlens_q;
  out.cu_seqlens_kv = c.cu_seqlens_kv;
  out.sequences = c.sequences;
  out.max_seqlen_q = c.max_seqlen_q;
  out.max_seqlen_kv = c.max_seqlen_kv;
  return {};
}

Status read_granularity(std::int32_t code, std::string_view what, std::optional<Granularity>& out) {
  if (code == OCTAVO_GRANULARITY_DEFAULT) return {};
  return read_enum(code, what, kGranularities, out.emplace());
}

Status read_options(const octavo_options* given, Options& out) {
  if (given == nullptr) return {};
  octavo_options c;
  octavo_options_init(&c);
  OCTAVO_RETURN_IF_ERROR(read_sized(given, "options", c));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.causal, "causal", "none, top_left, bottom_right", out.causal));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.precision, "precision", kPrecisions, out.precision));
  Quantization& z = out.quantization;
  OCTAVO_RETURN_IF_ERROR(read_granularity(c.granularity_qk, "granularity_qk", z.qk));
  OCTAVO_RETURN_IF_ERROR(read_granularity(c.granularity_v, "granularity_v", z.v));
  OCTAVO_RETURN_IF_ERROR(read_enum(c.scale_rule, "scale_rule", "amax, least_squares", z.rule));
  z.block_rows = c.block_rows;
  z.smooth_k = c.smooth_k != 0;
  z.hadamard = c.hadamard != 0;
  out.window_left = c.window_left;
  out.window_right = c.window_right;
  out.batch_invariant = c.batch_invariant != 0;
  out.overlap_launch = c.overlap_launch != 0;
  out.max_error = c.max_error;
  out.softcap = c.softcap;
  out.sm_margin = c.sm_margin;
  return {};
}

// Reads the inputs of an attention call, for either pass.
template <class PassArguments>
struct PassCall {
  PassArguments arguments;
  Options options;
  Device device;
};
using Call = PassCall<Arguments>;
using BackwardCall = PassCall<BackwardArguments>;

template <class CArguments, class PassArguments>
Status read_call(const CArguments* arguments, const octavo_options* options, const char* device,
                 PassCall<PassArguments>& out) {
  OCTAVO_RETURN_IF_ERROR(read_arguments(arguments, out.arguments));
  OCTAVO_RETURN_IF_ERROR(read_options(options, out.options));
  return read_device(device, out.device);
}

// The dtype is not checked here; an unknown one is rejected when the tensor is used.
octavo_tensor c_tensor(const Tensor& t, octavo_dtype dtype) {
  octavo_tensor c{t.data, dtype, {}, {}};
  std::memcpy(c.shape, t.shape.data(), sizeof(c.shape));
  std::memcpy(c.stride, t.stride.data(), sizeof(c.stride));
  return c;
}

std::string explanation_text(const Explanation& e) {
  return fmt::format("device {}, kernel {}, config {}, workspace {} bytes: {}", e.device, e.kernel,
                     e.config, e.workspace_bytes, e.reason);
}

// Writes as much of the explanation as fits, and a terminator.
Status write_explanation(const Result<Explanation>& explanation, char* text, std::size_t capacity,
                         std::size_t* needed) {
  if (!explanation.ok()) return explanation.status();
  const std::string sentence = explanation_text(*explanation);
  if (needed != nullptr) *needed = sentence.size() + 1;
  if (capacity == 0) return {};
  const std::size_t shown = std::min(sentence.size(), capacity - 1);
  std::memcpy(text, sentence.data(), shown);
  text[shown] = '\0';
  return {};
}

template <class PlanHandle, class CArguments, class PassArguments>
Status plan_workspace_bytes(const PlanHandle* plan, const CArguments* arguments,
                            PassArguments given, std::size_t* bytes) {
  OCTAVO_RETURN_IF_ERROR(require(plan, "plan"));
  OCTAVO_RETURN_IF_ERROR(require(bytes, "bytes"));
  OCTAVO_RETURN_IF_ERROR(read_arguments(arguments, given));
  const auto run_problem = problem_of(given, plan->plan.problem().options);
  if (!run_problem.ok()) return run_problem.status();
  *bytes = plan->plan.workspace_bytes(given);
  return {};
}

// Implements octavo_plan_create and octavo_backward_plan_create. `make` is plan() or
// plan_backward().
template <class CallOf, class GivenArguments, class Make, class CPlan>
Status create_plan(const GivenArguments* arguments, const octavo_options* options,
                   const char* device, const Make& make, CPlan** plan) {
  OCTAVO_RETURN_IF_ERROR(require(plan, "plan"));
  CallOf call;
  OCTAVO_RETURN_IF_ERROR(read_call(arguments, options, device, call));
  const auto problem = problem_of(call.arguments, call.options);
  if (!problem.ok()) return problem.status();
  auto made = make(*problem, call.device);
  if (!made.ok()) return made.status();
  *plan = new CPlan{*made};
  return {};
}

}  // namespace
}  // namespace octavo

using octavo::Status;

extern "C" {

void octavo_arguments_init_sized(octavo_arguments* arguments, size_t size) {
  octavo::write_sized(octavo_arguments{}, arguments, size);
}

void octavo_backward_arguments_init_sized(octavo_backward_arguments* arguments, size_t size) {
  octavo::write_sized(octavo_backward_arguments{}, arguments, size);
}

void octavo_options_init_sized(octavo_options* options, size_t size) {
  octavo_options o{};
  o.window_left = o.window_right = -1;
  o.granularity_qk = o.granularity_v = OCTAVO_GRANULARITY_DEFAULT;
  o.block_rows = octavo::Quantization{}.block_rows;
  octavo::write_sized(o, options, size);
}

octavo_tensor octavo_tensor_bhsd(void* data, octavo_dtype dtype, int64_t b, int64_t h, int64_t s,
                                 int64_t d) {
  return octavo::c_tensor(octavo::Tensor::bhsd(data, octavo::DType::f32, b, h, s, d), dtype);
}

octavo_tensor octavo_tensor_bshd(void* data, octavo_dtype dtype, int64_t b, int64_t h, int64_t s,
                                 int64_t d) {
  return octavo::c_tensor(octavo::Tensor::bshd(data, octavo::DType::f32, b, h, s, d), dtype);
}

octavo_status octavo_attention(const octavo_arguments* arguments, const octavo_options* options,
                               const char* device, void* stream) {
  return octavo::guarded([&]() -> Status {
    octavo::Call call;
    OCTAVO_RETURN_IF_ERROR(read_call(arguments, options, device, call));
    return octavo::attention(call.arguments, call.options, call.device, stream);
  });
}

octavo_status octavo_plan_create(const octavo_arguments* arguments, const octavo_options* options,
                                 const char* device, octavo_plan** plan) {
  return octavo::guarded([&]() -> Status {
    return octavo::create_plan<octavo::Call>(arguments, options, device, octavo::plan, plan);
  });
}

void octavo_plan_destroy(octavo_plan* plan) { delete plan; }

octavo_status octavo_plan_workspace_bytes(const octavo_plan* plan,
                                          const octavo_arguments* arguments, size_t* bytes) {
  return octavo::guarded([&]() -> Status {
    return octavo::plan_workspace_bytes(plan, arguments, octavo::Arguments{}, bytes);
  });
}

octavo_status octavo_plan_run(const octavo_plan* plan, const octavo_arguments* arguments,
                              void* workspace, size_t workspace_bytes, void* stream) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(plan, "plan"));
    octavo::Arguments given;
    OCTAVO_RETURN_IF_ERROR(octavo::read_arguments(arguments, given));
    return plan->plan.run(given, {workspace, workspace_bytes}, stream);
  });
}

octavo_status octavo_explain(const octavo_arguments* arguments, const octavo_options* options,
                             const char* device, char* text, size_t capacity, size_t* needed) {
  return octavo::guarded([&]() -> Status {
    if (capacity > 0) OCTAVO_RETURN_IF_ERROR(octavo::require(text, "text"));
    octavo::Call call;
    OCTAVO_RETURN_IF_ERROR(read_call(arguments, options, device, call));
    const auto problem = octavo::problem_of(call.arguments, call.options);
    if (!problem.ok()) return problem.status();
    return octavo::write_explanation(octavo::explain(*problem, call.device), text, capacity,
                                     needed);
  });
}

octavo_status octavo_attention_backward(const octavo_backward_arguments* arguments,
                                        const octavo_options* options, const char* device,
                                        void* stream) {
  return octavo::guarded([&]() -> Status {
    octavo::BackwardCall call;
    OCTAVO_RETURN_IF_ERROR(read_call(arguments, options, device, call));
    return octavo::attention_backward(call.arguments, call.options, call.device, stream);
  });
}

octavo_status octavo_backward_plan_create(const octavo_backward_arguments* arguments,
                                          const octavo_options* options, const char* device,
                                          octavo_backward_plan** plan) {
  return octavo::guarded([&]() -> Status {
    return octavo::create_plan<octavo::BackwardCall>(arguments, options, device,
                                                     octavo::plan_backward, plan);
  });
}

void octavo_backward_plan_destroy(octavo_backward_plan* plan) { delete plan; }

octavo_status octavo_backward_plan_workspace_bytes(const octavo_backward_plan* plan,
                                                   const octavo_backward_arguments* arguments,
                                                   size_t* bytes) {
  return octavo::guarded([&]() -> Status {
    return octavo::plan_workspace_bytes(plan, arguments, octavo::BackwardArguments{}, bytes);
  });
}

octavo_status octavo_backward_plan_run(const octavo_backward_plan* plan,
                                       const octavo_backward_arguments* arguments, void* workspace,
                                       size_t workspace_bytes, void* stream) {
  return octavo::guarded([&]() -> Status {
    OCTAVO_RETURN_IF_ERROR(octavo::require(plan, "plan"));
    octavo::BackwardArguments given;
    OCTAVO_RETURN_IF_ERROR(octavo::read_arguments(arguments, given));
    return plan->plan.run(given, {workspace, workspace_bytes}, stream);
  });
}

octavo_status octavo_explain_backward(const octavo_backward_arguments* arguments,
                                      const octavo_options* options, const char* device, char* text,
                                      size_t capacity, size_t* needed) {
  return octavo::guarded([&]() -> Status {
    if (capacity > 0) OCTAVO_RETURN_IF_ERROR(octavo::require(text, "text"));
    octavo::BackwardCall call;
    OCTAVO_RETURN_IF_ERROR(read_call(arguments, options, device, call));
    const auto problem = octavo::problem_of(call.arguments, call.options);
    if (!problem.ok()) return problem.status();
    return octavo::write_explanation(octavo::explain_backward(*problem, call.device), text,
                                     capacity, needed);
  });
}

int64_t octavo_scale_count(const int64_t shape[4], octavo_granularity granularity,
                           int64_t block_rows) {
  if (shape == nullptr || granularity < OCTAVO_PER_TENSOR || granularity > OCTAVO_PER_CHANNEL)
    return -1;
  if (granularity == OCTAVO_PER_BLOCK && block_rows < 1) return -1;
  return octavo::checked_scale_count({shape[0], shape[1], shape[2], shape[3]},
                                     static_cast<octavo::Granularity>(granularity), block_rows)
      .value_or(-1);
}

int64_t octavo_transposed_columns(int64_t keys, int64_t sequences) {
  return octavo::checked_transposed_columns(keys, sequences).value_or(-1);
}
int64_t octavo_transposed_begin(int64_t begin, int64_t number) {
  return octavo::checked_transposed_begin(begin, number).value_or(-1);
}

const char* octavo_last_error(void) { return octavo::last_error.c_str(); }
const char* octavo_version(void) { return octavo::version().data(); }

}  // extern "C"
