// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the .safetensors reader, for the only tensor and for one by name. It must be able to
// write and read again every file it accepts.
#include "tensors/safetensors.h"

#include <string>
#include <vector>

#include "fuzz.h"

namespace octavo::cli {
namespace {

void check_read(std::span<const std::byte> bytes, std::string_view wanted) {
  const Result<HostTensor> read = parse_safetensors(bytes, wanted);
  if (!read.ok()) {
    fuzz::require_sentence(read.status().message());
    return;
  }
  const HostTensor& tensor = read.value();
  const Result<std::uint64_t> expected = contiguous_bytes(tensor.shape, tensor.dtype);
  fuzz::require(expected.ok() && tensor.data.size() == *expected, "data fills the shape");

  std::string again = safetensors_header(tensor, "t");
  again.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  const Result<HostTensor> reread = parse_safetensors(std::as_bytes(std::span(again)), "t");
  fuzz::require(reread.ok(), "what was written can be read");
  fuzz::require(
      reread->shape == tensor.shape && reread->dtype == tensor.dtype && reread->data == tensor.data,
      "what was written is what is read");
}

}  // namespace
}  // namespace octavo::cli

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> copy(data, data + size);
  const auto bytes = std::as_bytes(std::span(copy));
  octavo::cli::check_read(bytes, "");
  octavo::cli::check_read(bytes, "q");
  return 0;
}
