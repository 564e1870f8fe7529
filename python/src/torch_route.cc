// SPDX-License-Identifier: Apache-2.0
#include "torch_route.h"

#include <dlfcn.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

// Calls a function without arguments; false for None, False and 0. functorch's levels start at 1.
bool call_is_true(const nb::object& function) {
  const nb::object result = nb::steal(PyObject_CallNoArgs(function.ptr()));
  if (!result.is_valid()) throw nb::python_error();
  return is_true(result);
}

// The dispatch keys that this thread includes and excludes, each XORed with PyTorch's defaults.
// These two words hold everything that can intercept a call before its kernel; PyTorch's Python
// functions take most of a microsecond to query it. This reads a variable of c10 that has not
// changed since 2020. verify() tests that it still behaves as expected; else the variable is not
// used.
class DispatchKeys {
 public:
  using Words = std::array<std::uint64_t, 2>;

  DispatchKeys() : library_(dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD)) {
    try {
      trusted_ = verify();
    } catch (const nb::python_error&) {  // a function of PyTorch has changed
    }
  }

  bool trusted() const { return trusted_; }
  // Whether the keys are those of plain code, inside or outside of torch.inference_mode(). False if
  // not known.
  bool plain() const {
    if (!trusted_) return false;
    const Words words = read();
    return words == Words{} || words == inference_;
  }

 private:
  static Words* find(void* library) {
    return static_cast<Words*>(dlsym(library, "_ZN3c104impl26raw_local_dispatch_key_setE"));
  }
  Words read() const {
    static thread_local const Words* const kWords = find(library_);
    return *kWords;
  }

  bool verify() {
    if (library_ == nullptr || find(library_) == nullptr) return false;
    const Words before = read();
    const nb::object c = nb::module_::import_("torch").attr("_C");
    const auto within = [this](const nb::object& guard) {
      guard.attr("__enter__")();
      const Words words = read();
      guard.attr("__exit__")(nb::none(), nb::none(), nb::none());
      return words;
    };
    const nb::object key = c.attr("DispatchKey").attr("FuncTorchBatched");
    const Words included = within(c.attr("_IncludeDispatchKeyGuard")(key));
    const Words excluded =
        within(c.attr("_ExcludeDispatchKeyGuard")(c.attr("DispatchKeySet")(key)));
    const Words inference = within(nb::module_::import_("torch").attr("inference_mode")());
    if (before == Words{}) inference_ = inference;
    return included[0] != before[0] && included[1] == before[1] && excluded[0] == before[0] &&
           excluded[1] != before[1] && inference != before && read() == before;
  }

  void* library_;
  bool trusted_ = false;
  Words inference_{};
};

// PyTorch's functions without arguments and variables that tell which of its features are active.
struct TorchState {
  DispatchKeys keys;
  nb::object dispatch_modes, functorch_level, tracing,
      autocast;  // called if the keys are not plain
  nb::object function_modes;
  nb::object profiler, forward_ad;  // the dicts of two modules
  bool complete = true;             // false: this version of PyTorch lacks one of them

  static const TorchState& get() {
    static const TorchState& state = *new TorchState();
    return state;
  }

 private:
  TorchState() {
    const nb::object c = nb::module_::import_("torch").attr("_C");
    dispatch_modes = find(c, "_len_torch_dispatch_stack");
    functorch_level = find(nb::getattr(c, "_functorch", nb::none()), "maybe_current_level");
    tracing = find(c, "_is_tracing");
    autocast = find(c, "_is_any_autocast_enabled");
    function_modes = find(c, "_len_torch_function_stack");
    profiler = nb::module_::import_("torch.autograd.profiler").attr("__dict__");
    forward_ad = nb::module_::import_("torch.autograd.forward_ad").attr("__dict__");
  }

  nb::object find(const nb::object& module, const char* name) {
    nb::object found = nb::getattr(module, name, nb::none());
    complete = complete && !found.is_none();
    return found;
  }
};

bool has_attribute(nb::handle object, PyObject* name) {
  const nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!value.is_valid()) throw nb::python_error();
  return value.ptr() == Py_True;
}

// The level of torch.autograd.forward_ad is -1 outside of dual_level().
bool in_dual_level(const TorchState& torch) {
  static PyObject* const kLevel = PyUnicode_InternFromString("_current_level");
  PyObject* const level = PyDict_GetItemWithError(torch.forward_ad.ptr(), kLevel);
  return level == nullptr || PyLong_AsLong(level) >= 0;
}

