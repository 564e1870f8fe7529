// SPDX-License-Identifier: Apache-2.0
#include "torch_workspace.h"

namespace nb = nanobind;

namespace octavo::python {
namespace {

nb::object torch_bytes(const Call& call, std::size_t bytes) {
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

}  // namespace

// Saves 2 us of a call. Returns false if PyTorch is too old or its allocation failed.
bool TorchWorkspace::allocate_by_exchange(const Call& call, std::size_t bytes) {
  const DlpackExchange* const exchange = call.q.type->exchange;
  if (exchange == nullptr || exchange->allocate == nullptr || call.stream_given) return false;
  auto size = static_cast<std::int64_t>(bytes);
  nb::dlpack::dltensor like{};
  like.device = {kDlpackCuda, call.device.index};
  like.ndim = 1;
  like.dtype = dlpack_type(nb::dlpack::dtype_code::UInt, 8);
  like.shape = &size;
  const auto ignore = [](void*, const char*, const char*) {};
  if (exchange->allocate(&like, &managed_, nullptr, ignore) != 0) {
    managed_ = nullptr;
    PyErr_Clear();
    return false;
  }
  const nb::dlpack::dltensor& made = managed_->tensor;
  workspace_ = {static_cast<char*>(made.data) + made.byte_offset, bytes};
  return true;
}

TorchWorkspace::TorchWorkspace(const Call& call, std::size_t bytes) {
  if (bytes == 0 || allocate_by_exchange(call, bytes)) return;
  tensor_ = torch_bytes(call, bytes);  // raises PyTorch's own error if memory is short
  workspace_ = {read_array(tensor_, "workspace").data, bytes};
}

TorchWorkspace::~TorchWorkspace() {
  if (managed_ != nullptr && managed_->deleter != nullptr) managed_->deleter(managed_);
}

}  // namespace octavo::python
