// SPDX-License-Identifier: Apache-2.0
// Runs one attention call: reads the arguments, gets a cached plan, runs it without the GIL.
#include "attention.h"

#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "errors.h"
#include "octavo/kernels.hpp"
#include "recent_plans.h"
#include "torch_route.h"
#include "torch_workspace.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// A cache of GPU plans, keyed by everything they depend on. The library's one-call form has a cache
// too, but checks the arguments twice more before it is looked up.
class Plans {
 public:
  struct Planned {
    Plan plan;
    std::size_t workspace_bytes;
  };

  // Requires the GIL, which is released while a plan is made, because this may compile a kernel.
  Planned get(const Call& call) {
    const Key key = key_of(call);
    std::optional<Entry>& entry = entries_[hash(key) % kEntries];
    if (entry && entry->key == key) return entry->planned;
    std::optional<Result<Plan>> made;
    {
      const nb::gil_scoped_release released;
      const Result<Problem> problem = problem_of(call.arguments, call.options);
      made.emplace(problem.ok() ? plan(*problem, call.device) : problem.status());
    }
    const Plan planned = check(*std::move(made), call.layout);
    entry = Entry{key, {planned, planned.workspace_bytes()}};
    return entry->planned;
  }

 private:
  static constexpr std::size_t kEntries = 512;
  using Key = std::array<std::uint64_t, 21>;
  struct Entry {
    Key key;
    Planned planned;
  };

  static bool is_padded(const Arguments& a) {
    return a.seqlens_q != nullptr || a.seqlens_kv != nullptr || a.leftpad_q != nullptr ||
           a.leftpad_kv != nullptr;
  }

  static Key key_of(const Call& call) {
    const Arguments& a = call.arguments;
    const Options& o = call.options;
    const Quantization& q = o.quantization;
    std::uint64_t kinds = 0;
    const auto add = [&kinds](auto value) {
      kinds = kinds << 4 | static_cast<std::uint8_t>(value);
    };
    for (const DType dtype : {a.q.dtype, a.k.dtype, a.v.dtype, a.out.dtype}) add(dtype);
    for (const Scales* scales : {&a.q_scales, &a.k_scales, &a.v_scales}) add(scales->granularity);
    add(q.qk ? static_cast<int>(*q.qk) : 15);
    add(q.v ? static_cast<int>(*q.v) : 15);
    add(o.causal);
    add(o.precision);
    add(q.rule);
    add((q.smooth_k ? 1 : 0) | (q.hadamard ? 2 : 0) | (o.batch_invariant ? 4 : 0) |
        (a.lse.data != nullptr ? 8 : 0));
    add(call.device.kind);
    add((a.cu_seqlens_q != nullptr ? 1 : 0) | (o.overlap_launch ? 2 : 0) |
        (a.v_layout == VLayout::transposed ? 4 : 0));
    const bool scales_of_heads =
        is_8bit(a.out.dtype) && a.out_scales.granularity == Granularity::head;
    add((scales_of_heads ? 1 : 0) | (a.out_amax != nullptr ? 2 : 0));
    const std::uint64_t modifiers =
        (is_padded(a) ? 1u : 0u) | (a.page_table != nullptr ? 32u : 0u) |
        (a.seqlens_q != nullptr || a.leftpad_q != nullptr ? 64u : 0u) |
        (a.mask.data != nullptr ? 2u : 0u) | (a.alibi_slopes != nullptr ? 4u : 0u) |
        (a.sinks != nullptr ? 8u : 0u) |
        (static_cast<unsigned>(a.block_mask.block_size / 64) << 12) |
        (static_cast<unsigned>(a.k_groups.channels / 32) << 16) |
        (a.draft_tree != nullptr ? 1u << 20 : 0u) |
        (a.bias.data != nullptr ? 16u + (static_cast<unsigned>(a.bias.dtype) << 8) : 0u);
    const auto word = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    return {kinds, word(call.device.index), word(a.q.shape[0]), word(a.q.shape[1]),
            word(a.q.shape[2]), word(a.q.shape[3]), word(a.k.shape[1]), word(a.k.shape[2]),
            word(o.window_left), word(o.window_right), word(q.block_rows), word(a.sequences),
            word(a.max_seqlen_q), word(a.max_seqlen_kv),
            std::uint64_t{std::bit_cast<std::uint32_t>(a.q_scales.max_quantized)} << 32 |
                std::bit_cast<std::uint32_t>(a.k_scales.max_quantized),
            std::bit_cast<std::uint32_t>(o.max_error),
            // Problem::k_block_rows; block_rows of q and v are not part of a problem.
            word(a.k_scales.block_rows), modifiers << 32 | std::bit_cast<std::uint32_t>(o.softcap),
            word(a.pages_per_sequence), word(o.sm_margin), word(a.out.shape[3])};
  }

