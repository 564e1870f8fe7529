// SPDX-License-Identifier: Apache-2.0
// merge_states(): checks its arguments and runs on a device.
#include "cpu/merge_states.h"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/tensor_checks.h"
#include "octavo/octavo.hpp"

namespace octavo {
namespace {

std::string sizes_text(const std::array<std::int64_t, 4>& s) {
  return fmt::format("({}, {}, {}, {})", s[0], s[1], s[2], s[3]);
}

Status check_part(const std::string& what, const ConstTensor& out,
                  const std::array<std::int64_t, 4>& shape) {
  OCTAVO_RETURN_IF_ERROR(validate_tensor(what, out));
  if (out.dtype > DType::bf16) return invalid(what + ".dtype", name(out.dtype), "f32, f16, bf16");
  if (out.shape == shape) return {};
  return invalid(what + ".shape", sizes_text(out.shape),
                 sizes_text(shape) + ", that of the first part");
}

Status check_part_lse(const std::string& what, const ConstTensor& lse,
                      std::array<std::int64_t, 4> shape) {
  OCTAVO_RETURN_IF_ERROR(validate_tensor(what, lse));
  if (lse.dtype != DType::f32) return invalid(what + ".dtype", name(lse.dtype), "f32");
  shape[3] = 1;
  if (lse.shape == shape) return {};
  return invalid(what + ".shape", sizes_text(lse.shape),
                 sizes_text(shape) + ", a value per row of a part");
}

// A result must not overlap a part, the other result, or itself.
Status check_merged(std::string_view what, const Tensor& result, std::span<const ConstTensor> outs,
                    std::span<const ConstTensor> lses) {
  OCTAVO_RETURN_IF_ERROR(validate_no_self_overlap(what, result));
  for (std::size_t i = 0; i < outs.size(); ++i) {
    OCTAVO_RETURN_IF_ERROR(validate_apart(what, result, fmt::format("outs[{}]", i), outs[i]));
    OCTAVO_RETURN_IF_ERROR(validate_apart(what, result, fmt::format("lses[{}]", i), lses[i]));
  }
  return {};
}

}  // namespace

Status merge_states(std::span<const ConstTensor> outs, std::span<const ConstTensor> lses,
                    const Tensor& out, const Tensor& lse, Device device, Stream /*stream*/) {
  return without_exceptions([&]() -> Status {
    if (outs.empty() || outs.size() != lses.size())
      return invalid("outs", fmt::format("{} parts with {} lses", outs.size(), lses.size()),
                     "as many lses as outs, from 1 on");
    const std::array<std::int64_t, 4>& shape = outs[0].shape;
    for (std::size_t i = 0; i < outs.size(); ++i) {
      OCTAVO_RETURN_IF_ERROR(check_part(fmt::format("outs[{}]", i), outs[i], shape));
      OCTAVO_RETURN_IF_ERROR(check_part_lse(fmt::format("lses[{}]", i), lses[i], shape));
    }
    OCTAVO_RETURN_IF_ERROR(check_part("out", out, shape));
    OCTAVO_RETURN_IF_ERROR(check_merged("out", out, outs, lses));
    if (lse.data != nullptr) {
      OCTAVO_RETURN_IF_ERROR(check_part_lse("lse", lse, shape));
      OCTAVO_RETURN_IF_ERROR(check_merged("lse", lse, outs, lses));
      OCTAVO_RETURN_IF_ERROR(validate_apart("lse", lse, "out", out));
    }
    if (device.kind != Device::Kind::cpu)
      return unsupported("device", name(device), "cpu in merge_states()");
    if (!is_empty(out)) cpu::merge_states(outs, lses, out, lse);
    return {};
  });
}

}  // namespace octavo