// Whether torch.profiler or an older profiler runs, in any thread.
bool is_profiled(const TorchState& torch) {
  static PyObject* const kEnabled = PyUnicode_InternFromString("_is_profiler_enabled");
  return PyDict_GetItemWithError(torch.profiler.ptr(), kEnabled) != Py_False;
}

Framework framework_of(nb::handle value) {
  const Framework framework = array_type(value).framework;
  if (framework != Framework::none || !is_quantized(value)) return framework;
  return array_type(data_of_quantized(value)).framework;
}

// The parameters that a derivative may be taken of.
constexpr std::array kDifferentiable = {kQ, kK, kV, kBias, kAlibiSlopes, kSinks};

bool is_torch(Framework framework) {
  return framework == Framework::torch || framework == Framework::torch_subclass;
}

[[noreturn]] void raise_sentence(const std::string& sentence) {
  PyErr_SetString(PyExc_NotImplementedError, sentence.c_str());
  throw nb::python_error();
}

}  // namespace

bool has_torch(const Given& given) {
  for (const int parameter : {kQ, kK, kV})
    if (is_torch(framework_of(given[parameter]))) return true;
  return false;
}

// The direct path only reads memory, so it may be used only if the operator would give the same
// result. The checks, in this order:
//   transformed  tensor subclasses (fake and functional tensors, DTensor); a q on the meta device;
//                dispatch modes (make_fx, FakeTensorMode, FlopCounterMode, every
//                TorchDispatchMode); levels of functorch (vmap, grad, jvp, functionalize);
//                torch.jit.trace
//   observed     autocast of any device; torch function modes; a profiler; a level of forward-mode
//                differentiation
// Code under torch.compile never gets here: Dynamo calls octavo.torch's functions instead.
Route route_of(const Given& given) {
  static PyObject* const kIsMeta = PyUnicode_InternFromString("is_meta");
  const auto is_subclass = [&given](int parameter) {
    return !given[parameter].is_none() &&
           framework_of(given[parameter]) == Framework::torch_subclass;
  };
  for (const int parameter : {kQ, kK, kV, kOut, kOutScale, kDout, kLse})
    if (is_subclass(parameter)) return Route::transformed;
  for (const int parameter : kOptionalTensors)
    if (is_subclass(parameter)) return Route::transformed;
  if (array_type(given[kQ]).framework == Framework::torch && has_attribute(given[kQ], kIsMeta))
    return Route::transformed;
  const TorchState& torch = TorchState::get();
  if (!torch.complete) return Route::observed;
  if (!torch.keys.plain()) {
    if (call_is_true(torch.dispatch_modes) || call_is_true(torch.functorch_level) ||
        call_is_true(torch.tracing))
      return Route::transformed;
    if (call_is_true(torch.autocast)) return Route::observed;
  }
  if (call_is_true(torch.function_modes) || is_profiled(torch) || in_dual_level(torch))
    return Route::observed;
  return Route::direct;
}

bool reads_dispatch_keys() { return TorchState::get().keys.trusted(); }

bool wants_gradient(const Given& given) {
  static PyObject* const kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  if (!is_true(Torch::get().is_grad_enabled())) return false;
  for (const int parameter : kDifferentiable)
    if (!given[parameter].is_none() && is_torch(array_type(given[parameter]).framework) &&
        has_attribute(given[parameter], kRequiresGrad))
      return true;
  return false;
}

std::string tangent_sentence(const std::string& parameter) {
  return parameter +
         " is a dual tensor with a tangent; supported: tensors without one: there is no "
         "forward-mode derivative (octavo.torch.sdpa falls back).";
}

void refuse_tangents(const Given& given) {
  if (!in_dual_level(TorchState::get())) return;
  for (const int one : kDifferentiable)
    if (!given[one].is_none() && is_torch(array_type(given[one]).framework) &&
        is_true(nb::module_::import_("octavo.torch").attr("_has_tangent")(given[one])))
      raise_sentence(tangent_sentence(kParameters[one]));
}

nb::object call_octavo_torch(const char* function, nb::object first, const Given& given) {
  nb::dict named;
  for (int i = kCausal; i < kParameterCount; ++i)
    if (!given[i].is_none() && i != kDevice && i != kDout) named[kParameters[i]] = given[i];
  return nb::module_::import_("octavo.torch")
      .attr(function)(std::move(first), given[kQ], given[kK], given[kV], **named);
}

}  // namespace octavo::python
