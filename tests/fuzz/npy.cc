// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the .npy reader. It must be able to write and read again every file it accepts.
#include "tensors/npy.h"

#include <cstring>
#include <string>
#include <vector>

#include "fuzz.h"

namespace octavo::cli {
namespace {

void check_read(std::span<const std::byte> bytes, std::optional<DType> untyped) {
  const Result<HostTensor> read = parse_npy(bytes, untyped);
  if (!read.ok()) {
    fuzz::require_sentence(read.status().message());
    return;
  }
  const HostTensor& tensor = read.value();
  const Result<std::uint64_t> expected = contiguous_bytes(tensor.shape, tensor.dtype);
  fuzz::require(expected.ok() && tensor.data.size() == *expected, "data fills the shape");
  if (tensor.dtype == DType::bf16) return;  // .npy has no type for it

  std::string again = npy_header(tensor);
  again.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  const Result<HostTensor> reread =
      parse_npy(std::as_bytes(std::span(again)),
                is_8bit(tensor.dtype) ? std::optional(tensor.dtype) : std::nullopt);
  fuzz::require(reread.ok(), "what was written can be read");
  fuzz::require(
      reread->shape == tensor.shape && reread->dtype == tensor.dtype && reread->data == tensor.data,
      "what was written is what is read");
}

}  // namespace
}  // namespace octavo::cli

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of exactly this size, so that a read past its end is outside an allocation.
  const std::vector<std::uint8_t> copy(data, data + size);
  const auto bytes = std::as_bytes(std::span(copy));
  octavo::cli::check_read(bytes, {});
  octavo::cli::check_read(bytes, octavo::DType::bf16);
  octavo::cli::check_read(bytes, octavo::DType::e4m3);
  return 0;
}
