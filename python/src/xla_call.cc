// SPDX-License-Identifier: Apache-2.0
// Attention as custom calls of XLA. When JAX traces a program, trace_attention() checks a call as
// octavo.attention does, and returns the types of its results and the attributes of its custom
// call. When XLA runs the program, in a thread without Python, a handler reads the same call from
// XLA's buffers and those attributes:
//
//   attribute            value
//   operands             the parameters' names in the order of the operands
//   layout               bhsd, bshd or varlen
//   causal, precision    their names
//   the others           numbers, as in Arguments and Options; scale is absent if it is unset
//
// Buffers are dense and in row-major order. Operands of other names are the initial values of
// results in the same memory; the handler needs only the latter.
#include "xla_call.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "call.h"
#include "errors.h"
#include "recent_plans.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;
namespace ffi = xla::ffi;

namespace octavo::python {
namespace {

// --------------------------------------------------------------------------------- when it is run

[[noreturn]] void refuse_call(const std::string& what, const std::string& why) {
  throw Status(ErrorCode::invalid_argument, "the custom call of octavo.jax has " + what + " " +
                                                why + ", which octavo.jax does not write.");
}

// A buffer without elements may have no memory, but it is given.
void* address_of(const ffi::AnyBuffer& buffer) {
  static std::int64_t nothing = 0;
  return buffer.untyped_data() != nullptr ? buffer.untyped_data() : &nothing;
}

DType type_of(const ffi::AnyBuffer& buffer, const char* what) {
  switch (buffer.element_type()) {
    case ffi::DataType::F32:
      return DType::f32;
    case ffi::DataType::F16:
      return DType::f16;
    case ffi::DataType::BF16:
      return DType::bf16;
    case ffi::DataType::PRED:
      return DType::boolean;
    default:
      refuse_call(what, "of another type");
  }
}

// The operands, results and attributes of a custom call.
class Frame {
 public:
  Frame(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes)
      : operands_(operands), results_(results), attributes_(attributes) {
    std::string_view names = attribute<std::string_view>("operands");
    while (!names.empty()) {
      const std::size_t end = std::min(names.find(' '), names.size());
      names_.push_back(names.substr(0, end));
      names.remove_prefix(std::min(end + 1, names.size()));
    }
    if (names_.size() > operands_.size()) refuse_call("operands", "of a smaller number than names");
  }

  template <class T>
  T attribute(std::string_view name) const {
    const ffi::ErrorOr<T> value = attributes_.get<T>(name);
    if (value.has_error()) refuse_call(std::string(name), "of another kind, or lacks it");
    return *value;
  }
  bool has(std::string_view attribute) const { return attributes_.contains(attribute); }

  std::optional<ffi::AnyBuffer> find(std::string_view name) const {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) return {};
    return *operands_.get<ffi::AnyBuffer>(static_cast<std::size_t>(found - names_.begin()));
  }
  ffi::AnyBuffer operand(const char* name) const {
    const std::optional<ffi::AnyBuffer> found = find(name);
    if (!found) refuse_call("no operand", name);
    return *found;
  }
  std::size_t results() const { return results_.size(); }
  ffi::AnyBuffer result(std::size_t i) const {
    if (i >= results()) refuse_call("results", "of a smaller number");
    return **results_.get<ffi::AnyBuffer>(i);
  }

  Layout layout() const {
    const auto text = attribute<std::string_view>("layout");
    return text == "bshd" ? Layout::bshd : text == "varlen" ? Layout::varlen : Layout::bhsd;
  }

