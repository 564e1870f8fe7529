// SPDX-License-Identifier: Apache-2.0
#include "base/tensor_checks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"

namespace octavo {
namespace {

// Extents stay far from the end of int64, so that no later sum or product overflows.
constexpr std::int64_t kLargestExtentBytes = std::int64_t{1} << 60;

__extension__ using Wide = __int128;

// The number of elements from the first to the last, inclusive; -1 if they exceed the limit.
std::int64_t extent(const ConstTensor& t) {
  Wide last = 0;
  for (int i = 0; i < 4; ++i)
    last += static_cast<Wide>(std::max<std::int64_t>(t.shape[i] - 1, 0)) * t.stride[i];
  const Wide bytes = (last + 1) * static_cast<Wide>(size_bytes(t.dtype));
  return bytes > kLargestExtentBytes ? -1 : static_cast<std::int64_t>(last + 1);
}

// One dimension of two views that step through it alike, in bytes.
struct SharedStep {
  std::int64_t stride = 0;
  std::int64_t count_a = 1, count_b = 1;
};

// False: the views step through dimension `i` differently. Where a view has one index, or repeats
// itself (stride 0), its stride means nothing, and the other's holds.
bool shared_step(const ConstTensor& a, const ConstTensor& b, std::size_t i, SharedStep& step) {
  const auto count = [i](const ConstTensor& t) { return t.stride[i] == 0 ? 1 : t.shape[i]; };
  const auto stride = [i](const ConstTensor& t) {
    return t.stride[i] * static_cast<std::int64_t>(size_bytes(t.dtype));
  };
  step.count_a = count(a);
  step.count_b = count(b);
  if (step.count_a == 1 && step.count_b == 1) return true;
  if (step.count_a > 1 && step.count_b > 1 && stride(a) != stride(b)) return false;
  step.stride = step.count_a > 1 ? stride(a) : stride(b);
  return true;
}

// Whether two views surely share no byte although their address ranges meet: they step through one
// larger array with the same strides, as the parts of a packed QKV do, and keep to different
// indices of one dimension, or to different columns. Each index, and the columns, must stay inside
// one step of the next larger stride: only then has a byte one set of indices, and bytes with
// different sets are different bytes.
bool interleaved(const ConstTensor& a, const ConstTensor& b) {
  if (a.data > b.data) return interleaved(b, a);
  std::array<SharedStep, 3> steps;
  for (std::size_t i = 0; i < 3; ++i)
    if (!shared_step(a, b, i, steps[i])) return false;
  std::sort(steps.begin(), steps.end(),
            [](const SharedStep& x, const SharedStep& y) { return x.stride > y.stride; });
  std::int64_t distance = static_cast<const char*>(b.data) - static_cast<const char*>(a.data);
  bool apart = false;
  std::int64_t room = INT64_MAX;  // bytes in one step of the dimension above
  for (const SharedStep& step : steps) {
    if (step.count_a == 1 && step.count_b == 1) continue;
    const std::int64_t first = distance / step.stride;  // b's first index; a's is 0
    distance %= step.stride;
    if (std::max(first + step.count_b, step.count_a) * step.stride > room) return false;
    apart = apart || first >= step.count_a;
    room = step.stride;
  }
  const auto row_bytes = [](const ConstTensor& t) {
    return t.shape[3] * static_cast<std::int64_t>(size_bytes(t.dtype));
  };
  if (std::max(distance + row_bytes(b), row_bytes(a)) > room) return false;
  return apart || distance >= row_bytes(a);
}

bool ranges_meet(const ConstTensor& a, const ConstTensor& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const auto begin_a = reinterpret_cast<std::uintptr_t>(a.data);
  const auto begin_b = reinterpret_cast<std::uintptr_t>(b.data);
  const auto bytes_a = static_cast<std::uintptr_t>(extent(a)) * size_bytes(a.dtype);
  const auto bytes_b = static_cast<std::uintptr_t>(extent(b)) * size_bytes(b.dtype);
  return begin_a < begin_b + bytes_b && begin_b < begin_a + bytes_a;
}

}  // namespace

bool known_dtype(DType dtype) {
  return std::find(kAllDTypes.begin(), kAllDTypes.end(), dtype) != kAllDTypes.end();
}

Status validate_tensor(std::string_view what, const ConstTensor& t) {
  if (!known_dtype(t.dtype))
    return invalid(fmt::format("{}.dtype", what), fmt::format("code {}", static_cast<int>(t.dtype)),
                   "f32, f16, bf16, e4m3, e5m2, int8, sim8");
  return validate_view(what, t);
}

Status validate_view(std::string_view what, const ConstTensor& t) {
  const auto member = [what](std::string_view part) { return fmt::format("{}.{}", what, part); };
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] < 0 || t.shape[i] > kLargestDimension)
      return invalid(member(fmt::format("shape[{}]", i)), fmt::format("{}", t.shape[i]),
                     "0 to 2147483647");
    if (t.stride[i] < 0)
      return invalid(member(fmt::format("stride[{}]", i)), fmt::format("{}", t.stride[i]),
                     "0 or more");
  }
  // Empty tensors are checked too: a loop over their rows still steps by these strides.
  if (extent(t) < 0)
    return invalid(
        member("stride"),
        fmt::format("({}, {}, {}, {})", t.stride[0], t.stride[1], t.stride[2], t.stride[3]),
        "strides that keep the tensor within 2^60 bytes");
  if (is_empty(t)) return {};
  if (t.shape[3] > 1 && t.stride[3] != 1)
    return invalid(member("stride[3]"), fmt::format("{}", t.stride[3]), "1 (contiguous columns)");
  if (t.data == nullptr) return invalid(member("data"), "null", "a pointer to the elements");
  const auto address = reinterpret_cast<std::uintptr_t>(t.data);
  if (address % size_bytes(t.dtype) != 0)
    return invalid(member("data"), fmt::format("at address 0x{:x}", address),
                   fmt::format("multiples of {} bytes for {}", size_bytes(t.dtype), name(t.dtype)));
  if (address > UINTPTR_MAX - static_cast<std::uintptr_t>(extent(t)) * size_bytes(t.dtype))
    return invalid(member("data"), fmt::format("at address 0x{:x}", address),
                   "a pointer whose elements end inside the address space");
  return {};
}

// Sufficient, not necessary: in ascending order of strides, each stride must exceed the extent of
// the dimensions before it.
Status validate_no_self_overlap(std::string_view what, const Tensor& t) {
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  // stable_sort would allocate, so the comparison breaks ties by dimension.
  std::sort(order.begin(), order.end(), [&t](std::size_t a, std::size_t b) {
    return std::pair(t.stride[a], a) < std::pair(t.stride[b], b);
  });
  std::int64_t below = 0;  // offset of the last element of the dimensions so far
  if (is_empty(t)) return {};
  for (const std::size_t i : order) {
    if (t.shape[i] == 1) continue;
    if (t.stride[i] <= below)
      return invalid(fmt::format("{}.stride[{}]", what, i), fmt::format("{}", t.stride[i]),
                     fmt::format("more than {}, so that no two elements share memory", below));
    below += (t.shape[i] - 1) * t.stride[i];
  }
  return {};
}

Status validate_apart(std::string_view what, const Tensor& written, std::string_view other_what,
                      const ConstTensor& other) {
  if (!ranges_meet(written, other) || interleaved(written, other)) return {};
  return invalid(what, fmt::format("in memory that {} also covers", other_what),
                 fmt::format("memory apart from {}", other_what));
}

}  // namespace octavo
