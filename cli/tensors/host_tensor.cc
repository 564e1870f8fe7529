// SPDX-License-Identifier: Apache-2.0
// Sizes, views and allocation of HostTensor.
#include "tensors/host_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <limits>
#include <new>

#include "error.h"

namespace octavo::cli {

std::int64_t HostTensor::elements() const {
  return static_cast<std::int64_t>(data.size() / size_bytes(dtype));
}

Tensor HostTensor::flat() { return Tensor::bhsd(data.data(), dtype, 1, 1, 1, elements()); }

ConstTensor HostTensor::flat() const {
  return ConstTensor::bhsd(data.data(), dtype, 1, 1, 1, elements());
}

Result<std::uint64_t> contiguous_bytes(const std::vector<std::int64_t>& shape, DType dtype) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t product = size_bytes(dtype);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      return bad_input("the shape", shape_text(shape), "sizes of 0 and more");
    }
    if (extent == 0) {
      empty = true;
      continue;
    }
    if (product > kLargest / static_cast<std::uint64_t>(extent)) {
      return bad_input("the shape", shape_text(shape), "tensors of fewer than 2^63 bytes");
    }
    product *= static_cast<std::uint64_t>(extent);
  }
  return empty ? 0 : product;
}

Result<HostTensor> make_tensor(std::string_view what, DType dtype,
                               const std::vector<std::int64_t>& shape) {
  const Result<std::uint64_t> bytes = contiguous_bytes(shape, dtype);
  if (!bytes.ok()) return in_context(what, bytes.status());
  const auto memory = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (*bytes > memory) {
    return bad_input(what,
                     fmt::format("{} of {}, {} bytes", shape_text(shape), name(dtype), *bytes),
                     fmt::format("what fits this machine's memory of {} bytes", memory));
  }
  HostTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  try {
    tensor.data.resize(*bytes);
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::out_of_memory,
                  fmt::format("{}: no memory for {} bytes.", what, *bytes));
  }
  return tensor;
}

Result<Tensor> bhsd_view(std::string_view what, HostTensor& tensor) {
  if (tensor.shape.size() != 4) {
    return bad_input(what,
                     fmt::format("of rank {} {}", tensor.shape.size(), shape_text(tensor.shape)),
                     "rank 4 (B, H, S, D)");
  }
  const auto& s = tensor.shape;
  return Tensor::bhsd(tensor.data.data(), tensor.dtype, s[0], s[1], s[2], s[3]);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  if (shape.size() == 1) return fmt::format("({},)", shape[0]);
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace octavo::cli