  static std::size_t hash(const Key& key) {
    std::uint64_t h = 0;
    for (const std::uint64_t word : key) h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h >> 40;
  }

  std::array<std::optional<Entry>, kEntries> entries_;
};

Plans& plans() {
  static auto& kept = *new Plans();  // never freed: the driver may be unloaded before statics
  return kept;
}

Status run_planned(const Call& call) {
  const Plans::Planned planned = plans().get(call);
  std::size_t bytes = planned.workspace_bytes;
  // Tokens that belong to no sequence may need more workspace than the plan assumes.
  if (call.arguments.cu_seqlens_q != nullptr) bytes = planned.plan.workspace_bytes(call.arguments);
  const TorchWorkspace workspace(call, bytes);
  const nb::gil_scoped_release released;
  return planned.plan.run(call.arguments, workspace.get(), call.stream);
}

Status run(const Call& call) {
  // On a GPU only PyTorch's allocator keeps the workspace of a captured graph alive. Elsewhere the
  // library allocates itself, on a CPU as much as the current number of threads can use.
  if (call.device.kind == Device::Kind::cuda && call.q.type->framework == Framework::torch)
    return run_planned(call);
  const nb::gil_scoped_release released;
  return octavo::attention(call.arguments, call.options, call.device, call.stream);
}

// A plan of the backward pass on a GPU.
BackwardPlan backward_plan(const BackwardCall& call) {
  static auto& recent = *new RecentPlans<BackwardPlan>();  // never freed, as plans()
  const Device device = call.forward.device;
  const Problem problem =
      check(problem_of(call.arguments, call.forward.options), call.forward.layout);
  if (const BackwardPlan* found = recent.find(problem, device)) return *found;
  std::optional<Result<BackwardPlan>> made;
  {
    const nb::gil_scoped_release released;
    made.emplace(plan_backward(problem, device));
  }
  return recent.add(problem, device, check(*std::move(made), call.forward.layout));
}

Status run_backward(const BackwardCall& call) {
  const Call& forward = call.forward;
  if (forward.device.kind == Device::Kind::cuda && forward.q.type->framework == Framework::torch) {
    const BackwardPlan plan = backward_plan(call);
    const TorchWorkspace workspace(forward, plan.workspace_bytes(call.arguments));
    const nb::gil_scoped_release released;
    return plan.run(call.arguments, workspace.get(), forward.stream);
  }
  const nb::gil_scoped_release released;
  return octavo::attention_backward(call.arguments, forward.options, forward.device,
                                    forward.stream);
}

// Checks what PyTorch requires beyond the library, so that PyTorch raises its own errors.
bool is_plain_sdpa(const Arguments& a, bool enable_gqa) {
  const bool known_bias =
      a.bias.data == nullptr || a.bias.dtype == a.q.dtype || a.bias.dtype == DType::f32;
  return !is_8bit(a.q.dtype) && a.k.dtype == a.q.dtype && a.v.dtype == a.q.dtype && known_bias &&
         (enable_gqa || a.k.shape[1] == a.q.shape[1]);
}

