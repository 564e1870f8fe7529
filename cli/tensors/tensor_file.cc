// SPDX-License-Identifier: Apache-2.0
// Chooses the reader or writer by the name of the file.
#include "tensors/tensor_file.h"

#include <fmt/format.h>

#include "error.h"
#include "tensors/byte_source.h"
#include "tensors/npy.h"
#include "tensors/safetensors.h"

namespace octavo::cli {
namespace {

constexpr std::string_view kSafetensors = ".safetensors";

struct FileSpec {
  std::string path;
  std::string tensor;
  bool safetensors = false;
};

Result<FileSpec> parse_spec(std::string_view flag, const std::string& spec) {
  const std::size_t colon = spec.find(std::string(kSafetensors) + ":");
  if (colon != std::string::npos) {
    const std::size_t end = colon + kSafetensors.size();
    return FileSpec{spec.substr(0, end), spec.substr(end + 1), true};
  }
  if (spec.ends_with(kSafetensors)) return FileSpec{spec, "", true};
  if (spec.ends_with(".npy")) return FileSpec{spec, "", false};
  return bad_input(flag, in_quotes(spec), "FILE.npy, FILE.safetensors, FILE.safetensors:NAME");
}

}  // namespace

Result<HostTensor> load_tensor(std::string_view flag, const std::string& spec,
                               std::optional<DType> untyped) {
  const Result<FileSpec> file = parse_spec(flag, spec);
  if (!file.ok()) return file.status();
  const std::string context = fmt::format("{} {}", flag, file->path);
  const Result<FileSource> source = FileSource::open(file->path);
  if (!source.ok()) return in_context(context, source.status());
  Result<HostTensor> tensor = file->safetensors ? read_safetensors(*source, file->tensor, untyped)
                                                : read_npy(*source, untyped);
  if (!tensor.ok()) return in_context(context, tensor.status());
  return tensor;
}

Result<TensorWriter> TensorWriter::open(std::string_view flag, const std::string& spec,
                                        std::string_view tensor_name) {
  Result<FileSpec> parsed = parse_spec(flag, spec);
  if (!parsed.ok()) return parsed.status();
  Result<OutputFile> file = OutputFile::open(parsed->path);
  if (!file.ok()) return in_context(flag, file.status());
  return TensorWriter(std::move(*file), parsed->safetensors,
                      parsed->tensor.empty() ? std::string(tensor_name) : parsed->tensor);
}

Status TensorWriter::write(const HostTensor& tensor) {
  if (widens(tensor.dtype)) {
    Result<HostTensor> wide = make_tensor("the output", DType::f32, tensor.shape);
    if (!wide.ok()) return wide.status();
    if (Status status = convert(tensor.flat(), wide->flat()); !status.ok()) return status;
    return write(*wide);
  }
  const std::string header =
      safetensors_ ? safetensors_header(tensor, tensor_name_) : npy_header(tensor);
  if (Status status = file_.write(header); !status.ok()) return status;
  return file_.write(std::span<const std::byte>(tensor.data));
}

}  // namespace octavo::cli