 private:
  ffi::RemainingArgs operands_;
  ffi::RemainingRets results_;
  ffi::Dictionary attributes_;
  std::vector<std::string_view> names_;
};

void expect_rank(const ffi::AnyBuffer& buffer, std::size_t least, std::size_t most,
                 const char* what) {
  const std::size_t rank = buffer.dimensions().size();
  if (rank < least || rank > most) refuse_call(what, "of another number of dimensions");
}

// One of q, k, v, out, dout and the gradients.
Tensor view(const ffi::AnyBuffer& buffer, Layout layout, const char* what) {
  const bool varlen = layout == Layout::varlen;
  expect_rank(buffer, varlen ? 3 : 4, varlen ? 3 : 4, what);
  const auto d = buffer.dimensions();
  void* const data = address_of(buffer);
  const DType dtype = type_of(buffer, what);
  if (varlen) return Tensor::varlen(data, dtype, d[0], d[1], d[2]);
  return layout == Layout::bshd ? Tensor::bshd(data, dtype, d[0], d[2], d[1], d[3])
                                : Tensor::bhsd(data, dtype, d[0], d[1], d[2], d[3]);
}

// bias, its gradient, or mask; missing dimensions come first.
Tensor score_view(const ffi::AnyBuffer& buffer, const char* what) {
  expect_rank(buffer, 0, 4, what);
  const auto d = buffer.dimensions();
  std::array<std::int64_t, 4> shape = {1, 1, 1, 1};
  std::copy(d.begin(), d.end(), shape.end() - static_cast<std::ptrdiff_t>(d.size()));
  return Tensor::bhsd(address_of(buffer), type_of(buffer, what), shape[0], shape[1], shape[2],
                      shape[3]);
}

Tensor lse_view(const ffi::AnyBuffer& buffer, const ConstTensor& q) {
  if (buffer.element_count() != static_cast<std::size_t>(q.shape[0] * q.shape[1] * q.shape[2]))
    refuse_call("lse", "of another size");
  return Tensor::bhsd(address_of(buffer), type_of(buffer, "lse"), q.shape[0], q.shape[1],
                      q.shape[2], 1);
}

// The address of an optional operand of 32-bit numbers, at least `count` of them; or null.
template <class Number>
const Number* numbers(const Frame& frame, const char* name, std::int64_t count) {
  constexpr ffi::DataType kType =
      std::is_same_v<Number, float> ? ffi::DataType::F32 : ffi::DataType::S32;
  const std::optional<ffi::AnyBuffer> found = frame.find(name);
  if (!found) return nullptr;
  if (found->element_type() != kType || found->element_count() < static_cast<std::size_t>(count))
    refuse_call(name, "of another type or size");
  return static_cast<const Number*>(address_of(*found));
}

// The sequence starts are `sequences` + 1 numbers.
void read_varlen(const Frame& frame, Arguments& a) {
  const auto starts = frame.operand("cu_seqlens_q");
  a.sequences = static_cast<std::int64_t>(starts.element_count()) - 1;
  a.cu_seqlens_q = numbers<std::int32_t>(frame, "cu_seqlens_q", a.sequences + 1);
  a.cu_seqlens_kv = numbers<std::int32_t>(frame, "cu_seqlens_kv", a.sequences + 1);
  a.max_seqlen_q = frame.attribute<std::int64_t>("max_seqlen_q");
  a.max_seqlen_kv = frame.attribute<std::int64_t>("max_seqlen_kv");
}

// Reads the inputs that both passes have.
Arguments read_arguments(const Frame& frame) {
  Arguments a;
  const Layout layout = frame.layout();
  a.q = view(frame.operand("q"), layout, "q");
  a.k = view(frame.operand("k"), layout, "k");
  a.v = view(frame.operand("v"), layout, "v");
  if (frame.has("scale")) a.scale = static_cast<float>(frame.attribute<double>("scale"));
  if (layout == Layout::varlen) read_varlen(frame, a);
  const std::int64_t batch = a.q.shape[0], heads = a.q.shape[1];
  a.seqlens_q = numbers<std::int32_t>(frame, "seqlens_q", batch);
  a.seqlens_kv = numbers<std::int32_t>(frame, "seqlens_kv", batch);
  a.leftpad_q = numbers<std::int32_t>(frame, "leftpad_q", batch);
  a.leftpad_kv = numbers<std::int32_t>(frame, "leftpad_kv", batch);
  if (const auto table = frame.find("page_table")) {
    expect_rank(*table, 2, 2, "page_table");
    a.pages_per_sequence = a.page_table_stride = table->dimensions()[1];
    a.page_table = numbers<std::int32_t>(frame, "page_table", batch * a.pages_per_sequence);
  }
  if (const auto bias = frame.find("bias")) a.bias = score_view(*bias, "bias");
  if (const auto mask = frame.find("mask")) a.mask = score_view(*mask, "mask");
  a.sinks = numbers<float>(frame, "sinks", heads);
  if (const auto slopes = frame.find("alibi_slopes")) {
    const bool by_sequence = slopes->dimensions().size() == 2;
    const std::int64_t sequences = layout == Layout::varlen ? a.sequences : batch;
    a.alibi_slopes = numbers<float>(frame, "alibi_slopes", by_sequence ? sequences * heads : heads);
    a.alibi_batch_stride = by_sequence ? heads : 0;
  }
  return a;
}

Options read_options(const Frame& frame) {
  Options o;
  o.causal = parse_causal(frame.attribute<std::string_view>("causal")).value();
  o.precision = parse_precision(frame.attribute<std::string_view>("precision")).value();
  o.window_left = frame.attribute<std::int64_t>("window_left");
  o.window_right = frame.attribute<std::int64_t>("window_right");
  o.softcap = static_cast<float>(frame.attribute<double>("softcap"));
  o.max_error = static_cast<float>(frame.attribute<double>("max_error"));
  o.batch_invariant = frame.attribute<std::int64_t>("batch_invariant") != 0;
  o.sm_margin = frame.attribute<std::int64_t>("sm_margin");
  return o;
}

// The results are out and, if it is requested, lse.
Arguments read_forward(const Frame& frame) {
  Arguments a = read_arguments(frame);
  a.out = view(frame.result(0), frame.layout(), "out");
  if (frame.results() > 1) a.lse = lse_view(frame.result(1), a.q);
  return a;
}

// The results are dq, dk, dv and, if they are requested, dbias and dsinks.
BackwardArguments read_backward(const Frame& frame) {
  const Layout layout = frame.layout();
  BackwardArguments b = shared_arguments(read_arguments(frame));
  b.out = view(frame.operand("out"), layout, "out");
  b.lse = lse_view(frame.operand("lse"), b.q);
  b.dout = view(frame.operand("dout"), layout, "dout");
  b.dq = view(frame.result(0), layout, "dq");
  b.dk = view(frame.result(1), layout, "dk");
  b.dv = view(frame.result(2), layout, "dv");
  std::size_t next = 3;
  if (frame.attribute<std::int64_t>("return_dbias") != 0)
    b.dbias = score_view(frame.result(next++), "dbias");
  if (frame.attribute<std::int64_t>("return_dsinks") != 0)
    b.dsinks = static_cast<float*>(address_of(frame.result(next)));
  return b;
}

// Where a custom call runs on a GPU.
struct OnGpu {
  Device device;
  Stream stream;
  ffi::ScratchAllocator& scratch;
};

// XLA's scratch memory is aligned to 16 bytes: it refuses to promise more.
Result<Workspace> workspace_from(ffi::ScratchAllocator& scratch, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256, kOfScratch = 16;
  if (bytes == 0) return Workspace{};
  std::size_t space = bytes + kAlignment - kOfScratch;
  const std::optional<void*> made = scratch.Allocate(space, kOfScratch);
  if (!made)
    return Status{ErrorCode::out_of_memory, "workspace is " + std::to_string(bytes) +
                                                " bytes; supported: what XLA has left on the GPU."};
  void* begin = *made;
  return Workspace{std::align(kAlignment, bytes, begin, space), bytes};
}

template <class Planned, class Given>
Status run_on_gpu(const Given& arguments, const Options& options, const OnGpu& on,
                  Result<Planned> (*make)(const Problem&, Device)) {
  // Never freed: XLA's threads may outlast statics.
  static auto& lock = *new std::mutex();
  static auto& recent = *new RecentPlans<Planned>();
  const Problem problem = problem_of(arguments, options).value();
  std::optional<Planned> planned;
  {
    const std::lock_guard held(lock);
    if (const Planned* found = recent.find(problem, on.device)) planned = *found;
  }
  if (!planned) {
    planned = make(problem, on.device).value();
    const std::lock_guard held(lock);
    recent.add(problem, on.device, *planned);
  }
  const Result<Workspace> workspace =
      workspace_from(on.scratch, planned->workspace_bytes(arguments));
  if (!workspace.ok()) return workspace.status();
  return planned->run(arguments, *workspace, on.stream);
}

ffi::ErrorCode code_of(const Status& status) {
  switch (status.code()) {
    case ErrorCode::invalid_argument:
      return ffi::ErrorCode::kInvalidArgument;
    case ErrorCode::unsupported:
      return ffi::ErrorCode::kUnimplemented;
    case ErrorCode::out_of_memory:
      return ffi::ErrorCode::kResourceExhausted;
    default:
      return ffi::ErrorCode::kInternal;
  }
}

// Runs a handler's body. No exception may reach XLA.
template <class Body>
ffi::Error guarded(ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary attributes, const Body& body) {
  try {
    const Frame frame(operands, results, attributes);
    const Status status = body(frame);
    if (status.ok()) return ffi::Error::Success();
    return {code_of(status), in_python_terms(status.what(), frame.layout())};
  } catch (const Status& status) {
    return {code_of(status), status.what()};
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
}

ffi::Error attention_on_cpu(ffi::RemainingArgs operands, ffi::RemainingRets results,
                            ffi::Dictionary attributes) {
  return guarded(operands, results, attributes, [](const Frame& frame) {
    return attention(read_forward(frame), read_options(frame));
  });
}

ffi::Error backward_on_cpu(ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary attributes) {
  return guarded(operands, results, attributes, [](const Frame& frame) {
    return octavo::attention_backward(read_backward(frame), read_options(frame));
  });
}

ffi::Error attention_on_gpu(void* stream, ffi::ScratchAllocator scratch, std::int32_t device,
                            ffi::RemainingArgs operands, ffi::RemainingRets results,
                            ffi::Dictionary attributes) {
  return guarded(operands, results, attributes, [&](const Frame& frame) {
    return run_on_gpu(read_forward(frame), read_options(frame),
                      {{Device::Kind::cuda, device}, stream, scratch}, plan);
  });
}

ffi::Error backward_on_gpu(void* stream, ffi::ScratchAllocator scratch, std::int32_t device,
                           ffi::RemainingArgs operands, ffi::RemainingRets results,
                           ffi::Dictionary attributes) {
  return guarded(operands, results, attributes, [&](const Frame& frame) {
    return run_on_gpu(read_backward(frame), read_options(frame),
                      {{Device::Kind::cuda, device}, stream, scratch}, plan_backward);
  });
}

XLA_FFI_DEFINE_HANDLER(kAttentionOnCpu, attention_on_cpu,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(kBackwardOnCpu, backward_on_cpu,
                       ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
XLA_FFI_DEFINE_HANDLER(kAttentionOnGpu, attention_on_gpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());
XLA_FFI_DEFINE_HANDLER(kBackwardOnGpu, backward_on_gpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::ScratchAllocator>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attrs());

// ------------------------------------------------------------------------------ when it is traced

Given read_keywords(const Signature& signature, const nb::kwargs& keywords) {
  std::vector<PyObject*> values;
  for (auto [name, value] : keywords) values.push_back(value.ptr());
  const nb::tuple names(keywords.keys());
  return read_parameters(signature, values.data(), 0, names.ptr());
}

nb::dict attributes_of(const Call& call) {
  const Arguments& a = call.arguments;
  const Options& o = call.options;
  const bool varlen = call.layout == Layout::varlen;
  nb::dict made;
  made["layout"] = varlen ? "varlen" : call.layout == Layout::bshd ? "bshd" : "bhsd";
  made["causal"] = name(o.causal);
  made["precision"] = name(o.precision);
  made["window_left"] = o.window_left;
  made["window_right"] = o.window_right;
  made["softcap"] = o.softcap;
  made["max_error"] = o.max_error;
  made["batch_invariant"] = o.batch_invariant ? 1 : 0;
  made["sm_margin"] = o.sm_margin;
  if (a.scale) made["scale"] = *a.scale;
  if (varlen) made["max_seqlen_q"] = a.max_seqlen_q;
  if (varlen) made["max_seqlen_kv"] = a.max_seqlen_kv;
  return made;
}

// Raises the error of a backend that does not support the problem, if a device is named.
void check_supported(const Problem& problem, nb::handle device, Layout layout,
                     Result<Explanation> (*explain)(const Problem&, Device)) {
  if (device.is_none()) return;
  const Device on = check(parse_device(text_of(device, "device", "its name, or None")));
  Status status;
  {
    const nb::gil_scoped_release released;
    status = explain(problem, on).status();
  }
  if (status.code() == ErrorCode::unsupported) raise(status, layout);
}

// Both return (results, attributes). The results have shape and dtype.
nb::tuple trace_attention(nb::handle device, const nb::kwargs& keywords) {
  const Call call = read_call(read_keywords(kAttentionSignature, keywords));
  const Problem problem = check(problem_of(call.arguments, call.options), call.layout);
  check_supported(problem, device, call.layout, explain);
  nb::list results;
  results.append(call.out);
  if (call.lse.is_valid()) results.append(call.lse);
  return nb::make_tuple(results, attributes_of(call));
}

nb::tuple trace_backward(nb::handle device, const nb::kwargs& keywords) {
  const BackwardCall call = read_backward_call(read_keywords(kBackwardSignature, keywords));
  const Call& shared = call.forward;
  const Problem problem = check(problem_of(call.arguments, shared.options), shared.layout);
  check_supported(problem, device, shared.layout, explain_backward);
  nb::list results;
  for (const nb::object* one : {&call.dq, &call.dk, &call.dv, &call.dbias, &call.dsinks})
    if (one->is_valid()) results.append(*one);
  nb::dict attributes = attributes_of(shared);
  attributes["return_dbias"] = call.dbias.is_valid() ? 1 : 0;
  attributes["return_dsinks"] = call.dsinks.is_valid() ? 1 : 0;
  return nb::make_tuple(results, attributes);
}

}  // namespace

void add_xla_calls(nb::module_& m) {
  m.def("_trace_attention", &trace_attention, nb::arg("device").none(), nb::arg("keywords"));
  m.def("_trace_backward", &trace_backward, nb::arg("device").none(), nb::arg("keywords"));
  nb::dict handlers;
  for (const auto& [target, platform, handler] :
       {std::tuple{"octavo_attention", "cpu", kAttentionOnCpu},
        {"octavo_attention", "CUDA", kAttentionOnGpu},
        {"octavo_attention_backward", "cpu", kBackwardOnCpu},
        {"octavo_attention_backward", "CUDA", kBackwardOnGpu}})
    handlers[nb::make_tuple(target, platform)] = nb::capsule(reinterpret_cast<void*>(handler));
  m.attr("_xla_handlers") = handlers;
}

}  // namespace octavo::python