// Whether no layout was given and the shape has more heads and fewer rows than any model, so that
// it is most likely (batch, seqlen, heads, head_dim). A single row does not count, because many
// programs merge the batch into heads when decoding.
bool looks_swapped(const Call& call, const Given& given) {
  constexpr std::int64_t kMostHeads = 256;
  const auto swapped = [](const ConstTensor& t) {
    return t.shape[1] > kMostHeads && t.shape[2] > 1 && t.shape[2] <= kMostHeads;
  };
  return given[kLayout].is_none() && call.arguments.cu_seqlens_q == nullptr &&
         swapped(call.arguments.q) && swapped(call.arguments.k);
}

void warn_of_layout(const Call& call, const Given& given) {
  static bool warned = false;  // guarded by the GIL
  if (warned || !looks_swapped(call, given)) return;
  warned = true;
  const auto& shape = call.arguments.q.shape;
  const std::string text = "q has " + std::to_string(shape[1]) + " heads of " +
                           std::to_string(shape[2]) +
                           " rows: layout='bshd' is for (batch, seqlen, heads, head_dim); "
                           "pass layout='bhsd' if this is intended.";
  const nb::object category = nb::module_::import_("octavo").attr("LayoutWarning");
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) != 0) throw nb::python_error();
}

nb::object results_of(Call& call, const Given& given) {
  check(run(call), call.layout);
  if (call.q.type->framework == Framework::other && call.device.kind == Device::Kind::cuda)
    check(synchronize(call.device, call.stream));
  nb::object out =
      given[kOut].is_none() ? finish(call.q, std::move(call.out)) : std::move(call.out);
  nb::list results;
  results.append(out);
  for (nb::object* const more : {&call.lse, &call.amax})
    if (more->is_valid()) results.append(finish(call.q, std::move(*more)));
  if (results.size() == 1) return out;
  return nb::tuple(results);
}

}  // namespace

nb::object attention(const Given& given) {
  if (has_torch(given)) {
    const Route route = route_of(given);
    if (route != Route::direct || wants_gradient(given))
      return call_octavo_torch("_by_operator", nb::bool_(route == Route::transformed), given);
  }
  Call call = read_call(given);
  warn_of_layout(call, given);
  return results_of(call, given);
}

nb::object run_directly(const Given& given) {
  Call call = read_call(given);
  return results_of(call, given);
}

nb::object run_above_autograd(const Given& given, bool lse) {
  refuse_tangents(given);
  if (wants_gradient(given)) return call_octavo_torch("_differentiable", nb::bool_(lse), given);
  if (route_of(given) == Route::transformed)
    return call_octavo_torch("_below_autograd", nb::bool_(lse), given);
  return run_operator(given, lse);
}

nb::object run_operator(Given given, bool lse) {
  if (lse) given[kReturnLse] = nb::handle(Py_True);
  return run_directly(given);
}

nb::object plain_sdpa(nb::handle q, nb::handle k, nb::handle v, nb::handle attn_mask, bool causal,
                      nb::handle scale, bool enable_gqa) {
  Given given;
  given.fill(nb::none());
  given[kQ] = q;
  given[kK] = k;
  given[kV] = v;
  given[kScale] = scale;
  for (const int parameter : {kQ, kK, kV})
    if (array_type(given[parameter]).framework != Framework::torch) return nb::none();
  if (!attn_mask.is_none()) {
    // PyTorch raises an error for both.
    if (causal || array_type(attn_mask).framework != Framework::torch) return nb::none();
    const bool boolean = nb::object(attn_mask.attr("dtype")).is(Torch::get().boolean);
    given[boolean ? kMask : kBias] = attn_mask;
  }
  if (route_of(given) != Route::direct || wants_gradient(given)) return nb::none();
  try {
    Call call = read_call(given);
    if (!is_plain_sdpa(call.arguments, enable_gqa)) return nb::none();
    if (causal) call.options.causal = Causal::top_left;
    check(run(call));
    return std::move(call.out);
  } catch (nb::python_error& error) {
    for (PyObject* const type : {PyExc_ValueError, PyExc_TypeError, PyExc_NotImplementedError})
      if (error.matches(type)) return nb::none();
    throw;
  }
}

