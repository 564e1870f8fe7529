// One attention: read, plan (once), run without the GIL.
#include "attention.h"

#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// Plans of a GPU by all that they depend on. The library's one-call form keeps plans as well, and
// checks the arguments twice more on the way to them.
class Plans {
 public:
  struct Planned {
    Plan plan;
    std::size_t workspace_bytes;
  };

  // Under the GIL, which is let go of while a plan is made: a kernel may have to be compiled.
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
    const Plan planned = check(*std::move(made));
    entry = Entry{key, {planned, planned.workspace_bytes()}};
    return entry->planned;
  }

 private:
  static constexpr std::size_t kEntries = 512;
  using Key = std::array<std::uint64_t, 16>;
  struct Entry {
    Key key;
    Planned planned;
  };

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
    const auto word = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    return {kinds,
            word(call.device.index),
            word(a.q.shape[0]),
            word(a.q.shape[1]),
            word(a.q.shape[2]),
            word(a.q.shape[3]),
            word(a.k.shape[1]),
            word(a.k.shape[2]),
            word(o.window_left),
            word(o.window_right),
            word(q.block_rows),
            word(a.sequences),
            word(a.max_len_q),
            word(a.max_len_kv),
            std::uint64_t{std::bit_cast<std::uint32_t>(a.q_scales.largest_code)} << 32 |
                std::bit_cast<std::uint32_t>(a.k_scales.largest_code),
            std::bit_cast<std::uint32_t>(o.max_error)};
  }

  static std::size_t hash(const Key& key) {
    std::uint64_t h = 0;
    for (const std::uint64_t word : key) h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h >> 40;
  }

  std::array<std::optional<Entry>, kEntries> entries_;
};

Plans& plans() {
  static auto& kept = *new Plans();  // the driver may be gone before statics are
  return kept;
}

// Memory of PyTorch's allocator: it knows of streams and of CUDA graphs, which must keep theirs.
nb::object torch_workspace(const Call& call, std::size_t bytes) {
  const Torch& torch = Torch::get();
  nb::object made = torch.empty(bytes, nb::arg("dtype") = torch.uint8,
                                nb::arg("device") = call.q.object.attr("device"));
  if (call.stream_given) {
    const auto address = reinterpret_cast<std::uintptr_t>(call.stream);
    made.attr("record_stream")(torch.module.attr("cuda").attr("ExternalStream")(
        address, nb::arg("device") = call.q.object.attr("device")));
  }
  return made;
}

Status run_planned(const Call& call) {
  const Plans::Planned planned = plans().get(call);
  std::size_t bytes = planned.workspace_bytes;
  // Tokens that no sequence holds may be more than the plan counts with.
  if (call.arguments.cu_seqlens_q != nullptr) bytes = planned.plan.workspace_bytes(call.arguments);
  nb::object held;
  Workspace workspace;
  if (bytes > 0) {
    held = torch_workspace(call, bytes);
    workspace = {read_array(held, "workspace").data, bytes};
  }
  const nb::gil_scoped_release released;
  return planned.plan.run(call.arguments, workspace, call.stream);
}

Status run(const Call& call) {
  // On a GPU only PyTorch's memory is known to outlive a captured graph. Elsewhere the library has
  // memory of its own, and on a CPU as much of it as the threads of this moment can use.
  if (call.device.kind == Device::Kind::cuda && call.q.type->framework == Framework::torch)
    return run_planned(call);
  const nb::gil_scoped_release released;
  return octavo::attention(call.arguments, call.options, call.device, call.stream);
}

// Which of q, k and v asks for a gradient; -1: none.
int wants_gradient(const Given& given) {
  if (!is_true(Torch::get().is_grad_enabled())) return -1;
  static PyObject* const kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  for (const int parameter : {kQ, kK, kV}) {
    if (array_type(given[parameter]).framework != Framework::torch) continue;
    const nb::object wanted = nb::steal(PyObject_GetAttr(given[parameter].ptr(), kRequiresGrad));
    if (!wanted.is_valid()) throw nb::python_error();
    if (wanted.ptr() == Py_True) return parameter;
  }
  return -1;
}

// There is no backward pass, and a gradient that is silently missing is worse than none.
void refuse_gradients(const Given& given) {
  const int parameter = wants_gradient(given);
  if (parameter >= 0)
    refuse(PyExc_ValueError, kParameters[parameter], "a tensor that requires grad",
           "tensors that do not, or torch.no_grad(): there is no backward pass "
           "(octavo.torch.sdpa falls back)");
}

// Beyond what the library asks for: what PyTorch's function would refuse, it shall refuse.
bool is_plain_sdpa(const Arguments& a, bool enable_gqa) {
  return !is_8bit(a.q.dtype) && a.k.dtype == a.q.dtype && a.v.dtype == a.q.dtype &&
         (enable_gqa || a.k.shape[1] == a.q.shape[1]);
}

// Fake and functional tensors go the way of PyTorch's operators.
nb::object through_operator(const Given& given) {
  nb::dict named;
  for (int i = kCausal; i < kDevice; ++i)
    if (!given[i].is_none()) named[kParameters[i]] = given[i];
  return nb::module_::import_("octavo.torch")
      .attr("attention")(given[kQ], given[kK], given[kV], **named);
}

}  // namespace

nb::object attention(const Given& given) {
  const Framework framework = array_type(given[kQ]).framework;
  if (framework == Framework::torch_subclass) return through_operator(given);
  if (framework == Framework::torch) refuse_gradients(given);
  Call call = read_call(given);
  check(run(call));
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

nb::object plain_sdpa(nb::handle q, nb::handle k, nb::handle v, bool causal, nb::handle scale,
                      bool enable_gqa) {
  Given given;
  given.fill(nb::none());
  given[kQ] = q;
  given[kK] = k;
  given[kV] = v;
  given[kScale] = scale;
  for (const int parameter : {kQ, kK, kV})
    if (array_type(given[parameter]).framework != Framework::torch) return nb::none();
  if (wants_gradient(given) >= 0) return nb::none();
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

Explanation explain_call(const Given& given) {
  const Call call = read_call(given);
  Device device = call.device;
  if (!given[kDevice].is_none())
    device = check(parse_device(text_of(given[kDevice], "device", "its name, or None")));
  std::optional<Result<Explanation>> told;
  {
    const nb::gil_scoped_release released;
    const Result<Problem> problem = problem_of(call.arguments, call.options);
    told.emplace(problem.ok() ? explain(*problem, device) : problem.status());
  }
  return check(*std::move(told));
}

}  // namespace octavo::python