namespace {

bool is_known_gpu(std::string_view name) {
  const std::vector<KnownGpu> all = known_gpus();
  return std::any_of(all.begin(), all.end(),
                     [name](const KnownGpu& gpu) { return gpu.name == name; });
}

// As on the command line, "auto" is the CPU for a problem that the GPU does not serve.
Result<Explanation> explain_on(const Problem& problem, Device device, bool may_move) {
  Result<Explanation> explanation = explain(problem, device);
  const bool moves = may_move && device.kind == Device::Kind::cuda && !explanation.ok() &&
                     explanation.status().code() != ErrorCode::invalid_argument;
  if (!moves) return explanation;
  Result<Explanation> on_cpu = explain(problem, {Device::Kind::cpu, 0});
  if (on_cpu.ok())
    on_cpu->reason += "; not on " + name(device) + ": " + explanation.status().message();
  return on_cpu;
}

}  // namespace

Explanation explain_call(const Given& given) {
  const Call call = read_call(given);
  Device device = call.device;
  bool automatic = false;
  std::string absent;  // a GPU by its name, which need not be here
  if (!given[kDevice].is_none()) {
    const std::string_view asked = text_of(given[kDevice], "device", "its name, or None");
    if (is_known_gpu(asked))
      absent = asked;
    else
      device = check(parse_device(asked));
    automatic = asked == "auto";
  }
  std::optional<Result<Explanation>> explanation;
  {
    const nb::gil_scoped_release released;
    const Result<Problem> problem = problem_of(call.arguments, call.options);
    if (!problem.ok())
      explanation.emplace(problem.status());
    else if (!absent.empty())
      explanation.emplace(explain_on_known_gpu(*problem, absent));
    else
      explanation.emplace(explain_on(*problem, device, automatic));
  }
  return check(*std::move(explanation), call.layout);
}

nb::object attention_backward(const Given& given) {
  if (has_torch(given)) {
    const bool differentiable =
        wants_gradient(given) ||
        nb::cast<bool>(nb::module_::import_("octavo.torch").attr("_requires_grad")(given[kDout]));
    if (route_of(given) != Route::direct || differentiable)
      return call_octavo_torch("_backward_by_operator", nb::borrow(given[kDout]), given);
  }
  return run_backward_directly(given);
}

nb::object run_backward_directly(const Given& given) {
  BackwardCall call = read_backward_call(given);
  const Call& forward = call.forward;
  const Status status = run_backward(call);
  check(status, forward.layout);
  if (forward.q.type->framework == Framework::other && forward.device.kind == Device::Kind::cuda)
    check(synchronize(forward.device, forward.stream));
  nb::list gradients;
  for (nb::object* const one : {&call.dq, &call.dk, &call.dv, &call.dbias, &call.dsinks})
    if (one->is_valid()) gradients.append(finish(forward.q, std::move(*one)));
  return nb::tuple(gradients);
}

nb::object backward_refusal(const std::string& device, const std::vector<std::string>& dtypes,
                            std::int64_t heads_q, std::int64_t heads_kv, std::int64_t head_dim,
                            std::int64_t head_dim_v, const std::string& precision, bool varlen,
                            std::int64_t block_size) {
  Problem p;
  const std::array<DType*, 4> kinds = {&p.q, &p.k, &p.v, &p.out};
  for (std::size_t i = 0; i < kinds.size(); ++i)
    *kinds[i] = dtype_of(nb::str(dtypes.at(i).c_str()), "dtype", true);
  // The lengths do not matter: what a device supports depends on types and the head dimension.
  p.batch = p.seqlen_q = p.seqlen_kv = 1;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.head_dim = head_dim;
  p.head_dim_v = head_dim_v;
  p.varlen = varlen;
  p.block_mask = block_size;
  p.lse = true;
  p.options.precision = check(parse_precision(precision));
  const Device on = check(parse_device(device));
  Status status;
  {
    const nb::gil_scoped_release released;
    status = explain_backward(p, on).status();
  }
  if (status.code() != ErrorCode::unsupported) return nb::none();
  return nb::str(status.what());
}

}  // namespace octavo::python
